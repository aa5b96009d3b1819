package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schemaVersion is the version of NVIDIA's schema.
const schemaVersion = "v1"

// ignoredKeys are the keys of GPU feature discovery, a reader of the same file.
var ignoredKeys = []string{"flags.gfd", "flags.useNodeFeatureAPI"}

// document is a config in a file.
type document struct {
	file    string
	name    string           // of the config; empty: the file has one config
	values  map[string]entry // by path: "flags.migStrategy"
	notices []string
	unknown []UnknownKey
}

func (d *document) addNotice(line int, format string, args ...any) {
	d.notices = append(d.notices, fmt.Sprintf("%s:%d: %s", d.file, line, fmt.Sprintf(format, args...)))
}

// read collects the values of the file, and checks the version.
func (d *document) read(root *yaml.Node) error {
	if isNull(root) {
		return d.errorAt(errors.New("is empty"), root.Line, "")
	}
	if err := d.collect(root, "", knownKeys()); err != nil {
		return err
	}
	version, ok := d.values["version"]
	if !ok {
		d.addNotice(root.Line, "no version; read as %s", schemaVersion)
	} else if version.value.ShortTag() != "!!str" || version.value.Value != schemaVersion {
		return d.errorAt(fmt.Errorf("%q: expected %s", version.value.Value, schemaVersion), version.line, "version")
	}
	return nil
}

// knownKeys returns the keys of a file by the path of the parent. A path has [] for the items of a list.
func knownKeys() map[string][]string {
	known := map[string][]string{"": {"version"}}
	for _, s := range settingsOf(new(Settings), new(FileLocation)) {
		for _, key := range append(s.keys, "") {
			for path := s.path + key; path != ""; {
				i := strings.LastIndex(path, ".")
				key := strings.TrimSuffix(path[i+1:], "[]")
				path = path[:max(i, 0)]
				if !slices.Contains(known[path], key) {
					known[path] = append(known[path], key)
				}
			}
		}
	}
	return known
}

var itemIndex = regexp.MustCompile(`\[\d+\]`)

// collect collects the values of known keys, and the unknown keys.
func (d *document) collect(n *yaml.Node, path string, known map[string][]string) error {
	pattern := itemIndex.ReplaceAllString(path, "[]")
	if n.Kind == yaml.SequenceNode && known[pattern+"[]"] != nil {
		for i, item := range n.Content {
			if err := d.collect(resolve(item), fmt.Sprintf("%s[%d]", path, i), known); err != nil {
				return err
			}
		}
	}
	if known[pattern] == nil {
		return nil
	}
	entries, err := entriesOf(n)
	if err != nil {
		return d.errorAt(err, n.Line, path)
	}
	for _, e := range entries {
		path := strings.TrimPrefix(path+"."+e.key, ".")
		switch {
		case slices.Contains(ignoredKeys, path):
			d.addNotice(e.line, "%s: key of NVIDIA's GPU feature discovery, ignored", path)
			continue
		case !slices.Contains(known[pattern], e.key):
			d.unknown = append(d.unknown, newUnknownKey(d.file, e.line, path, known[pattern]))
			continue
		case isNull(e.value):
			continue
		case onlyHere(itemIndex.ReplaceAllString(path, "[]"), e.value):
			d.addNotice(e.line, "%s: used by podgauge, ignored by NVIDIA's plugin", path)
		}
		d.values[path] = e
		if err := d.collect(e.value, path, known); err != nil {
			return err
		}
	}
	return nil
}

// onlyHere reports whether NVIDIA's plugin ignores a key of NVIDIA's schema.
func onlyHere(pattern string, value *yaml.Node) bool {
	return strings.HasSuffix(pattern, "].rename") || strings.HasSuffix(pattern, "].devices") && value.Value != "all" ||
		(pattern == "resources.gpus" || pattern == "resources.mig") && len(value.Content) > 0
}
