package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// parse reads the Go files in git, without generated files.
func parse(root string) ([]*file, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	var files []*file
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		src, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) { // deleted, not yet committed
			continue
		}
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		f := &file{dir: filepath.Dir(path), name: filepath.Base(path), kind: kindOf(path), lines: bytes.Count(src, []byte("\n")), uses: map[*file]bool{}}
		f.exported, f.types = declared(parsed)
		for _, g := range parsed.Comments {
			f.comments.count(g.Text())
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && sentence.MatchString(s) {
					f.strings.count(s)
				}
			}
			return true
		})
		files = append(files, f)
	}
	return files, nil
}

// sentence matches prose: at least three words.
var sentence = regexp.MustCompile(`^[^<>{}]*[A-Za-z]+ [a-z]+ [a-z]+[^<>{}]*$`)

// resolve finds the references between the files of each package.
func resolve(root string, files []*file) error {
	byPath := map[string]*file{}
	modules := map[string]bool{}
	for _, f := range files {
		byPath[filepath.Join(root, f.dir, f.name)] = f
		if m := moduleOf(root, f.dir); m != "" {
			modules[m] = true
		}
	}
	for m := range modules {
		fset := token.NewFileSet()
		pkgs, err := packages.Load(&packages.Config{
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
			Dir:  m, Fset: fset, BuildFlags: []string{"-tags=cluster"},
		}, "./...")
		if err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
		for _, p := range pkgs {
			for id, obj := range p.TypesInfo.Uses {
				if obj.Pkg() != p.Types || !declaration(obj) {
					continue
				}
				from, to := byPath[fset.Position(id.Pos()).Filename], byPath[fset.Position(obj.Pos()).Filename]
				if from != nil && to != nil && from != to {
					from.uses[to] = true
				}
			}
		}
	}
	return nil
}

// declaration reports whether an object is package-level or a method.
func declaration(obj types.Object) bool {
	if obj.Parent() == obj.Pkg().Scope() {
		return true
	}
	f, ok := obj.(*types.Func)
	return ok && f.Signature().Recv() != nil && !types.IsInterface(f.Signature().Recv().Type())
}

// moduleOf returns the folder of the module of a folder.
func moduleOf(root, dir string) string {
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
			return filepath.Join(root, dir)
		}
		if dir == "." {
			return ""
		}
	}
}

// declared returns the number of exported names and the type names of a file.
func declared(f *ast.File) (exported int, types []string) {
	count := func(id *ast.Ident) {
		if id.IsExported() {
			exported++
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			count(d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					count(s.Name)
					types = append(types, s.Name.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						count(id)
					}
				}
			}
		}
	}
	return exported, types
}
