package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Limits of a file. A ConfigMap has 1 MiB at most; a config written by hand has some dozens of values, eight levels deep at most.
const (
	maxFileBytes = 1 << 20
	maxValues    = 20000
	maxDepth     = 32
)

// ParseError is an error in a file, with line and key.
type ParseError struct {
	line    int    // 0: the file as a whole
	path    string // of the key: "flags.migStrategy"
	message string
}

func (e ParseError) Error() string {
	if e.path == "" {
		return e.message
	}
	return quoteUnprintable(e.path) + ": " + e.message
}

// at adds the line and the path of a value to an error without a position.
func at(n *yaml.Node, path string, err error) error {
	if _, located := errors.AsType[ParseError](err); err == nil || located {
		return err
	}
	return ParseError{n.Line, path, err.Error()}
}

// quoteUnprintable joins names, and quotes names with control characters.
func quoteUnprintable(names ...string) string {
	quoted := slices.Clone(names)
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			quoted[i] = strconv.Quote(name)
		}
	}
	return strings.Join(quoted, ", ")
}

// yamlMessage matches the first line of an error of the YAML library.
var yamlMessage = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s+)?(?:line (\d+): )?([^\n\r]*)`)

// syntaxError returns an error of the YAML library as a ParseError. The line is the default for errors without a line.
func syntaxError(err error, line int, path string) error {
	found := yamlMessage.FindStringSubmatch(err.Error())
	if n, err := strconv.Atoi(found[1]); err == nil {
		line = n
	}
	return ParseError{line, path, found[2]}
}

// parseYAML reads a YAML document. JSON is a subset of YAML.
func parseYAML(data []byte) (*yaml.Node, error) {
	if len(data) > maxFileBytes {
		return nil, ParseError{message: fmt.Sprintf("more than %d MiB", maxFileBytes>>20)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, ParseError{message: "is empty"}
	} else if err != nil {
		return nil, syntaxError(err, 0, "")
	}
	if err := decoder.Decode(&second); err == nil {
		return nil, ParseError{line: second.Line, message: "want one document"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err, 0, "")
	}
	left := maxValues
	return document.Content[0], checkTree(document.Content[0], "", &left, maxDepth)
}

// checkTree limits the values and the depth of a document, and checks all keys. An alias counts with all values of the anchor: a few lines of
// aliases can expand to billions of values. Keys are checked everywhere, since other nodes may use other parts of the file.
func checkTree(n *yaml.Node, path string, left *int, depth int) error {
	switch *left--; {
	case *left < 0:
		return ParseError{line: n.Line, message: fmt.Sprintf("more than %d values", maxValues)}
	case depth < 0:
		return ParseError{line: n.Line, message: fmt.Sprintf("nested more than %d levels deep", maxDepth)}
	case n.Kind == yaml.AliasNode:
		return checkTree(n.Alias, path, left, depth-1)
	case n.Kind == yaml.MappingNode:
		if err := checkKeys(n, path); err != nil {
			return err
		}
	}
	for i, child := range n.Content {
		at := path
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			at = strings.TrimPrefix(path+"."+n.Content[i-1].Value, ".")
		}
		if err := checkTree(child, at, left, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys rejects keys of a mapping that are not names, and duplicate keys.
func checkKeys(n *yaml.Node, path string) error {
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!null" {
			return ParseError{key.Line, path, "want a name as key"}
		}
		if first, ok := lines[key.Value]; ok {
			return ParseError{key.Line, path, fmt.Sprintf("mapping key %q already defined at line %d", key.Value, first)}
		}
		lines[key.Value] = key.Line
	}
	return nil
}

// resolve returns the target of an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// entry is a key of a mapping. The value has the key's line.
type entry struct {
	key   string
	value *yaml.Node
}

// entriesOf returns the keys of a mapping in the order of the file, then merged keys. The library rejects duplicate keys.
func entriesOf(n *yaml.Node, path string) ([]entry, error) {
	if n.Kind != yaml.MappingNode {
		return nil, ParseError{n.Line, path, "want a mapping"}
	}
	var values map[string]yaml.Node
	if err := n.Decode(&values); err != nil {
		return nil, syntaxError(err, n.Line, path)
	}
	entries := make([]entry, 0, len(values))
	add := func(key string, line int) {
		original, exists := values[key]
		if !exists { // the key of a merge
			return
		}
		value := *resolve(&original)
		value.Line = line
		entries = append(entries, entry{key, &value})
		delete(values, key)
	}
	for i := 0; i < len(n.Content); i += 2 {
		add(n.Content[i].Value, n.Content[i].Line)
	}
	for _, merged := range slices.Sorted(maps.Keys(values)) {
		add(merged, values[merged].Line)
	}
	return entries, nil
}

// valueOf returns the value of a key; nil: no such key.
func valueOf(entries []entry, key string) *yaml.Node {
	for _, e := range entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// itemsOf returns the items of a list, with aliases resolved.
func itemsOf(n *yaml.Node, path string) ([]*yaml.Node, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, ParseError{n.Line, path, "want a list"}
	}
	items := make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		items[i] = resolve(item)
	}
	return items, nil
}

// isNull reports whether a key has no value. Such a key counts as absent.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// stringOf reads a string. NVIDIA's parser accepts a number for a string, but no boolean.
func stringOf(n *yaml.Node) (string, error) {
	switch tag := n.ShortTag(); {
	case n.Kind != yaml.ScalarNode || tag != "!!str" && tag != "!!int" && tag != "!!float":
		return "", errors.New("want a string")
	case tag == "!!int":
		if i, err := intOf(n); err == nil {
			return strconv.Itoa(i), nil
		}
	}
	return n.Value, nil
}

// boolOf reads a boolean, including the words of YAML 1.1 for NVIDIA's parser. A quoted word is a string.
func boolOf(n *yaml.Node) (b bool, err error) {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Kind != yaml.ScalarNode || n.Style&quoted != 0 || n.Decode(&b) != nil {
		return false, errors.New("want true or false")
	}
	return b, nil
}

// intOf reads a number in any form of YAML: 16, 0x10, 020, 1_000, 16.0.
func intOf(n *yaml.Node) (int, error) {
	var f float64
	tag := n.ShortTag()
	if tag != "!!int" && tag != "!!float" || n.Decode(&f) != nil || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0, errors.New("want a whole number")
	}
	return int(f), nil
}
