package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a JSON or YAML document whose strings can be changed in place. JSON has the node's place in the text as
// Line and Column, begin and end in bytes.
type document struct {
	root   *yaml.Node
	whole  *yaml.Node // the root with the comments around it; of YAML
	source []byte     // of JSON; nil: YAML
}

// parseDocuments parses a JSON document or a stream of YAML documents.
func parseDocuments(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	begin := bytes.TrimLeft(data, " \t\r\n")
	if bytes.HasPrefix(begin, []byte("{")) && !bytes.HasPrefix(begin, []byte("{{")) {
		root, err := parseJSON(data)
		if err != nil {
			return nil, err
		}
		return []document{{root: root, source: data}}, nil
	}
	var all []document
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var root yaml.Node
		switch err := d.Decode(&root); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("parse YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		default:
			all = append(all, document{root: root.Content[0], whole: &root})
		}
	}
}

// parseJSON returns a JSON document as a YAML node.
func parseJSON(data []byte) (*yaml.Node, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			return nil, fmt.Errorf("parse JSON: line %d: %w", 1+bytes.Count(data[:syntax.Offset], []byte("\n")), err)
		}
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	p := jsonParser{json.NewDecoder(bytes.NewReader(data)), data}
	p.UseNumber()
	return p.value()
}

type jsonParser struct {
	*json.Decoder
	data []byte
}

// value parses a value of valid JSON.
func (p jsonParser) value() (*yaml.Node, error) {
	begin := int(p.InputOffset())
	token, err := p.Token()
	if err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	switch token := token.(type) {
	case string:
		n.Tag, n.Value = "!!str", token
		n.Line = begin + bytes.IndexByte(p.data[begin:], '"')
		n.Column = int(p.InputOffset())
		return n, nil
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if token == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
	default:
		return n, nil
	}
	for p.More() {
		child, err := p.value()
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
	}
	_, err = p.Token()
	return n, err
}

// documentText returns the text of documents after changes. JSON keeps all else as it was, YAML its order and comments.
func documentText(all []document) ([]byte, error) {
	if len(all) == 1 && all[0].source != nil {
		return all[0].json(), nil
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	for _, d := range all {
		if err := e.Encode(d.whole); err != nil {
			return nil, fmt.Errorf("write YAML: %w", err)
		}
	}
	err := e.Close()
	return out.Bytes(), err
}

func (d document) json() []byte {
	var out []byte
	end := 0
	eachScalar(d.root, func(n *yaml.Node) {
		if n.Column == 0 {
			return
		}
		original := d.source[n.Line:n.Column]
		var value string
		if err := json.Unmarshal(original, &value); err == nil && value == n.Value {
			return
		}
		out = append(append(out, d.source[end:n.Line]...), quoteJSON(n.Value)...)
		end = n.Column
	})
	return append(out, d.source[end:]...)
}

func quoteJSON(value string) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(value) // a string has an encoding
	return bytes.TrimSpace(out.Bytes())
}

// eachScalar calls f for each key and value that is no mapping or sequence, in order.
func eachScalar(n *yaml.Node, f func(*yaml.Node)) {
	if n == nil {
		return
	}
	if n.Kind == yaml.ScalarNode {
		f(n)
	}
	for _, child := range n.Content {
		eachScalar(child, f)
	}
}

// get returns the value at a path of keys; nil: none.
func get(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		var value *yaml.Node
		for k, v := range members(n) {
			if k.Value == key {
				value = v
			}
		}
		n = value
	}
	return n
}

// members returns the keys and values of a mapping.
func members(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(*yaml.Node, *yaml.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// items returns the items of a sequence.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// valueOf returns the string at a path of keys; empty: none.
func valueOf(n *yaml.Node, path ...string) string {
	if n = get(n, path...); n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}
