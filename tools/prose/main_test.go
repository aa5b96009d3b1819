package main

import (
	"slices"
	"strings"
	"testing"
)

// texts has the passages of a Markdown page and of a YAML file.
func texts(t *testing.T, name, content string) []string {
	t.Helper()
	passages, err := passagesOf(name, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range passages {
		all = append(all, p.text)
	}
	return all
}

func TestPassages(t *testing.T) {
	page := "# Title\n\nFirst `code` line\nof [a link](x.md).\n\n```\nanew\n```\n\n| a | b |\n|---|---|\n| cell | `held` |\n\n- item\n"
	if got, want := texts(t, "a.md", page), []string{"Title", "First CODE line\nof a link.", "a", "b", "cell", "CODE", "item"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	rules := "# A comment\n# of two lines.\nsummary: GPU {{ $labels.gpu }} failed\nexpr: anew\nlist:\n  - title: T # beside\n"
	if got, want := texts(t, "a.yaml", rules), []string{"GPU CODE failed", "T", "A comment\nof two lines."}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		"The device is allocated again.":                          "",
		"The device is given away anew.":                          `"anew"`,
		"Kubernetes says so.":                                     `"says": write reports`,
		"Holder of it.":                                           `"Holder"`,
		"The household grows.":                                    "",
		"One GPU failed.":                                         "begin with a noun",
		"What is a GPU?":                                          "",
		"The colour of utilisation.":                              `"colour`,
		strings.Repeat("word ", 24) + "word.":                     "",
		strings.Repeat("word ", 25) + "word.":                     "a sentence of 26 words",
		strings.Repeat("word ", 20) + "end. " + "More of it now.": "",
	} {
		got := strings.Join(passage{line: 1, text: text}.problems(), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := (passage{text: strings.Repeat("word ", 40), cell: true}).problems(); got != nil {
		t.Errorf("a cell: %q", got)
	}
}

// TestRules: each rule finds something, so no line of rules.txt is lost.
func TestRules(t *testing.T) {
	if n := strings.Count(ruleList, "\t"); len(rules) != n || n < 20 {
		t.Errorf("%d rules of %d lines", len(rules), n)
	}
}

func TestAudience(t *testing.T) {
	for page, want := range map[string]bool{
		"# T\n\nFor administrators: install it.\n": true,
		"# T\n\nInstall it for people: now.\n":     false,
		"# T\n":                                    false,
	} {
		if audience.MatchString(page) != want {
			t.Errorf("%q: want %v", page, want)
		}
	}
}
