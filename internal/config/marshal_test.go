package config

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

// write writes a document as YAML, without aliases and merges.
func write(t *testing.T, n *yaml.Node) []byte {
	t.Helper()
	data, err := yaml.Marshal(flatten(t, n))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func flatten(t *testing.T, n *yaml.Node) *yaml.Node {
	t.Helper()
	n = resolve(n)
	y := &yaml.Node{Kind: n.Kind, Tag: n.ShortTag(), Value: n.Value}
	switch n.Kind {
	case yaml.MappingNode:
		entries, err := entriesOf(n)
		if err != nil {
			return y // the key is ignored
		}
		for _, e := range entries {
			y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: e.key},
				flatten(t, e.value))
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			y.Content = append(y.Content, flatten(t, item))
		}
	default:
		if y.Tag == "!!str" && n.Style == 0 { // a quoted "yes" is a string
			y.Tag = ""
		}
	}
	return y
}
