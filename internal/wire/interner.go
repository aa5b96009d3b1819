package wire

import "strings"

// Interner returns the same string for the same bytes. It is not safe for concurrent use.
type Interner struct {
	interned map[string]string
	limit    int
}

// NewInterner returns an Interner that drops all strings at a limit: most may be names of pods that are gone.
func NewInterner(limit int) Interner { return Interner{map[string]string{}, limit} }

// Intern returns a string of b. Bytes that are not UTF-8 are replaced, since neither Kubernetes' names nor label values may have them.
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
