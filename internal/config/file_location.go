package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// FileLocation says where the file is, and which of its configs is meant.
type FileLocation struct {
	File     string // a config, a file of named configs, or a folder of them
	Name     string // of the config
	NameFile string // of a file that holds the name, when Name is empty
}

// maxNameLen bounds a config's name: it is a key of a ConfigMap.
const maxNameLen = 253

// rawConfig is what was read, and not yet understood.
type rawConfig struct {
	file       string // that holds the config; empty: there is none
	wantedName string // the name that was asked for
	name       string // the name, where the file's own is one
	data       []byte
	isNull     bool // the file is /dev/null
}

type digest [sha256.Size]byte

// digest tells two contents apart.
func (c rawConfig) digest() digest {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %t\n%s", c.file, c.wantedName, c.isNull, c.data))
}

// read reads all that a Source names.
func (l FileLocation) read() (rawConfig, error) {
	if l.File == "" {
		return rawConfig{}, nil
	}
	c := rawConfig{file: l.File}
	var err error
	if c.wantedName, err = l.wantedName(); err != nil {
		return c, err
	}
	info, err := os.Stat(l.File)
	if err != nil {
		return c, err
	}
	if info.IsDir() {
		names, err := listConfigs(l.File)
		if err != nil {
			return c, err
		}
		if c.name, err = chooseConfig(l.File, names, c.wantedName, ""); err != nil {
			return c, err
		}
		c.file = filepath.Join(l.File, c.name)
	}
	c.data, c.isNull, err = readFile(c.file, maxFileBytes)
	return c, err
}

// wantedName is the name that was asked for. A label-writer's file may not be there
// yet, or be empty where the node has no label.
func (l FileLocation) wantedName() (string, error) {
	if l.Name != "" || l.NameFile == "" {
		return l.Name, nil
	}
	data, _, err := readFile(l.NameFile, maxNameLen+2)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	name := strings.TrimSpace(string(data))
	if err == nil && (len(name) > maxNameLen || strings.ContainsAny(name, "\n\r")) {
		err = fmt.Errorf("%s: want the name of a config, and nothing else", l.NameFile)
	}
	return name, err
}

// listConfigs lists the configs of a mounted ConfigMap. Its own files begin with
// two dots, and the others are links into one of them.
func listConfigs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err == nil && !info.IsDir() && !strings.HasPrefix(e.Name(), "..") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// chooseConfig picks a config as NVIDIA's config-manager does: the one that is wanted,
// else the default, else the one named default, else the only one.
func chooseConfig(file string, names []string, want, fallback string) (string, error) {
	if want == "" {
		want = fallback
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return "", fmt.Errorf("%s: holds no configs", file)
	case want != "" && slices.Contains(names, want):
		return want, nil
	case want != "":
		return "", fmt.Errorf("%s: no config is named %q; there are %s", file, want, quoteUnprintable(names...))
	case slices.Contains(names, "default"):
		return "default", nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", fmt.Errorf("%s: several configs, and none is the default; want --config-name of %s", file, quoteUnprintable(names...))
}

// readFile reads a file that is a file: a pipe would be waited for. /dev/null is
// where NVIDIA's config-manager points when it falls back to no config.
func readFile(path string, maxBytes int64) (data []byte, isNull bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return nil, true, nil
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s: is not a file", path)
	}
	data, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	return data, false, err
}

// parse understands it, as far as the settings themselves.
func (c rawConfig) parse() (*configDocument, error) {
	d := &configDocument{file: c.file, name: c.name, values: map[string]*node{}}
	if c.file == "" || c.isNull {
		return d, nil
	}
	root, err := parseTree(c.data)
	if err != nil {
		return nil, d.withLocation(err)
	}
	if configs := root.get("configs"); configs != nil && c.name == "" {
		if root, err = d.selectNamed(root, configs, c.wantedName); err != nil {
			return nil, err
		}
	} else if c.name == "" && c.wantedName != "" {
		return nil, fmt.Errorf("%s: holds one config, which has no name; %q was asked for", c.file, c.wantedName)
	}
	if err := d.walk(root, ""); err != nil {
		return nil, d.withLocation(err)
	}
	if root.get("version") == nil && d.prefix == "" {
		d.addNotice(root.line, "no version; read as %s", schemaVersion)
	}
	d.honoured()
	return d, nil
}

// selectNamed picks the config of a file that has several.
func (d *configDocument) selectNamed(root, configs *node, wanted string) (*node, error) {
	known := []string{"version", "default", "configs"}
	for _, e := range root.entries {
		_, misplaced := childKeys("")[e.key]
		switch {
		case slices.Contains(known, e.key):
		case misplaced:
			return nil, d.withLocation(withPath(e.key, e.value, newParseError(e.line, "not beside configs: want it in one of them")))
		default:
			d.addUnknown(e, e.key, suggestKey(e.key, slices.Clone(known)))
		}
	}
	if err := checkVersion(root.get("version")); err != nil {
		return nil, d.withLocation(withPath("version", root, err))
	}
	if configs.kind != yaml.MappingNode {
		return nil, d.withLocation(withPath("configs", configs, newParseError(configs.line, "want a mapping of names to configs")))
	}
	byDefault := ""
	if n := root.get("default"); n != nil && !n.null() {
		var err error
		if byDefault, err = n.word(); err == nil && configs.get(byDefault) == nil {
			err = newParseError(n.line, "no config is named %q", byDefault)
		}
		if err != nil {
			return nil, d.withLocation(withPath("default", n, err))
		}
	}
	var names []string
	for _, e := range configs.entries {
		names = append(names, e.key)
	}
	var err error
	if d.name, err = chooseConfig(d.file, names, wanted, byDefault); err != nil {
		return nil, err
	}
	d.prefix = "configs." + d.name + "."
	return configs.get(d.name), nil
}

// withLocation puts the file and the line before an error.
func (d *configDocument) withLocation(err error) error {
	var f ParseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && f.line > 0:
		return fmt.Errorf("%s:%d: %w", d.file, f.line, err)
	}
	return fmt.Errorf("%s: %w", d.file, err)
}
