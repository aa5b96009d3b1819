package pods

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// labelAllowlist selects the labels to keep. Labels may hold private data, so there is no default.
type labelAllowlist []labelPattern

// labelPattern is the name of a label, or a prefix of names.
type labelPattern struct {
	text     []byte
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
		a = append(a, labelPattern{[]byte(text), isPrefix})
	}
	return a, nil
}

// has reports whether to keep a label. It does not allocate.
func (a labelAllowlist) has(name []byte) bool {
	return slices.ContainsFunc(a, func(p labelPattern) bool {
		return bytes.Equal(name, p.text) || p.isPrefix && bytes.HasPrefix(name, p.text)
	})
}
