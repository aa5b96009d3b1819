package main

import (
	_ "embed"
	"regexp"
	"strings"

	"github.com/podgauge/podgauge/tools/terms"
)

// words counts the words of comments or strings.
type words struct {
	all, pronouns int
	banned        []string
}

func (w *words) add(o words) {
	w.all += o.all
	w.pronouns += o.pronouns
	w.banned = append(w.banned, o.banned...)
}

// minWords is the least number of words for a share.
const minWords = 50

// share returns the percentage of pronouns; 0 for fewer than minWords words.
func (w *words) share() float64 {
	if w.all < minWords {
		return 0
	}
	return 100 * float64(w.pronouns) / float64(w.all)
}

var (
	//go:embed pronouns.txt
	pronounList string // pronouns and relatives; "this" is mostly an adjective

	pronouns = set(pronounList)
	word     = regexp.MustCompile(`[A-Za-z]+('[a-z]+)?`)
	// name matches paths, keys, identifiers and flags.
	name = regexp.MustCompile(`\S*[/_"\x60]\S*|--\S+`)
)

func set(list string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(list) {
		m[w] = true
	}
	return m
}

// count adds the words of a text.
func (w *words) count(text string) {
	text = name.ReplaceAllString(text, "")
	for _, s := range word.FindAllString(text, -1) {
		w.all++
		if pronouns[strings.ToLower(s)] {
			w.pronouns++
		}
	}
	for _, f := range terms.Code.Find(text) {
		w.banned = append(w.banned, strings.ToLower(f.Phrase))
	}
}
