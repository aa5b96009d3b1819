package text

import (
	"net"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzPrintable checks that the output has no control characters, and that a clean text is unchanged.
func FuzzPrintable(f *testing.F) {
	for _, seed := range []string{"", "a-b.c", "\x1b[31m", "é\u202e", "\xff\xfe", "\uFFFD", "\x9b", "a\nb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		isClean := func(s string) bool {
			return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
		}
		if got := Printable(text); !isClean(got) || isClean(text) && got != text {
			t.Errorf("%q: got %q", text, got)
		}
		if got := PrintableLines(text); strings.Count(got, "\n") != strings.Count(text, "\n") || !isClean(strings.ReplaceAll(got, "\n", "")) {
			t.Errorf("lines of %q: got %q", text, got)
		}
	})
}

func TestJoinFirst(t *testing.T) {
	for names, want := range map[string]string{"": "", "a": "a", "a b c": "a, b, c", "a b c d e": "a, b, c, 2 more"} {
		if got := JoinFirst(strings.Fields(names)); got != want {
			t.Errorf("%s: got %s", names, got)
		}
	}
}

func TestCheckSocketPath(t *testing.T) {
	dir := t.TempDir()
	for _, length := range []int{106, 107, 108} {
		path := dir + "/" + strings.Repeat("a", length-len(dir)-1)
		l, listenErr := net.Listen("unix", path)
		if listenErr == nil {
			l.Close()
		}
		if err := CheckSocketPath(path); (err == nil) != (listenErr == nil) {
			t.Errorf("%d bytes: got %v, the kernel has %v", length, err, listenErr)
		}
	}
}
