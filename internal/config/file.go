package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schemaVersion is the one of NVIDIA's schema.
const schemaVersion = "v1"

// ignoredKeys are the keys of NVIDIA's other programs, which read the same file.
var ignoredKeys = map[string]string{
	"flags.gfd":               "GPU feature discovery",
	"flags.useNodeFeatureAPI": "GPU feature discovery",
}

// configDocument is one config of a file: what it says, by the paths of the rows.
type configDocument struct {
	file    string
	name    string // empty: the file holds one config, which has none
	prefix  string // the config's place in the file: "configs.mixed."
	values  map[string]*node
	notices []string
	unknown []UnknownKey
}

// walk visits the keys below path, which is empty or ends with a dot, and collects unknown keys.
func (d *configDocument) walk(n *node, path string) error {
	switch {
	case n.null() && path == "":
		return withPath(strings.TrimSuffix(d.prefix, "."), n, newParseError(n.line, "is empty"))
	case n.kind != yaml.MappingNode:
		return withPath(strings.TrimSuffix(d.prefix+path, "."), n, newParseError(n.line, "want a mapping"))
	}
	known := childKeys(path)
	for _, e := range n.entries {
		if err := d.visit(e, path+e.key, known); err != nil {
			return err
		}
	}
	return nil
}

func (d *configDocument) visit(e entry, path string, known map[string]bool) error {
	if of, ok := ignoredKeys[path]; ok {
		d.addNotice(e.line, "%s belongs to NVIDIA's %s, and is ignored", quoteUnprintable(d.prefix+path), of)
		return nil
	}
	branch, ok := known[e.key]
	switch {
	case path == "configs", path == "default": // of a file of several, which this one is part of
		return withPath(d.prefix+path, e.value, newParseError(e.line, "not in a config: want it at the top of --config-file"))
	case !ok:
		d.addUnknown(e, d.prefix+path, suggestKey(e.key, slices.Collect(maps.Keys(known))))
	case e.value.null():
	case path == "version":
		return withPath(d.prefix+path, e.value, checkVersion(e.value))
	case branch:
		return d.walk(e.value, path+".")
	default:
		d.values[path] = e.value
	}
	return nil
}

// checkVersion takes a version that is absent for the only one that there is.
func checkVersion(n *node) error {
	if n == nil || n.null() || n.kind == yaml.ScalarNode && n.tag == "!!str" && n.text == schemaVersion {
		return nil
	}
	return newParseError(n.line, "%q: want %s", n.text, schemaVersion)
}

// childKeys are the keys that there may be below a path, and whether there is
// more below them.
func childKeys(path string) map[string]bool {
	known := map[string]bool{}
	if path == "" {
		known["version"] = false
	}
	for _, s := range allSettings {
		rest, ok := strings.CutPrefix(s.path, path)
		if key, _, more := strings.Cut(rest, "."); ok && key != "" {
			known[key] = more
		}
	}
	return known
}

func (d *configDocument) addNotice(line int, format string, args ...any) {
	d.notices = append(d.notices, fmt.Sprintf("%s:%d: %s", d.file, line, fmt.Sprintf(format, args...)))
}

// fields reads a mapping by its keys, each with its own function, and collects unknown keys.
func (d *configDocument) fields(n *node, path string, read map[string]func(*node) error) error {
	if n.kind != yaml.MappingNode {
		return withPath(path, n, newParseError(n.line, "want a mapping"))
	}
	for _, e := range n.entries {
		at := path + "." + e.key
		f, ok := read[e.key]
		if !ok {
			d.addUnknown(e, at, suggestKey(e.key, slices.Collect(maps.Keys(read))))
			continue
		}
		if e.value.null() {
			continue
		}
		if err := withPath(at, e.value, f(e.value)); err != nil {
			return err
		}
	}
	return nil
}

// each reads the items of a list.
func (n *node) each(path string, read func(n *node, path string) error) error {
	if n.kind != yaml.SequenceNode {
		return withPath(path, n, newParseError(n.line, "want a list"))
	}
	for i, item := range n.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := withPath(at, item, read(item, at)); err != nil {
			return err
		}
	}
	return nil
}

// resource reads a resource name.
func (n *node) resource() (string, error) {
	s, err := n.word()
	if err != nil {
		return "", err
	}
	return resourceName(s)
}
