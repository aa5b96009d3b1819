package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestPassages checks that prose is extracted with its lines, and that code is not.
func TestPassages(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          []passage
	}{
		{
			"docs/a.md",
			"# Title\n\nFirst `anew` line\nof [a link](x.md) <http://x>.\n\n```\nanew\n```\n\n    anew\n\n| a | b |\n|---|---|\n| cell | `held` |\n\n- `c`\n  item\n<!-- anew -->\n",
			[]passage{
				{1, "Title", heading}, {3, "First CODE line\nof a link LINK.", sentences}, {12, "a", phrase}, {12, "b", phrase},
				{14, "cell", phrase}, {14, "CODE", phrase}, {16, "CODE\nitem", sentences},
			},
		},
		{
			"deploy/rules/podgauge.rules.yaml",
			"# A comment\n# of two lines.\n#   example: anew\nsummary: GPU {{ $labels.gpu }} of a/b failed\nexpr: anew\nlist:\n  - title: T # beside\n",
			[]passage{{4, "GPU CODE of CODE failed", sentences}, {7, "T", phrase}, {7, "beside", sentences}, {1, "A comment\nof two lines.", sentences}},
		},
		{
			"deploy/helm/podgauge/values.yaml",
			"## Title\n\n# -- First\n# line.\na: 1\nb:\n  # -- One.\n  # -- Two.\n  description: |\n    x\n    y\n",
			[]passage{{10, "x\ny\n", sentences}, {3, "First\nline.", sentences}, {7, "One.", sentences}, {8, "Two.", sentences}},
		},
		{
			"deploy/helm/podgauge/templates/NOTES.txt",
			"{{- $x := 1 }}\nA {{ .Values.a }}{{ if .b }} B{{ else }} C{{ end }}.\n\n    anew\n",
			[]passage{{2, "A CODE B.", sentences}},
		},
	} {
		got, err := readerOf(c.name)([]byte(c.content))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s:\ngot  %v, %v\nwant %v", c.name, got, err, c.want)
		}
	}
	for _, name := range []string{"main.go", "internal/testdata/a.md", "deploy/helm/podgauge/files/rules/podgauge.rules.yaml", "deploy/rules/podgauge_test.yaml"} {
		if readerOf(name) != nil {
			t.Errorf("%s: want no passages", name)
		}
	}
}

// TestRules covers a bad and a good text for each rule.
func TestRules(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"First line.\n\nAllocate\nit anew.", `4: term: "anew": write again`},
		{"Allocate it again. `anew`", ""},
		{"The colour of\nutilisation.", `1: spelling: "colour": write color; 2: spelling: "utilisation": write utilization`},
		{"The color of utilization.", ""},
		{"A GPU failed.\nOne GPU failed.", "2: start: begin with a noun or a verb: One GPU failed."},
		{"Why? What is a GPU?", "1: start: begin with a noun or a verb: What is a GPU?"},
		{"Onerous GPUs, one by one.", ""},
		{"# What it does", "1: start: begin with a noun or a verb: What it does"},
		{"# What does it do?", ""},
		{"# Install The Chart\n\nInstall the chart.", `1: heading: "The": write sentence case; 1: heading: "Chart": write sentence case`},
		{"# Install with Helm\n\nInstall with Helm and coreos.com/helm.", ""},
		{strings.Repeat("word ", 25) + "word.", "1: length: 26 words in a sentence, at most 25: word word word word word word word word …"},
		{strings.Repeat("word ", 24) + "word. More of it (yes.) Now.", ""},
		{"| a |\n|---|\n| " + strings.Repeat("word ", 40) + "|", ""},
	} {
		var got []string
		for _, p := range violations(markdown([]byte(c.text))) {
			got = append(got, fmt.Sprintf("%d: %s", p.line, p.text))
		}
		if g := strings.Join(got, "; "); g != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, g, c.want)
		}
	}
}

func TestPage(t *testing.T) {
	for content, want := range map[string]bool{
		"# T\n\nFor administrators: install it.\n":          true,
		"# T\n\nFor administrators: install\nit. Really.\n": true,
		"# T\n\nInstall it for people: now.\n":              false,
		"# T\n\nFor administrators: install it\n\nNow.\n":   false,
		"# T\n": false,
	} {
		if audience.MatchString(content) != want {
			t.Errorf("%q: want %v", content, want)
		}
	}
	for path, want := range map[string]bool{"docs/how-to/a.md": true, "docs/runbooks/A.md": false, "docs/contributing/adr/1.md": false, "README.md": false} {
		if (page{path: path}).isPage() != want {
			t.Errorf("%s: want %v", path, want)
		}
	}
}

// TestSize checks that tables and code count, that runbooks do not count, and that subfolders of docs have no limit.
func TestSize(t *testing.T) {
	pageOf := func(path string, words int) page {
		return page{path, []byte("# T\n\nFor us: it.\n\n" + "```\na b\n```\n\n|a|b|\n|---|---|\n\n" + strings.Repeat("word. ", words-11))}
	}
	full := []page{pageOf("docs/a.md", maxDocs-20), pageOf("docs/b.md", 20), pageOf("docs/runbooks/A.md", 100), pageOf("README.md", 100)}
	if err := check(io.Discard, full, true); err != nil {
		t.Error(err)
	}
	full[1] = pageOf("docs/b.md", 21)
	if err := check(io.Discard, full, true); err == nil {
		t.Error("no error above the limit")
	}
	if err := check(io.Discard, full, false); err != nil {
		t.Error(err)
	}
}
