package wire

import "strings"

// Interner returns the same string for the same bytes. Use by several goroutines needs a lock.
type Interner struct {
	interned map[string]string
	limit    int
}

// NewInterner returns an Interner with a limit. At the limit it drops all strings: most may be names of deleted pods.
func NewInterner(limit int) Interner { return Interner{map[string]string{}, limit} }

// Intern returns a string of b. Invalid UTF-8 is replaced: names in Kubernetes and label values are valid UTF-8.
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
