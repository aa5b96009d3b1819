// Command prose checks the sentences that users read: Markdown pages, texts of rules and dashboards, comments of values.
//
// Usage: prose ROOT [FILE ...]
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
	"gopkg.in/yaml.v3"
)

const (
	maxSentence = 25     // words
	maxDocs     = 25_000 // words of docs without runbooks, as wc -w counts them
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "prose: usage: prose ROOT [FILE ...]")
		os.Exit(2)
	}
	findings, err := run(os.Args[1], os.Args[2:])
	for _, f := range findings {
		fmt.Println(f)
	}
	if err == nil && len(findings) > 0 {
		err = fmt.Errorf("%d findings (rules: CONTRIBUTING.md, Language)", len(findings))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// run checks files of the repository; by default all with prose, and the size of docs.
func run(root string, files []string) ([]string, error) {
	all := len(files) == 0
	if all {
		list, err := exec.Command("git", "-C", root, "ls-files").Output()
		if err != nil {
			return nil, fmt.Errorf("list files: %w", err)
		}
		files = strings.Fields(string(list))
	}
	var findings []string
	words := 0
	for _, name := range files {
		if !hasProse(name) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) { // deleted, and not committed
			continue
		}
		if err != nil {
			return nil, err
		}
		passages, err := passagesOf(name, content)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		for _, p := range passages {
			for _, problem := range p.problems() {
				findings = append(findings, fmt.Sprintf("%s:%d: %s", name, p.line, problem))
			}
		}
		if isPage(name) && !audience.Match(content) {
			findings = append(findings, name+`:3: the page does not begin with its title and a line "For AUDIENCE: TASK."`)
		}
		if strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/runbooks/") {
			words += len(bytes.Fields(content))
		}
	}
	if all && words > maxDocs {
		findings = append(findings, fmt.Sprintf("docs: %d words without runbooks, at most %d", words, maxDocs))
	}
	return findings, nil
}

var audience = regexp.MustCompile(`^# .+\n+For [^:\n]+:`)

// isPage reports whether a file is a page of docs with an audience. Runbooks and ADRs have forms of their own.
func isPage(name string) bool {
	return strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md") &&
		!strings.HasPrefix(name, "docs/runbooks/") && !strings.Contains(name, "/adr/")
}

func hasProse(name string) bool {
	switch filepath.Ext(name) {
	case ".md":
		return !strings.Contains(name, "testdata/")
	case ".yaml", ".json":
		return slices.ContainsFunc(yamlFiles, func(pattern string) bool {
			ok, _ := filepath.Match(pattern, name)
			return ok
		})
	}
	return false
}

var yamlFiles = []string{
	"deploy/rules/podgauge.*.yaml", "dashboards/*.json", "deploy/alertmanager/*.yaml",
	"deploy/helm/podgauge/values.yaml", "deploy/helm/podgauge/examples/*.yaml",
}

// passage is a paragraph, a cell or a text of YAML.
type passage struct {
	line int
	text string
	cell bool // a cell or a heading: not a sentence
}

var (
	//go:embed rules.txt
	ruleList string
	rules    = parseRules(ruleList)

	sentenceEnd = regexp.MustCompile(`[.!?]["')]*\s+|·`)
	badStart    = regexp.MustCompile(`^(One|What|Those|Who) .*[^?]$`)
	// code matches what is no prose inside a YAML text: templates, code spans, addresses, paths, options and names.
	code = regexp.MustCompile("(?s){{.*?}}|`[^`]*`|https?://\\S+|--\\S+|\\S*[/_=]\\S*")
)

type rule struct {
	banned  *regexp.Regexp
	instead string
}

func parseRules(list string) []rule {
	var rules []rule
	for line := range strings.Lines(list) {
		pattern, instead, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok {
			rules = append(rules, rule{regexp.MustCompile(`(?i)(?:^|[^\w-])(` + pattern + `)(?:$|[^\w-])`), instead})
		}
	}
	return rules
}

// problems returns the violations of the rules.
func (p passage) problems() []string {
	var problems []string
	for _, r := range rules {
		if m := r.banned.FindStringSubmatch(p.text); m != nil {
			problems = append(problems, fmt.Sprintf("%q: write %s", m[1], r.instead))
		}
	}
	if p.cell {
		return problems
	}
	for _, sentence := range sentenceEnd.Split(p.text, -1) {
		sentence = strings.TrimSpace(sentence)
		if n := len(strings.Fields(sentence)); n > maxSentence {
			problems = append(problems, fmt.Sprintf("a sentence of %d words, at most %d: %.60s…", n, maxSentence, sentence))
		}
		if badStart.MatchString(sentence) {
			problems = append(problems, fmt.Sprintf("begin with a noun: %.60s…", sentence))
		}
	}
	return problems
}

func passagesOf(name string, content []byte) ([]passage, error) {
	if filepath.Ext(name) == ".md" {
		return markdown(content), nil
	}
	return yamlTexts(content)
}

// markdown returns paragraphs, headings and cells without code.
func markdown(source []byte) []passage {
	var passages []passage
	doc := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n.Kind() {
		case ast.KindParagraph, ast.KindTextBlock, ast.KindHeading, extast.KindTableCell:
			var b strings.Builder
			at := -1
			writeText(&b, n, source, &at)
			cell := n.Kind() == ast.KindHeading || n.Kind() == extast.KindTableCell
			passages = append(passages, passage{1 + bytes.Count(source[:max(at, 0)], []byte("\n")), b.String(), cell})
			return ast.WalkSkipChildren, nil
		}
		return ast.WalkContinue, nil
	})
	return passages
}

// writeText writes the text below a node. A code span counts as a word. The position is of the first text.
func writeText(b *strings.Builder, n ast.Node, source []byte, at *int) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			if *at < 0 {
				*at = c.Segment.Start
			}
			b.Write(c.Segment.Value(source))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.CodeSpan:
			b.WriteString("CODE")
		case *ast.AutoLink, *ast.RawHTML:
		default:
			writeText(b, c, source, at)
		}
	}
}

// yamlTexts returns comments and the values of textKeys.
func yamlTexts(source []byte) ([]passage, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(source, &doc); err != nil {
		return nil, err
	}
	var passages []passage
	add := func(line int, text string) {
		passages = append(passages, passage{line: line, text: code.ReplaceAllString(text, "CODE")})
	}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 1 && c.Kind == yaml.ScalarNode && slices.Contains(textKeys, n.Content[i-1].Value) {
				add(c.Line, c.Value)
			}
			walk(c)
		}
	}
	walk(&doc)
	var comment []string
	for i, line := range append(strings.Split(string(source), "\n"), "") {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if ok && !strings.HasPrefix(text, " ") { // indented: an example
			comment = append(comment, text)
			continue
		}
		if len(comment) > 0 {
			add(i+1-len(comment), strings.Join(comment, "\n"))
			comment = nil
		}
	}
	return passages, nil
}

var textKeys = []string{"summary", "description", "title", "content"}
