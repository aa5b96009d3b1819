// Command codestats measures the code of the repository and checks the limits of limits.json.
//
// Usage: codestats [-check] ROOT
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "fail if a limit is exceeded")
	flag.Parse()
	root, err := filepath.Abs(flag.Arg(0))
	if err == nil {
		err = run(root, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "codestats:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	files, err := parse(root)
	if err != nil {
		return err
	}
	if err := resolve(root, files); err != nil {
		return err
	}
	if !check {
		printTable(files)
		return nil
	}
	b, err := os.ReadFile(filepath.Join(root, "tools", "codestats", "limits.json"))
	if err != nil {
		return err
	}
	var l limits
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("parse limits.json: %w", err)
	}
	return l.check(files)
}

// kind of a file in the count of lines.
type kind int

const (
	production kind = iota
	simulator
	helper // of tests: everything below test and tools, demonstrations
	test
	kinds
)

func (k kind) String() string {
	return [...]string{"production", "simulator", "test helpers", "tests"}[k]
}

// file is a parsed Go file.
type file struct {
	dir, name string
	kind      kind
	lines     int
	exported  int      // package-level names, methods and fields of exported types excluded
	types     []string // package-level type names
	comments  words
	strings   words
	uses      map[*file]bool // files of the same package with declarations for this file
}

func kindOf(path string) kind {
	switch dir := filepath.Dir(path) + "/"; {
	case strings.HasSuffix(path, "_test.go"):
		return test
	case strings.HasPrefix(dir, "internal/sim/"), dir == "cmd/podgauge-sim/":
		return simulator
	case strings.HasPrefix(dir, "test/"), strings.HasPrefix(dir, "tools/"), dir == "cmd/demo/", strings.HasSuffix(dir, "test/"):
		return helper
	default:
		return production
	}
}

// limits of the code. The limits of single packages are exceptions, and only fall.
type limits struct {
	Production  int                // lines
	NonTest     int                // lines
	Upward      int                // references against the order of a package's files
	Pronouns    float64            // percent of a package's words
	Shared      []string           // type names for several packages
	UpwardOf    map[string]int     // exceptions
	PronounsOf  map[string]float64 // exceptions
	DuplicateOf map[string]bool    // type names still in several packages
	BannedOf    map[string]int     // banned words still in a package
}

func (l limits) check(files []*file) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var lines [kinds]int
	for _, f := range files {
		lines[f.kind] += f.lines
	}
	if lines[production] > l.Production {
		fail("%d lines of production code, at most %d", lines[production], l.Production)
	}
	if n := lines[production] + lines[simulator] + lines[helper]; n > l.NonTest {
		fail("%d lines of Go without tests, at most %d", n, l.NonTest)
	}
	for name, dirs := range duplicates(files) {
		if !slices.Contains(l.Shared, name) && !l.DuplicateOf[name] {
			fail("type %s is declared in %s", name, strings.Join(dirs, " and "))
		}
	}
	for dir, p := range packagesOf(files) {
		limit := l.Upward
		if n, ok := l.UpwardOf[dir]; ok {
			limit = n
		}
		if up, _, which := upward(p); up > limit {
			fail("%s: %d references run upward, at most %d: %s", dir, up, limit, strings.Join(which, ", "))
		}
		share := l.Pronouns
		if n, ok := l.PronounsOf[dir]; ok {
			share = n
		}
		w := wordsOf(p)
		if w.share() > share {
			fail("%s: %.1f %% of the words in comments and strings are pronouns, at most %.1f %%", dir, w.share(), share)
		}
		if len(w.banned) > l.BannedOf[dir] {
			fail("%s: banned words (terms are in CONTRIBUTING.md): %s", dir, strings.Join(w.banned, ", "))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func printTable(files []*file) {
	var lines [kinds]int
	var exported, nonTest int
	for _, f := range files {
		lines[f.kind] += f.lines
		if f.kind != test {
			nonTest++
		}
		if f.kind == production {
			exported += f.exported
		}
	}
	pkgs := packagesOf(files)
	for k, n := range lines {
		fmt.Printf("lines, %s\t%d\n", kind(k), n)
	}
	fmt.Printf("files without tests\t%d\n", nonTest)
	fmt.Printf("packages\t%d\n", len(pkgs))
	fmt.Printf("exported names per 1,000 lines of production\t%.0f\n", 1000*float64(exported)/float64(lines[production]))
	d := duplicates(files)
	names := make([]string, 0, len(d))
	for n := range d {
		names = append(names, n)
	}
	slices.Sort(names)
	fmt.Printf("type names in several packages\t%d\t%s\n", len(names), strings.Join(names, " "))
	var all words
	dirs := make([]string, 0, len(pkgs))
	for dir := range pkgs {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	fmt.Println("\npackage\tlines\tupward of references\tpronouns %\tbanned words")
	for _, dir := range dirs {
		p := pkgs[dir]
		n := 0
		for _, f := range p {
			n += f.lines
		}
		up, of, _ := upward(p)
		w := wordsOf(p)
		all.add(w)
		fmt.Printf("%s\t%d\t%d of %d\t%.1f\t%d %s\n", dir, n, up, of, w.share(), len(w.banned), counts(w.banned))
	}
	fmt.Printf("all\t\t\t%.1f\t%d\n", all.share(), len(all.banned))
}

// counts returns the number of each word.
func counts(ws []string) string {
	n := map[string]int{}
	for _, w := range ws {
		n[w]++
	}
	var out []string
	for w, c := range n {
		out = append(out, fmt.Sprintf("%s %d", w, c))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// packagesOf returns the files without tests of each folder.
func packagesOf(files []*file) map[string][]*file {
	pkgs := map[string][]*file{}
	for _, f := range files {
		if f.kind != test {
			pkgs[f.dir] = append(pkgs[f.dir], f)
		}
	}
	return pkgs
}

func wordsOf(files []*file) words {
	var w words
	for _, f := range files {
		w.add(f.comments)
		w.add(f.strings)
	}
	return w
}

// duplicates returns the folders of type names in several packages.
func duplicates(files []*file) map[string][]string {
	dirs := map[string][]string{}
	for _, f := range files {
		if f.kind == test {
			continue
		}
		for _, t := range f.types {
			if !slices.Contains(dirs[t], f.dir) {
				dirs[t] = append(dirs[t], f.dir)
			}
		}
	}
	for t, d := range dirs {
		if len(d) < 2 {
			delete(dirs, t)
		}
	}
	return dirs
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
