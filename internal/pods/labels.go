package pods

import (
	"fmt"
	"slices"
	"strings"
)

// labelAllowlist selects the labels to keep. Labels may hold private data, so
// there is no default.
type labelAllowlist []labelPattern

// labelPattern is the name of a label, or a prefix of names.
type labelPattern struct {
	text     string
	isPrefix bool
}

// ValidateLabels checks Options.Labels: each is a name, or a prefix and a *.
func ValidateLabels(patterns []string) error {
	_, err := newAllowlist(patterns)
	return err
}

func newAllowlist(patterns []string) (labelAllowlist, error) {
	var a labelAllowlist
	for _, pattern := range patterns {
		text, isPrefix := strings.CutSuffix(pattern, "*")
		if pattern == "" || strings.Contains(text, "*") {
			return nil, fmt.Errorf("label %q is neither a name nor a prefix followed by *", pattern)
		}
		a = append(a, labelPattern{text, isPrefix})
	}
	return a, nil
}

// has reports whether to keep a label.
func (a labelAllowlist) has(name string) bool {
	return slices.ContainsFunc(a, func(p labelPattern) bool {
		return name == p.text || p.isPrefix && strings.HasPrefix(name, p.text)
	})
}
