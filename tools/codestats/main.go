// Command codestats measures the code of the repository and checks the limits of limits.json.
//
// Usage: codestats [-check] ROOT
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
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
	Production int            // lines
	NonTest    int            // lines
	Upward     int            // references against the order of a package's files
	Pronouns   float64        // percent of a package's words
	Shared     []string       // type names for several packages
	BannedOf   map[string]int // banned words still in a package
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
		if !slices.Contains(l.Shared, name) {
			fail("type %s is declared in %s", name, strings.Join(dirs, " and "))
		}
	}
	for _, f := range files {
		if f.kind == test && len(f.comments.banned) > 0 { // strings of tests are test data
			fail("%s: banned words in comments (terms are in tools/terms/rules.txt): %s", filepath.Join(f.dir, f.name), strings.Join(f.comments.banned, ", "))
		}
	}
	for dir, p := range packagesOf(files) {
		if up, _ := upward(p); len(up) > l.Upward {
			fail("%s: %d references run upward, at most %d: %s", dir, len(up), l.Upward, strings.Join(up, ", "))
		}
		w := wordsOf(p)
		if w.share() > l.Pronouns {
			fail("%s: %.1f %% of the words in comments and strings are pronouns, at most %.1f %%", dir, w.share(), l.Pronouns)
		}
		if len(w.banned) > l.BannedOf[dir] {
			fail("%s: banned words (terms are in tools/terms/rules.txt): %s", dir, strings.Join(w.banned, ", "))
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
	names := slices.Sorted(maps.Keys(duplicates(files)))
	fmt.Printf("type names in several packages\t%d\t%s\n", len(names), strings.Join(names, " "))
	var all words
	fmt.Println("\npackage\tlines\tupward of references\tpronouns %\tbanned words")
	for _, dir := range slices.Sorted(maps.Keys(pkgs)) {
		p := pkgs[dir]
		n := 0
		for _, f := range p {
			n += f.lines
		}
		up, references := upward(p)
		w := wordsOf(p)
		all.add(w)
		fmt.Printf("%s\t%d\t%d of %d\t%.1f\t%d\n", dir, n, len(up), references, w.share(), len(w.banned))
	}
	fmt.Printf("all\t\t\t%.1f\t%d\n", all.share(), len(all.banned))
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
	maps.DeleteFunc(dirs, func(_ string, in []string) bool { return len(in) < 2 })
	return dirs
}
