package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/podgauge/podgauge/internal/text"
	"go.yaml.in/yaml/v3"
)

// FileLocation names the file and the config in it.
type FileLocation struct {
	File     string // a config, a file of named configs, or a folder of configs
	Name     string // of the config
	NameFile string // holds the name; used if Name is empty
}

// rawConfig is the content of a file before parsing. Equal contents are equal
// rawConfigs.
type rawConfig struct {
	file   string // of the config; empty: no file
	wanted string // name; empty: any
	name   string // the file's name, in a folder of configs
	data   string
}

// read reads the config and, if there are several, its name.
func (l FileLocation) read() (rawConfig, error) {
	if l.File == "" {
		return rawConfig{}, nil
	}
	wanted, err := l.wantedName()
	c := rawConfig{file: l.File, wanted: wanted}
	if err != nil {
		return c, err
	}
	info, err := os.Stat(l.File)
	if err == nil && info.IsDir() {
		if c.name, err = chooseFile(l.File, wanted); err != nil {
			return c, fmt.Errorf("%s: %w", l.File, err)
		}
		c.file = filepath.Join(l.File, c.name)
	}
	// Without a config, NVIDIA's config-manager links to /dev/null.
	if target, err := filepath.EvalSymlinks(c.file); err == nil && target == os.DevNull {
		return rawConfig{}, nil
	}
	c.data, err = ReadFile(c.file)
	return c, err
}

// wantedName returns the name of the config; empty: any. NameFile may be
// missing or empty: the node may lack the label.
func (l FileLocation) wantedName() (string, error) {
	if l.Name != "" || l.NameFile == "" {
		return l.Name, nil
	}
	data, err := ReadFile(l.NameFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	name := strings.TrimSpace(data)
	if name != "" && text.OfName(name) != name {
		return "", fmt.Errorf("%s: not the name of a config", l.NameFile)
	}
	return name, err
}

// chooseFile chooses a file of a mounted ConfigMap.
func chooseFile(dir, want string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		// the kubelet's own files begin with two dots
		if err == nil && !info.IsDir() && !strings.HasPrefix(e.Name(), "..") {
			names = append(names, e.Name())
		}
	}
	return chooseConfig(names, want)
}

// chooseConfig chooses as NVIDIA's config-manager does: the wanted config, the
// config named default, or the only config.
func chooseConfig(names []string, want string) (string, error) {
	switch {
	case len(names) == 0:
		return "", errors.New("no configs")
	case want != "" && slices.Contains(names, want):
		return want, nil
	case want != "":
		return "", fmt.Errorf("no config %q; valid names are %s", want, strings.Join(names, ", "))
	case slices.Contains(names, "default"):
		return "default", nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", fmt.Errorf("several configs without a default; set --config-name to one of %s",
		strings.Join(names, ", "))
}

// ReadFile reads a regular file of at most 128 KiB. The open file is asked for
// its type: the path may change. Without O_NONBLOCK, opening a pipe would wait
// for a writer.
func ReadFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if len(data) > maxFileBytes {
		err = fmt.Errorf("%s: %w", path, errTooLong)
	}
	return string(data), err
}

// maxFileBytes limits a file, because the YAML library compares each key of a
// mapping with all others. A config has some kilobytes.
const maxFileBytes = 128 << 10

var (
	errEmpty   = errors.New("is empty")
	errTooLong = fmt.Errorf("more than %d KiB", maxFileBytes>>10)
)

// parseYAML reads a YAML document. JSON is a subset of YAML.
func parseYAML(data []byte) (*yaml.Node, error) {
	if len(data) > maxFileBytes {
		return nil, errTooLong
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
