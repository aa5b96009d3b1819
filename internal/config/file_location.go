package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/podgauge/podgauge/internal/text"
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
	c.data, err = readFile(c.file)
	return c, err
}

// wantedName returns the name of the config; empty: any. NameFile may be
// missing or empty: the node may lack the label.
func (l FileLocation) wantedName() (string, error) {
	if l.Name != "" || l.NameFile == "" {
		return l.Name, nil
	}
	data, err := readFile(l.NameFile)
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

// readFile reads a regular file, up to the limit of a config and one byte. The
// open file is asked for its type: the path may change. Without O_NONBLOCK,
// opening a pipe would wait for a writer.
func readFile(path string) (string, error) {
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
	return string(data), err
}
