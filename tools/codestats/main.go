// Command codestats counts the lines of the repository and checks the limits
// of limits.json. A file of a package may only refer to files below it.
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

// limits of the repository. They only fall.
type limits struct {
	// Lines of code without comments and blank lines.
	Daemon, Simulator, Generators, Compat, Host, Kube int
	Tests, KubeTests, CompatTests                     int // lines
}

func (l limits) check(files []*file) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	lines, code := sums(files)
	for _, row := range []struct {
		kind       kind
		lines, max int
	}{
		{daemon, code[daemon], l.Daemon}, {simulator, code[simulator], l.Simulator},
		{generator, code[generator], l.Generators}, {compat, code[compat], l.Compat},
		{host, code[host], l.Host}, {kube, code[kube], l.Kube},
		{test, lines[test], l.Tests}, {kubeTest, lines[kubeTest], l.KubeTests},
		{compatTest, lines[compatTest], l.CompatTests},
	} {
		if row.lines > row.max {
			fail("%s: %d lines, at most %d", row.kind, row.lines, row.max)
		}
	}
	pkgs := packagesOf(files)
	for _, dir := range slices.Sorted(maps.Keys(pkgs)) {
		if up, _ := upward(pkgs[dir]); len(up) > 0 {
			fail("%s: %d references run upward: %s", dir, len(up), strings.Join(up, ", "))
		}
	}
	return errors.Join(errs...)
}

func sums(files []*file) (lines, code [kinds]int) {
	for _, f := range files {
		lines[f.kind] += f.lines
		code[f.kind] += f.code
	}
	return lines, code
}

func printTable(files []*file) {
	lines, code := sums(files)
	fmt.Println("kind\tlines\tof code")
	for k := range kinds {
		fmt.Printf("%s\t%d\t%d\n", k, lines[k], code[k])
	}
	pkgs := packagesOf(files)
	fmt.Println("\npackage\tlines\tof code\tupward of references")
	for _, dir := range slices.Sorted(maps.Keys(pkgs)) {
		var lines, code int
		for _, f := range pkgs[dir] {
			lines += f.lines
			code += f.code
		}
		up, references := upward(pkgs[dir])
		fmt.Printf("%s\t%d\t%d\t%d of %d\n", dir, lines, code, len(up), references)
	}
}

// packagesOf returns the files without tests of each folder.
func packagesOf(files []*file) map[string][]*file {
	pkgs := map[string][]*file{}
	for _, f := range files {
		if f.kind != test && f.kind != kubeTest {
			pkgs[f.dir] = append(pkgs[f.dir], f)
		}
	}
	return pkgs
}
