package main

import (
	"regexp"
	"strings"
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

// share returns the percentage of pronouns.
func (w *words) share() float64 {
	if w.all < 50 { // too few to say
		return 0
	}
	return 100 * float64(w.pronouns) / float64(w.all)
}

var (
	word = regexp.MustCompile(`[A-Za-z]+('[a-z]+)?`)
	// bannedPhrase matches what people of this field do not write (CONTRIBUTING.md, Language).
	bannedPhrase = regexp.MustCompile(`(?i)\b(whoever|nobody|somebody|anew|no more|whatever|meanwhile|says|said|tells|told|whose it is|has not|have not|holders?|holdings?|refusals?|turned away|condemn(s|ed)?|ledgers?|witness(es)?|patients?|wards?|victims?|card|cards|heals?|healed|mend(s|ed)?|probation)\b`)
)

// pronouns and relatives. "this" is left out: it is an adjective more often.
var pronoun = set(`i me my we us our you your he him his she her it its itself they them their theirs themselves
who whom whose which what that these those one ones none nobody somebody anybody everybody nothing something anything
everything other others another whoever whatever`)

func set(list string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(list) {
		m[w] = true
	}
	return m
}

// count adds the words of a text.
func (w *words) count(text string) {
	for _, s := range word.FindAllString(text, -1) {
		w.all++
		if pronoun[strings.ToLower(s)] {
			w.pronouns++
		}
	}
	for _, s := range bannedPhrase.FindAllString(text, -1) {
		w.banned = append(w.banned, strings.ToLower(s))
	}
}
