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
	mostBytes  = 1 << 20
	mostValues = 20000
	mostDepth  = 32
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

// fault is what is wrong with a file, and where.
type fault struct {
	line int    // 0: the file as a whole
	path string // of the key: "flags.migStrategy"
	what string
}

func (f fault) Error() string {
	if f.path == "" {
		return f.what
	}
	return printable(f.path) + ": " + f.what
}

// printable quotes names that would not stay on their line, or that a terminal
// would act on, and lists them.
func printable(names ...string) string {
	quoted := slices.Clone(names)
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			quoted[i] = strconv.Quote(name)
		}
	}
	return strings.Join(quoted, ", ")
}

func wrong(line int, format string, args ...any) error {
	return fault{line: line, what: fmt.Sprintf(format, args...)}
}

// under says which key an error is about, unless that is known better already.
func under(path string, n *node, err error) error {
	var f fault
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &f):
		return fault{line: n.line, path: path, what: err.Error()}
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
	if len(data) > mostBytes {
		return nil, wrong(0, "more than %d MiB", mostBytes>>20)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, wrong(0, "is empty")
	} else if err != nil {
		return nil, syntaxError(err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, wrong(more.Line, "a second document; want one")
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
	return wrong(line, "%s", strings.Join(strings.Fields(found[2]), " "))
}

// grower makes a tree of what the library read. There an alias is a pointer to
// what it stands for, so that a file of a few lines can stand for billions of
// values, or for itself; here each use costs.
type grower struct{ left int }

func (g *grower) grow(y *yaml.Node, depth int) (*node, error) {
	if g.left--; g.left < 0 {
		return nil, wrong(y.Line, "more than %d values", mostValues)
	}
	if depth < 0 {
		return nil, wrong(y.Line, "nested more than %d levels deep", mostDepth)
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
			return nil, wrong(key.Line, "a key that is not a word")
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
			continue
		}
		if n.get(key.Value) != nil {
			return nil, wrong(key.Line, "%s is given twice", strconv.Quote(key.Value))
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
				return wrong(item.line, "<<: want a mapping")
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
	return wrong(from.line, "<<: want a mapping")
}
