package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

// kind of a file in the count of lines.
type kind int

const (
	daemon    kind = iota // what podgauge links, but for compat and host
	simulator             // what podgauge-sim links besides
	generator             // of files in the repository: no program links them
	compat                // dcgm-exporter's fields, and the translation of queries
	host                  // of devices that are not GPUs: NVSwitches, RDMA ports, CPUs
	kube                  // kubectl-podgauge and podgauge-kube
	helper                // of tests: everything below test and tools, demonstrations
	test
	kubeTest
	compatTest
	kinds
)

func (k kind) String() string {
	return [...]string{
		"daemon", "simulator", "generators", "compatibility", "host", "kube", "test helpers", "tests", "tests of kube",
		"tests of compatibility",
	}[k]
}

// file is a parsed Go file.
type file struct {
	dir, name string
	kind      kind
	lines     int
	code      int            // lines without comments and blank lines
	uses      map[*file]bool // files of the same package with declarations for this file
}

// programs are the folders that a program links, by the program's kind.
type programs map[kind]map[string]bool

// findPrograms lists the folders of the root module.
func findPrograms(root string) (programs, error) {
	linked := programs{}
	for k, program := range map[kind]string{daemon: "podgauge", simulator: "podgauge-sim"} {
		list := exec.Command("go", "list", "-deps", "-f", "{{.Dir}}", "./cmd/"+program)
		list.Dir = root
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("list packages of %s: %w", program, err)
		}
		linked[k] = map[string]bool{}
		for dir := range strings.Lines(string(out)) {
			if dir, err := filepath.Rel(root, strings.TrimSpace(dir)); err == nil {
				linked[k][dir] = true
			}
		}
	}
	return linked, nil
}

func (p programs) kindOf(path string) kind {
	isTest := strings.HasSuffix(path, "_test.go")
	switch dir := filepath.Dir(path) + "/"; {
	case dir == "kube/internal/migrate/" && isTest:
		return compatTest
	case dir == "kube/internal/migrate/", dir == "internal/dcgm/" && !isTest:
		return compat
	case (dir == "internal/sysfs/" || dir == "internal/sxid/") && !isTest:
		return host
	case strings.HasPrefix(dir, "kube/") && isTest:
		return kubeTest
	case strings.HasPrefix(dir, "kube/"):
		return kube
	case isTest, dir == "test/kubelet/conformance/": // cases for every kubelet
		return test
	case strings.HasPrefix(dir, "test/"), strings.HasPrefix(dir, "tools/"), strings.HasSuffix(dir, "test/"):
		return helper
	case p[daemon][filepath.Dir(path)]:
		return daemon
	case p[simulator][filepath.Dir(path)]:
		return simulator
	default:
		return generator
	}
}

// parse reads the Go files in git, without generated files.
func parse(root string) ([]*file, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	linked, err := findPrograms(root)
	if err != nil {
		return nil, err
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
		files = append(files, &file{
			dir:   filepath.Dir(path),
			name:  filepath.Base(path),
			kind:  linked.kindOf(path),
			lines: bytes.Count(src, []byte("\n")),
			code:  codeLines(src),
			uses:  map[*file]bool{},
		})
	}
	return files, nil
}

// codeLines returns the number of lines with at least one token.
func codeLines(src []byte) int {
	fset := token.NewFileSet()
	f := fset.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(f, src, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && text == "\n" { // inserted by the scanner
			continue
		}
		first := f.Line(pos)
		for i := range 1 + strings.Count(text, "\n") {
			lines[first+i] = true
		}
	}
}

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
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
				packages.NeedTypesInfo | packages.NeedImports,
			Dir:        m,
			Fset:       fset,
			BuildFlags: []string{"-tags=cluster"},
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
