// Package terms finds phrases in place of the standard terms of the project.
package terms

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

// Match is a banned phrase in a text, with the standard term.
type Match struct {
	Pos             int
	Phrase, Instead string
}

type rule struct {
	banned     *regexp.Regexp
	instead    string
	legitimate *regexp.Regexp // nil if all uses are banned
}

// List is a list of phrases.
type List []rule

var (
	//go:embed rules.txt
	source string

	everywhere, docs, _ = strings.Cut(source, "\n## docs\n")
	// Code has the rules of code and its comments.
	Code = parse(everywhere)
	// Docs has the rules of text for users: the rules of Code, and words with another meaning in Go.
	Docs = slices.Concat(Code, parse(docs))
)

// parse reads rows of three columns: phrases, the standard term, legitimate uses of the phrases.
func parse(rows string) List {
	var rules List
	for row := range strings.Lines(rows) {
		columns := strings.Split(strings.TrimRight(row, "\n"), "\t")
		if len(columns) < 2 {
			continue
		}
		r := rule{banned: phrase(columns[0]), instead: columns[1]}
		if len(columns) > 2 {
			r.legitimate = phrase(columns[2])
		}
		rules = append(rules, r)
	}
	return rules
}

// phrase compiles a pattern, whose blanks also match the end of a line.
func phrase(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
}

// Find returns the findings in a text, without parts of names such as free-form.
func (rules List) Find(text string) []Match {
	var matches []Match
	for _, r := range rules {
		var allowed [][]int
		if r.legitimate != nil {
			allowed = r.legitimate.FindAllStringIndex(text, -1)
		}
		for _, at := range r.banned.FindAllStringIndex(text, -1) {
			legitimate := slices.ContainsFunc(allowed, func(a []int) bool { return a[0] < at[1] && at[0] < a[1] })
			partOfName := strings.HasSuffix(text[:at[0]], "-") || strings.HasPrefix(text[at[1]:], "-")
			if !legitimate && !partOfName {
				matches = append(matches, Match{at[0], text[at[0]:at[1]], r.instead})
			}
		}
	}
	return matches
}
