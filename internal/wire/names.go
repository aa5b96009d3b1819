package wire

import "strings"

// Names keep strings that come again with every message. It has no lock: it belongs to
// whoever reads.
type Names struct {
	kept map[string]string
	most int
}

// NewNames makes Names that keep so many strings. When there would be more they begin
// anew: the names may be of pods long gone.
func NewNames(most int) Names { return Names{map[string]string{}, most} }

// Of makes a string of b. What is not UTF-8 cannot be a name in Kubernetes, nor a
// label's value, and is replaced.
func (n Names) Of(b []byte) string {
	if s, ok := n.kept[string(b)]; ok {
		return s
	}
	if len(n.kept) >= n.most {
		clear(n.kept)
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	n.kept[string(b)] = s
	return s
}
