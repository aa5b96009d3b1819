package config

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

// write writes a tree as YAML, without aliases and merges.
func write(t *testing.T, n *node) []byte {
	t.Helper()
	data, err := yaml.Marshal(n.yaml())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (n *node) yaml() *yaml.Node {
	y := &yaml.Node{Kind: n.kind, Tag: n.tag, Value: n.text}
	switch n.kind {
	case yaml.MappingNode:
		y.Tag = "!!map"
		for _, e := range n.entries {
			y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: e.key}, e.value.yaml())
		}
	case yaml.SequenceNode:
		y.Tag = "!!seq"
		for _, item := range n.items {
			y.Content = append(y.Content, item.yaml())
		}
	default:
		if n.tag == "!!str" && n.plain { // "yes" in quotes is no bool
			y.Tag = ""
		}
	}
	return y
}
