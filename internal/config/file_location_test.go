package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const namedConfigs = `version: v1
default: plain
configs:
  plain: {flags: {migStrategy: none}}
  mixed:
    version: v1
    flags:
      migStrategy: mixed
  wrong: {flags: {migStrategy: odd}}
  void:
`

// writeDir makes one of files, whose names and texts alternate.
func writeDir(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestNamesWithoutAFile: a name that nothing is chosen by is a mistake.
func TestNamesWithoutAFile(t *testing.T) {
	const says = "--config-name and --config-name-file require --config-file"
	for _, env := range []map[string]string{{"CONFIG_NAME": "a"}, {"CONFIG_NAME_FILE": "/label"}} {
		if _, err := newTestBuilder(t, env).Load(); errText(err) != says {
			t.Errorf("%v: %v, want %s", env, err, says)
		}
	}
	if _, err := newTestBuilder(t, map[string]string{"CONFIG_NAME": "", "CONFIG_NAME_FILE": ""}).Load(); err != nil {
		t.Error(err)
	}
}

// TestNamedConfigs: chosen as NVIDIA's config-manager chooses.
func TestNamedConfigs(t *testing.T) {
	none, single, mixed := "version: v1\n", "flags: {migStrategy: single}\n", "flags: {migStrategy: mixed}\n"
	for _, c := range []struct {
		name    string
		files   []string
		file    string // below the folder
		config  string
		label   string // in a file; "-": the file is not there
		chosen  string
		refused string // with FOLDER for the folder
	}{
		{name: "one config", files: []string{"c", single}, file: "c", label: "-", chosen: "single "},
		{name: "one config cannot be asked for", files: []string{"c", single}, file: "c", config: "x", refused: `FOLDER/c: --config-name "x": the file has one config without a name`},
		{name: "the default", files: []string{"c", namedConfigs}, file: "c", label: "\n", chosen: "none plain"},
		{name: "by flag", files: []string{"c", namedConfigs}, file: "c", config: "mixed", label: "wrong", chosen: "mixed mixed"},
		{name: "by label", files: []string{"c", namedConfigs}, file: "c", label: "mixed\n", chosen: "mixed mixed"},
		{name: "unknown", files: []string{"c", namedConfigs}, file: "c", config: "x", refused: `FOLDER/c: no config "x"; valid names are mixed, plain, void, wrong`},
		{name: "wrong within", files: []string{"c", namedConfigs}, file: "c", config: "wrong", refused: `FOLDER/c:9: flags.migStrategy: "odd": expected none, single or mixed`},
		{name: "null within", files: []string{"c", namedConfigs}, file: "c", config: "void", refused: "FOLDER/c:10: is empty"},
		{name: "named default", files: []string{"c", "configs: {default: {" + mixed[:len(mixed)-1] + "}, other: {}}"}, file: "c", chosen: "mixed default"},
		{name: "the only one", files: []string{"c", "configs: {other: {" + mixed[:len(mixed)-1] + "}}"}, file: "c", chosen: "mixed other"},
		{name: "none is the default", files: []string{"c", "configs: {b: {}, a: {}}"}, file: "c", refused: "FOLDER/c: several configs without a default; set --config-name to one of a, b"},
		{name: "a default that is not there", files: []string{"c", "default: x\nconfigs: {a: {}}"}, file: "c", refused: `FOLDER/c: no config "x"; valid names are a`},
		{name: "a default that is a list", files: []string{"c", "configs: {a: {}}\ndefault: [a]"}, file: "c", refused: "FOLDER/c:2: default: cannot unmarshal !!seq into string"},
		{name: "no configs", files: []string{"c", "configs: {}"}, file: "c", refused: "FOLDER/c: no configs"},
		{name: "configs are a list", files: []string{"c", "version: v1\nconfigs: []"}, file: "c", refused: "FOLDER/c:2: configs: expected a mapping"},
		{name: "version of several", files: []string{"c", "version: v2\nconfigs: {a: {}}"}, file: "c", refused: `FOLDER/c:1: version: "v2": expected v1`},
		{name: "version within", files: []string{"c", "version: v1\nconfigs:\n  a: {version: v3}"}, file: "c", refused: `FOLDER/c:3: version: "v3": expected v1`},

		{name: "a folder with one", files: []string{"any", single}, chosen: "single any"},
		{name: "a folder with a default", files: []string{"default", single, "other", mixed}, chosen: "single default"},
		{name: "a folder by label", files: []string{"default", single, "other", mixed}, label: "other", chosen: "mixed other"},
		{name: "a folder, unknown", files: []string{"default", single, "other", mixed}, label: "../other", refused: `FOLDER: no config "../other"; valid names are default, other`},
		{name: "a folder without", files: nil, refused: "FOLDER: no configs"},
		{name: "a folder, none is the default", files: []string{"a", none, "b", none}, refused: "FOLDER: several configs without a default; set --config-name to one of a, b"},
		{name: "nothing there", file: "x", refused: "read config: open FOLDER/x: no such file or directory"},
	} {
		dir, label := writeDir(t, c.files...), filepath.Join(t.TempDir(), "label")
		if c.label != "-" {
			os.WriteFile(label, []byte(c.label), 0o644)
		}
		l, err := newTestBuilder(t, nil, "--config-file="+filepath.Join(dir, c.file), "--config-name="+c.config, "--config-name-file="+label).Load()
		if c.refused != "" {
			says := strings.NewReplacer(dir, "FOLDER", label, "LABEL").Replace(strings.TrimPrefix(errText(err), "read config: FOLDER"))
			if strings.TrimPrefix(says, "read config: ") != strings.TrimPrefix(c.refused, "read config: ") {
				t.Errorf("%s: %s, want %s", c.name, says, c.refused)
			}
			continue
		}
		if got := l.Settings.MIGStrategy + " " + l.Config; err != nil || got != c.chosen {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.chosen)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "accepted"
	}
	return err.Error()
}

// TestMountedConfigMap: the kubelet's links, folders of its own among them.
func TestMountedConfigMap(t *testing.T) {
	dir := newConfigMap(t, "config0", "flags: {migStrategy: single}\n", "config1", "flags: {migStrategy: mixed}\n")
	l, err := newTestBuilder(t, map[string]string{"CONFIG_FILE": dir, "CONFIG_NAME": "config1"}).Load()
	if err != nil || l.Settings.MIGStrategy != MIGMixed {
		t.Errorf("%+v, %v", l.Settings, err)
	}
}

// TestNotRegularFiles: a pipe is not waited for, and /dev/null is no config.
func TestNotRegularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, null := filepath.Join(dir, "pipe"), filepath.Join(dir, "null")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loadError(t, nil, FileLocation{File: pipe}, dir); got != "read config: pipe: not a regular file" {
		t.Error(got)
	}
	if got := loadError(t, nil, FileLocation{File: "/dev/zero"}, dir); got != "read config: /dev/zero: not a regular file" {
		t.Error(got)
	}
	os.Symlink(os.DevNull, null) // the fallback "empty" of NVIDIA's config-manager
	if l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: null}); err != nil || l.Settings.MIGStrategy != MIGNone || l.Notices != nil {
		t.Errorf("%+v, %v", l, err)
	}
}
