package pods

import (
	"fmt"
	"slices"
	"strings"
)

// labelAllowlist are the labels that are kept. Any label may hold what is nobody's
// business in a metric, so none is kept that was not asked for.
type labelAllowlist struct {
	names, prefixes []string
}

// ValidateLabels says what is wrong with Options.Labels: each is a name, or the beginning of
// names and a *.
func ValidateLabels(patterns []string) error {
	_, err := newAllowlist(patterns)
	return err
}

// newAllowlist takes names of labels; one that ends with * means all that begin so.
func newAllowlist(patterns []string) (labelAllowlist, error) {
	var a labelAllowlist
	for _, pattern := range patterns {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		switch {
		case pattern == "" || strings.Contains(prefix, "*"):
			return labelAllowlist{}, fmt.Errorf("label %q is neither a name nor a prefix and a *", pattern)
		case isPrefix:
			a.prefixes = append(a.prefixes, prefix)
		default:
			a.names = append(a.names, pattern)
		}
	}
	return a, nil
}

// has tells whether a label is kept. It makes no string of the name.
func (a *labelAllowlist) has(name []byte) bool {
	return slices.ContainsFunc(a.names, func(n string) bool { return n == string(name) }) ||
		slices.ContainsFunc(a.prefixes, func(p string) bool { return len(name) >= len(p) && p == string(name[:len(p)]) })
}
