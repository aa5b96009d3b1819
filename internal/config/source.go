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

// Source says where the file is, and which of its configs is meant.
type Source struct {
	File     string // a config, a file of named configs, or a folder of them
	Name     string // of the config
	NameFile string // of a file that holds the name, when Name is empty
}

// mostName bounds a config's name: it is a key of a ConfigMap.
const mostName = 253

// content is what was read, and not yet understood.
type content struct {
	file    string // that holds the config; empty: there is none
	wanted  string // the name that was asked for
	chosen  string // the name, where the file's own is one
	data    []byte
	nothing bool // the file is /dev/null
}

type sum [sha256.Size]byte

// sum tells two contents apart.
func (c content) sum() sum {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %t\n%s", c.file, c.wanted, c.nothing, c.data))
}

// fetch reads all that a Source names.
func (s Source) fetch() (content, error) {
	if s.File == "" {
		return content{}, nil
	}
	c := content{file: s.File}
	var err error
	if c.wanted, err = s.wanted(); err != nil {
		return c, err
	}
	info, err := os.Stat(s.File)
	if err != nil {
		return c, err
	}
	if info.IsDir() {
		names, err := configsIn(s.File)
		if err != nil {
			return c, err
		}
		if c.chosen, err = choose(s.File, names, c.wanted, ""); err != nil {
			return c, err
		}
		c.file = filepath.Join(s.File, c.chosen)
	}
	c.data, c.nothing, err = read(c.file, mostBytes)
	return c, err
}

// wanted is the name that was asked for. A label-writer's file may not be there
// yet, or be empty where the node has no label.
func (s Source) wanted() (string, error) {
	if s.Name != "" || s.NameFile == "" {
		return s.Name, nil
	}
	data, _, err := read(s.NameFile, mostName+2)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	name := strings.TrimSpace(string(data))
	if err == nil && (len(name) > mostName || strings.ContainsAny(name, "\n\r")) {
		err = fmt.Errorf("%s: want the name of a config, and nothing else", s.NameFile)
	}
	return name, err
}

// configsIn lists the configs of a mounted ConfigMap. Its own files begin with
// two dots, and the others are links into one of them.
func configsIn(dir string) ([]string, error) {
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

// choose picks a config as NVIDIA's config-manager does: the one that is wanted,
// else the default, else the one named default, else the only one.
func choose(file string, names []string, wanted, byDefault string) (string, error) {
	if wanted == "" {
		wanted = byDefault
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return "", fmt.Errorf("%s: holds no configs", file)
	case wanted != "" && slices.Contains(names, wanted):
		return wanted, nil
	case wanted != "":
		return "", fmt.Errorf("%s: no config is named %q; there are %s", file, wanted, printable(names...))
	case slices.Contains(names, "default"):
		return "default", nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", fmt.Errorf("%s: several configs, and none is the default; want --config-name of %s", file, printable(names...))
}

// read reads a file that is a file: a pipe would be waited for. /dev/null is
// where NVIDIA's config-manager points when it falls back to no config.
func read(path string, most int64) (data []byte, nothing bool, err error) {
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
	data, err = io.ReadAll(io.LimitReader(f, most+1))
	return data, false, err
}

// parse understands it, as far as the settings themselves.
func (c content) parse() (*document, error) {
	d := &document{file: c.file, name: c.chosen, values: map[string]*node{}}
	if c.file == "" || c.nothing {
		return d, nil
	}
	root, err := parseTree(c.data)
	if err != nil {
		return nil, d.located(err)
	}
	if configs := root.get("configs"); configs != nil && c.chosen == "" {
		if root, err = d.named(root, configs, c.wanted); err != nil {
			return nil, err
		}
	} else if c.chosen == "" && c.wanted != "" {
		return nil, fmt.Errorf("%s: holds one config, which has no name; %q was asked for", c.file, c.wanted)
	}
	if err := d.walk(root, ""); err != nil {
		return nil, d.located(err)
	}
	if root.get("version") == nil && d.prefix == "" {
		d.note(root.line, "no version; read as %s", version)
	}
	d.honoured()
	return d, nil
}

// named picks the config of a file that has several.
func (d *document) named(root, configs *node, wanted string) (*node, error) {
	known := []string{"version", "default", "configs"}
	for _, e := range root.entries {
		_, misplaced := children("")[e.key]
		switch {
		case slices.Contains(known, e.key):
		case misplaced:
			return nil, d.located(under(e.key, e.value, wrong(e.line, "not beside configs: want it in one of them")))
		default:
			d.addUnknown(e, e.key, hint(e.key, slices.Clone(known)))
		}
	}
	if err := checkVersion(root.get("version")); err != nil {
		return nil, d.located(under("version", root, err))
	}
	if configs.kind != yaml.MappingNode {
		return nil, d.located(under("configs", configs, wrong(configs.line, "want a mapping of names to configs")))
	}
	byDefault := ""
	if n := root.get("default"); n != nil && !n.null() {
		var err error
		if byDefault, err = n.word(); err == nil && configs.get(byDefault) == nil {
			err = wrong(n.line, "no config is named %q", byDefault)
		}
		if err != nil {
			return nil, d.located(under("default", n, err))
		}
	}
	var names []string
	for _, e := range configs.entries {
		names = append(names, e.key)
	}
	var err error
	if d.name, err = choose(d.file, names, wanted, byDefault); err != nil {
		return nil, err
	}
	d.prefix = "configs." + d.name + "."
	return configs.get(d.name), nil
}

// located puts the file and the line before an error.
func (d *document) located(err error) error {
	var f fault
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && f.line > 0:
		return fmt.Errorf("%s:%d: %w", d.file, f.line, err)
	}
	return fmt.Errorf("%s: %w", d.file, err)
}
