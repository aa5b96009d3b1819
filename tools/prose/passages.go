package main

import (
	"bytes"
	"path"
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

// passage is a text without code.
type passage struct {
	line int // of its first word
	text string
	kind passageKind
}

type passageKind int

const (
	sentences passageKind = iota
	heading
	phrase // cell of a table, title or label: often no sentence
)

// readerOf returns the function for a file's passages; nil if it has none.
func readerOf(name string) func(content []byte) ([]passage, error) {
	switch {
	case strings.Contains(name, "testdata/"):
	case path.Ext(name) == ".md":
		return func(b []byte) ([]passage, error) { return markdown(b), nil }
	case path.Base(name) == "NOTES.txt":
		return func(b []byte) ([]passage, error) { return markdown(withoutActions(b)), nil }
	case slices.ContainsFunc(yamlFiles, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // fails for malformed patterns only
		return ok
	}):
		return yamlTexts
	}
	return nil
}

// yamlFiles are the YAML and JSON files for users, without the chart's copies.
var yamlFiles = []string{
	"deploy/*.yaml", "deploy/rules/podgauge.*.yaml", "deploy/alertmanager/*.yaml", "deploy/prometheus/*.yaml", "dashboards/*.json",
	"deploy/helm/podgauge/*.yaml", "deploy/helm/podgauge/examples/*.yaml", ".github/ISSUE_TEMPLATE/*.yml",
}

// textKeys are the keys of YAML texts.
var textKeys = []string{"summary", "description", "title", "content", "label", "about", "noValue", "placeholder"}

// markdown returns the paragraphs, headings and cells of a page.
func markdown(source []byte) []passage {
	var passages []passage
	page := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	_ = ast.Walk(page, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		p := passage{kind: sentences}
		switch n.Kind() {
		case ast.KindParagraph, ast.KindTextBlock:
		case ast.KindHeading:
			p.kind = heading
		case extast.KindTableCell:
			p.kind = phrase
		default:
			return ast.WalkContinue, nil
		}
		if n.Lines().Len() > 0 {
			p.line = 1 + bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
			p.text = textOf(n, source)
			passages = append(passages, p)
		}
		return ast.WalkSkipChildren, nil
	})
	return passages
}

// textOf returns the text below a node, line by line. A code span is one word.
func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			b.Write(c.Segment.Value(source))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.CodeSpan:
			b.WriteString("CODE")
		case *ast.AutoLink:
			b.WriteString("LINK")
		case *ast.RawHTML:
		default:
			b.WriteString(textOf(c, source))
		}
	}
	return b.String()
}

var (
	control = regexp.MustCompile(`{{-? *(?:(?:if|else|end|range|with)\b|\$\w+ *:=)[^\n]*?}}`)
	other   = regexp.MustCompile(`{{-? *else\b[^\n]*?{{-? *end *-?}}`) // in one line
	action  = regexp.MustCompile(`{{[^\n]*?}}`)
)

// withoutActions replaces the actions of a template, with the first text of each condition.
func withoutActions(template []byte) []byte {
	return action.ReplaceAll(control.ReplaceAll(other.ReplaceAll(template, nil), nil), []byte("CODE"))
}

// yamlCode matches code in the text of YAML: templates, code spans, addresses, paths, options and names.
var yamlCode = regexp.MustCompile("(?s){{.*?}}|`[^`]*`|https?://\\S+|--\\S+|[^\\s(]*[/_=]\\S*")

// yamlTexts returns the comments and the values of textKeys.
func yamlTexts(source []byte) ([]passage, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(source, &doc); err != nil {
		return nil, err
	}
	var passages []passage
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.LineComment != "" {
			passages = append(passages, yamlPassage(n.Line, strings.TrimLeft(n.LineComment, "# "), sentences))
		}
		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 1 && c.Kind == yaml.ScalarNode {
				passages = append(passages, valueOf(n.Content[i-1].Value, c)...)
			}
			walk(c)
		}
	}
	walk(&doc)
	return append(passages, comments(source)...), nil
}

func yamlPassage(line int, text string, kind passageKind) passage {
	code := func(s string) string { return "CODE" + strings.Repeat("\n", strings.Count(s, "\n")) }
	return passage{line, yamlCode.ReplaceAllStringFunc(text, code), kind}
}

// valueOf returns the passage of a value, or none.
func valueOf(key string, n *yaml.Node) []passage {
	if !slices.Contains(textKeys, key) {
		return nil
	}
	kind := sentences
	if key == "title" || key == "label" {
		kind = phrase
	}
	if n.Style&yaml.LiteralStyle != 0 {
		return []passage{yamlPassage(n.Line+1, n.Value, kind)}
	}
	return []passage{yamlPassage(n.Line, strings.ReplaceAll(n.Value, "\n", " "), kind)} // lines are folded
}

// comment matches a line of a comment, and what helm-docs reads of it. An indented comment is an example.
var comment = regexp.MustCompile(`^ *# (-- |#+ )?([^ ].*)$`)

// comments returns the comments that are whole lines.
func comments(source []byte) []passage {
	var passages []passage
	var lines []string
	first := 0
	end := func() {
		if lines != nil {
			passages = append(passages, yamlPassage(first, strings.Join(lines, "\n"), sentences))
			lines = nil
		}
	}
	for i, line := range strings.Split(string(source), "\n") {
		m := comment.FindStringSubmatch(line)
		if m == nil || m[1] != "" {
			end()
		}
		if m == nil {
			continue
		}
		if lines == nil {
			first = i + 1
		}
		lines = append(lines, m[2])
	}
	end()
	return passages
}
