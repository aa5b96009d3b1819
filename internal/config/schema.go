package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
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

// parse finds the values of the settings in the config.
func (c rawConfig) parse() (*document, error) {
	d := &document{file: c.file, name: c.name, values: map[string]entry{}}
	if c.file == "" {
		return d, nil
	}
	root, err := parseYAML([]byte(c.data))
	if err != nil {
		return d, d.errorAt(err, 0, "")
	}
	if c.name == "" {
		root, err = d.chooseNamed(root, c.wanted)
	}
	if err != nil {
		return d, err
	}
	return d, d.read(root)
}

// chooseNamed returns the chosen config of a file of named configs, or the root
// of a file with one config. The version of the file is the default of the
// configs.
func (d *document) chooseNamed(root *yaml.Node, want string) (*yaml.Node, error) {
	top, _ := entriesOf(root) //nolint:errcheck // read returns the error
	i := slices.IndexFunc(top, func(e entry) bool { return e.key == "configs" })
	if i < 0 && want != "" {
		return nil, d.errorAt(fmt.Errorf("--config-name %q: the file has one config without a name", want), 0, "")
	} else if i < 0 {
		return root, nil
	}
	configs, err := entriesOf(top[i].value)
	if err != nil {
		return nil, d.errorAt(err, top[i].line, "configs")
	}
	if err := d.collect(root, "", map[string][]string{"": {"version", "configs", "default"}}); err != nil {
		return nil, err
	}
	if fallback, ok := d.values["default"]; ok && want == "" {
		if err := fallback.value.Decode(&want); err != nil {
			return nil, d.errorAt(err, fallback.line, "default")
		}
	}
	names := text.Each(configs, func(e entry) string { return e.key })
	if d.name, err = chooseConfig(names, want); err != nil {
		return nil, d.errorAt(err, 0, "")
	}
	return configs[slices.Index(names, d.name)].value, nil
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

// knownKeys returns the keys of a file by the path of the parent. A path has []
// for the items of a list.
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
			valid := strings.Join(slices.Sorted(slices.Values(known[pattern])), ", ")
			d.unknown = append(d.unknown, UnknownKey{d.file, e.line, text.OfName(path), "valid keys are " + valid})
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

// yamlMessage matches the first line of an error of the YAML library.
var yamlMessage = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s+)?(?:line (\d+): )?([^\n\r]*)`)

// errorAt returns an error about a value of the file as a single line. A line
// in the error is more exact than the value's line.
func (d *document) errorAt(err error, line int, path string) error {
	if err == nil {
		return nil
	}
	found := yamlMessage.FindStringSubmatch(text.YAMLError(err))
	if exact, err := strconv.Atoi(found[1]); err == nil {
		line = exact
	}
	place := d.file
	if line > 0 {
		place += ":" + strconv.Itoa(line)
	}
	if path != "" {
		place += ": " + path
	}
	return errors.New(place + ": " + found[2])
}

// UnknownKey is an unknown key of the file. The key has no effect, because the
// file may be written for a newer version of podgauge or of NVIDIA's plugin.
type UnknownKey struct {
	File string
	Line int
	Key  string // with the path: "flags.migStrategie"
	Hint string // the valid keys
}

func (k UnknownKey) String() string {
	return fmt.Sprintf("%s:%d: %s: unknown key; %s", k.File, k.Line, k.Key, k.Hint)
}
