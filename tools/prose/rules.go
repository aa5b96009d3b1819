package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/golangci/misspell"

	"github.com/podgauge/podgauge/tools/terms"
)

// maxSentence is the limit of the words of a sentence.
const maxSentence = 25

// violation is a finding of a rule.
type violation struct {
	line int
	text string
}

// violations returns the findings in the passages of a file, in the order of lines.
func violations(passages []passage) []violation {
	var found []violation
	lower := lowerWords(passages)
	for _, p := range passages {
		add := func(pos int, format string, args ...any) {
			found = append(found, violation{p.line + strings.Count(p.text[:pos], "\n"), fmt.Sprintf(format, args...)})
		}
		for _, f := range terms.Docs.Find(p.text) {
			add(f.Pos, "term: %q: write %s", f.Phrase, f.Instead)
		}
		_, misspelled := spelling.Replace(p.text)
		for _, d := range misspelled { // a line of the diff counts from 1
			found = append(found, violation{p.line + d.Line - 1, fmt.Sprintf("spelling: %q: write %s", d.Original, d.Corrected)})
		}
		switch p.kind {
		case heading:
			if badStart.MatchString(p.text) && !strings.HasSuffix(p.text, "?") {
				add(0, "start: begin with a noun or a verb: %s", start(p.text))
			}
			for _, w := range titleCase(p.text, lower) {
				add(0, "heading: %q: write sentence case", w)
			}
		case sentences:
			for _, s := range split(p.text) {
				if n := len(strings.Fields(s.text)); n > maxSentence {
					add(s.pos, "length: %d words in a sentence, at most %d: %s", n, maxSentence, start(s.text))
				}
				if badStart.MatchString(s.text) {
					add(s.pos, "start: begin with a noun or a verb: %s", start(s.text))
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b violation) int { return cmp.Compare(a.line, b.line) })
	return found
}

var (
	badStart    = regexp.MustCompile(`^(One|What|Those|Who)\b`)
	sentenceEnd = regexp.MustCompile(`[.!?]["')*]*\s+|\s·\s`)

	spelling = usSpelling()
)

func usSpelling() *misspell.Replacer {
	r := misspell.New()
	r.AddRuleList(misspell.DictAmerican)
	r.Compile()
	return r
}

// sentence has its position in a passage.
type sentence struct {
	pos  int
	text string
}

func split(text string) []sentence {
	var all []sentence
	begin := 0
	for _, end := range append(sentenceEnd.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		if s := text[begin:end[0]]; s != "" {
			all = append(all, sentence{begin, s})
		}
		begin = end[1]
	}
	return all
}

// start returns the first words of a text.
func start(text string) string {
	words := strings.Fields(text)
	if len(words) > 8 {
		words = append(words[:8:8], "…")
	}
	return strings.Join(words, " ")
}

var capitalized = regexp.MustCompile(`[\s(]([A-Z][a-z]+)\b`)

// lowerWords returns the words of sentences, most of them in lower case in contrast to names of products.
func lowerWords(passages []passage) map[string]bool {
	lower := map[string]bool{}
	for _, p := range passages {
		if p.kind == sentences {
			for w := range strings.FieldsSeq(p.text) {
				lower[strings.Trim(w, ".,;:()")] = true
			}
		}
	}
	return lower
}

// titleCase returns the words of a heading that are capitalized only there.
func titleCase(heading string, lower map[string]bool) []string {
	var found []string
	for _, m := range capitalized.FindAllStringSubmatch(heading, -1) {
		if lower[strings.ToLower(m[1])] {
			found = append(found, m[1])
		}
	}
	return found
}
