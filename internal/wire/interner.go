package wire

import "strings"

// Interner keep strings that come again with every message. It has no lock: it belongs to
// whoever reads.
type Interner struct {
	interned map[string]string
	limit    int
}

// NewInterner makes Names that keep so many strings. When there would be more they begin
// anew: the names may be of pods long gone.
func NewInterner(limit int) Interner { return Interner{map[string]string{}, limit} }

// Intern makes a string of b. What is not UTF-8 cannot be a name in Kubernetes, nor a
// label's value, and is replaced.
func (n Interner) Intern(b []byte) string {
	if s, ok := n.interned[string(b)]; ok {
		return s
	}
	if len(n.interned) >= n.limit {
		clear(n.interned)
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	n.interned[string(b)] = s
	return s
}
