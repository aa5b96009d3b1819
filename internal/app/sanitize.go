package app

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sanitize is the text as a terminal may have it. Names come from drivers, kubelets and
// whoever answers: one with an escape sequence in it does not get to move the cursor, and
// one that turns the direction of writing does not get to look like another.
func sanitize(text string) string {
	if strings.IndexFunc(text, isUnprintable) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case !isUnprintable(r):
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"): // a byte that is no UTF-8
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// sanitizeLines is a text of several lines as a terminal may have it. JSON stays the same:
// what is not printed in it is within strings, and escaped as there.
func sanitizeLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = sanitize(lines[i])
	}
	return strings.Join(lines, "\n")
}

// isUnprintable characters are those that do not show as themselves.
func isUnprintable(r rune) bool {
	return r == utf8.RuneError || !unicode.IsPrint(r)
}
