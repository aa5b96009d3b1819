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

// FileLocation names the file and the config in it.
type FileLocation struct {
	File     string // a config, a file of named configs, or a folder of configs
	Name     string // of the config
	NameFile string // holds the name; used if Name is empty
}

// maxNameLen limits the name of a config, which is a key of a ConfigMap.
const maxNameLen = 253

// rawConfig is the content of a file before parsing.
type rawConfig struct {
	file       string // of the config; empty: no file
	wantedName string
	name       string // the file's name, in a folder of configs
	data       []byte
	isNull     bool // the file is /dev/null
}

type digest [sha256.Size]byte

// digest identifies the content.
func (c rawConfig) digest() digest {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %t\n%s", c.file, c.wantedName, c.isNull, c.data))
}

// read reads the config and, if there are several, its name.
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
		if c.name, err = chooseConfig(names, c.wantedName, ""); err != nil {
			return c, fmt.Errorf("%s: %w", l.File, err)
		}
		c.file = filepath.Join(l.File, c.name)
	}
	c.data, c.isNull, err = readFile(c.file, maxFileBytes)
	return c, err
}

// wantedName returns the name of the config; empty: any. NameFile may be missing or empty: the node may lack the label.
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
		err = fmt.Errorf("%s: want only the name of a config", l.NameFile)
	}
	return name, err
}

// listConfigs lists the files of a mounted ConfigMap. The kubelet's own files begin with two dots.
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

// chooseConfig chooses as NVIDIA's config-manager does: the wanted config, the fallback, the config named default, or the only
// config.
func chooseConfig(names []string, want, fallback string) (string, error) {
	if want == "" {
		want = fallback
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return "", errors.New("no configs")
	case want != "" && slices.Contains(names, want):
		return want, nil
	case want != "":
		return "", fmt.Errorf("no config %q; valid names are %s", want, quoteUnprintable(names...))
	case slices.Contains(names, "default"):
		return "default", nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", fmt.Errorf("several configs without a default; want --config-name of %s", quoteUnprintable(names...))
}

// readFile reads a regular file, and never waits for a pipe. Without a config, NVIDIA's config-manager links to /dev/null.
func readFile(path string, maxBytes int64) (data []byte, isNull bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return nil, true, nil
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s: not a regular file", path)
	}
	data, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	return data, false, err
}

// parse finds the values of the settings in the config.
func (c rawConfig) parse() (*document, error) {
	d := &document{file: c.file, name: c.name, values: map[string]*yaml.Node{}}
	if c.file == "" || c.isNull {
		return d, nil
	}
	root, err := parseYAML(c.data)
	if err == nil && c.name == "" {
		root, err = d.chooseNamed(root, c.wantedName)
	}
	if err == nil {
		err = d.readConfig(root)
	}
	return d, d.located(err)
}

// chooseNamed returns the chosen config of a file of named configs, or the root of a file without names.
func (d *document) chooseNamed(root *yaml.Node, wanted string) (*yaml.Node, error) {
	if isNull(root) {
		return root, nil
	}
	top, err := entriesOf(root, "")
	if err != nil {
		return nil, err
	}
	configs := valueOf(top, "configs")
	if configs == nil {
		if wanted != "" {
			err = fmt.Errorf("one config without a name; want no --config-name %q", wanted)
		}
		return root, err
	}
	named, err := entriesOf(configs, "configs")
	if err != nil {
		return nil, err
	}
	fallback, misplaced := "", d.readersBelow("")
	for key := range misplaced {
		misplaced[key] = func(*yaml.Node, string) error { return errors.New("want this key in one of the configs") }
	}
	if err := d.readFields(root, "", map[string]reader{
		"version": checkVersion,
		"configs": func(*yaml.Node, string) error { return nil },
		"default": func(n *yaml.Node, _ string) (err error) {
			if fallback, err = stringOf(n); err == nil && valueOf(named, fallback) == nil {
				err = fmt.Errorf("no config %q", fallback)
			}
			return err
		},
	}, misplaced); err != nil {
		return nil, err
	}
	names := make([]string, len(named))
	for i, e := range named {
		names[i] = e.key
	}
	d.name, err = chooseConfig(names, wanted, fallback)
	d.prefix = "configs." + d.name + "."
	return valueOf(named, d.name), err
}
