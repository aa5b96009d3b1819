// Command prose checks the text for users: Markdown pages, texts of rules and dashboards, comments of values.
//
// Usage: prose [-words] ROOT [FILE ...]
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// maxDocs is the limit of the words of docs without runbooks.
const maxDocs = 25_000

func main() {
	words := flag.Bool("words", false, "print the number of words of each page of docs")
	flag.Parse()
	if flag.NArg() < 1 {
		fmt.Fprintln(os.Stderr, "prose: usage: prose [-words] ROOT [FILE ...]")
		os.Exit(2)
	}
	files, err := read(flag.Arg(0), flag.Args()[1:])
	if err == nil && *words {
		printWords(files)
		return
	}
	if err == nil {
		err = check(os.Stdout, files, flag.NArg() == 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// page has the path within the repository.
type page struct {
	path    string
	content []byte
}

// read returns the files, by default all files in git that have prose.
func read(root string, paths []string) ([]page, error) {
	if len(paths) == 0 {
		list, err := exec.Command("git", "-C", root, "ls-files", "-co", "--deduplicate", "--exclude-standard").Output()
		if err != nil {
			return nil, fmt.Errorf("list files: %w", err)
		}
		paths = strings.Fields(string(list))
	}
	var files []page
	for _, path := range paths {
		if readerOf(path) == nil {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, os.ErrNotExist) { // deleted, not yet committed
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, page{path, content})
	}
	return files, nil
}

// check prints the findings, and returns an error after any finding.
func check(w io.Writer, files []page, all bool) error {
	n := 0
	report := func(format string, args ...any) {
		fmt.Fprintf(w, format+"\n", args...)
		n++
	}
	docs := 0
	for _, f := range files {
		passages, err := readerOf(f.path)(f.content)
		if err != nil {
			return fmt.Errorf("read %s: %w", f.path, err)
		}
		if f.isPage() && !audience.Match(f.content) {
			report(`%s:1: page: begin with the title and a line "For AUDIENCE: TASK."`, f.path)
		}
		for _, p := range violations(passages) {
			report("%s:%d: %s", f.path, p.line, p.text)
		}
		if f.limited() {
			docs += f.words()
		}
	}
	if all && docs > maxDocs {
		report("docs: size: %d words without runbooks, at most %d", docs, maxDocs)
	}
	if n > 0 {
		return fmt.Errorf("%d findings (rules: tools/terms/rules.txt and CONTRIBUTING.md)", n)
	}
	return nil
}

var audience = regexp.MustCompile(`^# .+\n+For [^:.]+: (?:[^\n]+\n)*?[^\n]*\.(?:\s|$)`)

// isPage reports whether a file is a page of docs with an audience. Runbooks and ADRs have forms of their own.
func (f page) isPage() bool { return f.limited() && !strings.Contains(f.path, "/adr/") }

// limited reports whether the words of a file count for maxDocs.
func (f page) limited() bool {
	return strings.HasPrefix(f.path, "docs/") && !strings.HasPrefix(f.path, "docs/runbooks/")
}

// words returns the number of words of a page, as wc -w does: text, tables and code blocks.
func (f page) words() int { return len(strings.Fields(string(f.content))) }

func printWords(files []page) {
	runbooks, others := 0, 0
	for _, f := range files {
		if !strings.HasPrefix(f.path, "docs/") {
			continue
		}
		if f.limited() {
			others += f.words()
		} else {
			runbooks += f.words()
		}
		fmt.Printf("%6d %s\n", f.words(), f.path)
	}
	fmt.Printf("%6d runbooks\n%6d other pages\n", runbooks, others)
}
