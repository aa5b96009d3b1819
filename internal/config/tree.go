package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// What a file may cost. A ConfigMap is 1 MiB at most; a config that anyone wrote
// has some dozens of values, eight levels deep at most.
const (
	maxFileBytes = 1 << 20
	mostValues   = 20000
	mostDepth    = 32
)

// node is a value of a file, with its aliases put in and its merges done.
type node struct {
	line    int
	kind    yaml.Kind // ScalarNode, SequenceNode or MappingNode
	tag     string    // of a scalar: "!!str", "!!int", "!!bool", "!!null" …
	text    string    // of a scalar
	plain   bool      // a scalar without quotes
	items   []*node   // of a sequence
	entries []entry   // of a mapping
}

type entry struct {
	key   string
	line  int
	value *node
}

// ParseError is what is wrong with a file, and where.
type ParseError struct {
	line    int    // 0: the file as a whole
	path    string // of the key: "flags.migStrategy"
	message string
}

func (f ParseError) Error() string {
	if f.path == "" {
		return f.message
	}
	return quoteUnprintable(f.path) + ": " + f.message
}

// quoteUnprintable quotes names that would not stay on their line, or that a terminal
// would act on, and lists them.
func quoteUnprintable(names ...string) string {
	quoted := slices.Clone(names)
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			quoted[i] = strconv.Quote(name)
		}
	}
	return strings.Join(quoted, ", ")
}

func newParseError(line int, format string, args ...any) error {
	return ParseError{line: line, message: fmt.Sprintf(format, args...)}
}

// withPath says which key an error is about, unless that is known better already.
func withPath(path string, n *node, err error) error {
	var f ParseError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &f):
		return ParseError{line: n.line, path: path, message: err.Error()}
	case f.path == "":
		f.path = path
	}
	return f
}

// null tells a key that is there but says nothing: that is as good as absent.
func (n *node) null() bool { return n.kind == yaml.ScalarNode && n.tag == "!!null" }

func (n *node) get(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// parseTree reads one document of YAML, of which JSON is a part.
func parseTree(data []byte) (*node, error) {
	if len(data) > maxFileBytes {
		return nil, newParseError(0, "more than %d MiB", maxFileBytes>>20)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, newParseError(0, "is empty")
	} else if err != nil {
		return nil, syntaxError(err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, newParseError(more.Line, "a second document; want one")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err)
	}
	g := grower{left: mostValues}
	return g.grow(document.Content[0], mostDepth)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)

// syntaxError takes the line out of an error of the library's.
func syntaxError(err error) error {
	found := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(found[1]) //nolint:errcheck // no line is line 0
	return newParseError(line, "%s", strings.Join(strings.Fields(found[2]), " "))
}

// grower makes a tree of what the library read. There an alias is a pointer to
// what it stands for, so that a file of a few lines can stand for billions of
// values, or for itself; here each use costs.
type grower struct{ left int }

func (g *grower) grow(y *yaml.Node, depth int) (*node, error) {
	if g.left--; g.left < 0 {
		return nil, newParseError(y.Line, "more than %d values", mostValues)
	}
	if depth < 0 {
		return nil, newParseError(y.Line, "nested more than %d levels deep", mostDepth)
	}
	switch y.Kind {
	case yaml.AliasNode:
		return g.grow(y.Alias, depth-1)
	case yaml.SequenceNode:
		n := &node{line: y.Line, kind: y.Kind}
		for _, item := range y.Content {
			grown, err := g.grow(item, depth-1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, grown)
		}
		return n, nil
	case yaml.MappingNode:
		return g.mapping(y, depth)
	}
	return &node{
		line: y.Line, kind: yaml.ScalarNode, tag: y.ShortTag(), text: y.Value,
		plain: y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0,
	}, nil
}

func (g *grower) mapping(y *yaml.Node, depth int) (*node, error) {
	n := &node{line: y.Line, kind: y.Kind}
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		value, err := g.grow(y.Content[i+1], depth-1)
		switch {
		case err != nil:
			return nil, err
		case key.Kind != yaml.ScalarNode:
			return nil, newParseError(key.Line, "a key that is not a word")
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
			continue
		}
		if n.get(key.Value) != nil {
			return nil, newParseError(key.Line, "%s is given twice", strconv.Quote(key.Value))
		}
		n.entries = append(n.entries, entry{key: key.Value, line: key.Line, value: value})
	}
	for _, from := range merged {
		if err := n.merge(from); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// merge adds what "<<" names. What a mapping says itself beats what it merges,
// and of several the first does.
func (n *node) merge(from *node) error {
	switch from.kind {
	case yaml.SequenceNode:
		for _, item := range from.items {
			if item.kind != yaml.MappingNode {
				return newParseError(item.line, "<<: want a mapping")
			}
			if err := n.merge(item); err != nil {
				return err
			}
		}
		return nil
	case yaml.MappingNode:
		for _, e := range from.entries {
			if n.get(e.key) == nil {
				n.entries = append(n.entries, e)
			}
		}
		return nil
	}
	return newParseError(from.line, "<<: want a mapping")
}
