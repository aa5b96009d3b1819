package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes limits a file, because the YAML library compares each key of a
// mapping with all others. A config has some kilobytes.
const maxFileBytes = 128 << 10

var errEmpty = errors.New("is empty")

// parseYAML reads a YAML document. JSON is a subset of YAML.
func parseYAML(data []byte) (*yaml.Node, error) {
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("more than %d KiB", maxFileBytes>>10)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, errEmpty
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&second); err == nil {
		return nil, lineError(&second, errors.New("expected one document"))
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	var all any // rejects duplicate keys, and aliases that expand to millions of values
	return document.Content[0], document.Decode(&all)
}

// lineError adds a line to an error, in the form of the YAML library.
func lineError(n *yaml.Node, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("line %d: %w", n.Line, err)
}

// resolve returns the target of an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// entry is a key of a mapping.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// entriesOf returns the keys of a mapping in alphabetical order, with merged
// keys.
func entriesOf(n *yaml.Node) ([]entry, error) {
	if n.Kind != yaml.MappingNode {
		return nil, lineError(n, errors.New("expected a mapping"))
	}
	var values map[string]yaml.Node
	if err := n.Decode(&values); err != nil {
		return nil, err
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		lines[n.Content[i].Value] = n.Content[i].Line
	}
	entries := make([]entry, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		entries = append(entries, entry{key, cmp.Or(lines[key], value.Line), resolve(&value)})
	}
	return entries, nil
}

// isNull reports whether a key has no value. Such a key counts as absent.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
