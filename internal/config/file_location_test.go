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

// writeDir creates a folder of files. Names and texts alternate.
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

// TestConfigNameWithoutFile checks that the name of a config requires a file.
func TestConfigNameWithoutFile(t *testing.T) {
	const wantErr = "--config-name and --config-name-file require --config-file"
	for _, env := range []map[string]string{{"CONFIG_NAME": "a"}, {"CONFIG_NAME_FILE": "/label"}} {
		if _, err := newTestBuilder(t, env).Load(); errText(err) != wantErr {
			t.Errorf("%v: got %v, want %s", env, err, wantErr)
		}
	}
	if _, err := newTestBuilder(t, map[string]string{"CONFIG_NAME": "", "CONFIG_NAME_FILE": ""}).Load(); err != nil {
		t.Error(err)
	}
}

// TestNamedConfigs checks that configs are selected as by NVIDIA's
// config-manager.
func TestNamedConfigs(t *testing.T) {
	none, single, mixed := "version: v1\n", "flags: {migStrategy: single}\n", "flags: {migStrategy: mixed}\n"
	for _, c := range []struct {
		name    string
		files   []string
		file    string // relative to the folder
		config  string
		label   string // in a file; "-": no file
		want    string
		wantErr string // FOLDER is the folder
	}{
		{name: "one config", files: []string{"c", single}, file: "c", label: "-", want: "single "},
		{
			name: "name for an unnamed config", files: []string{"c", single}, file: "c", config: "x",
			wantErr: `FOLDER/c: --config-name "x": the file has one config without a name`,
		},
		{name: "the default", files: []string{"c", namedConfigs}, file: "c", label: "\n", want: "none plain"},
		{
			name: "selected by flag", files: []string{"c", namedConfigs}, file: "c", config: "mixed", label: "wrong",
			want: "mixed mixed",
		},
		{
			name: "selected by label", files: []string{"c", namedConfigs}, file: "c", label: "mixed\n",
			want: "mixed mixed",
		},
		{
			name: "unknown name", files: []string{"c", namedConfigs}, file: "c", config: "x",
			wantErr: `FOLDER/c: no config "x"; valid names are mixed, plain, void, wrong`,
		},
		{
			name: "invalid config", files: []string{"c", namedConfigs}, file: "c", config: "wrong",
			wantErr: `FOLDER/c:9: flags.migStrategy: "odd": expected none, single or mixed`,
		},
		{
			name: "null config", files: []string{"c", namedConfigs}, file: "c", config: "void",
			wantErr: "FOLDER/c:10: is empty",
		},
		{
			name: "named default", files: []string{"c", "configs: {default: {" + mixed[:len(mixed)-1] +
				"}, other: {}}"},
			file: "c", want: "mixed default",
		},
		{
			name: "single config", files: []string{"c", "configs: {other: {" + mixed[:len(mixed)-1] + "}}"}, file: "c",
			want: "mixed other",
		},
		{
			name: "no default", files: []string{"c", "configs: {b: {}, a: {}}"}, file: "c",
			wantErr: "FOLDER/c: several configs without a default; set --config-name to one of a, b",
		},
		{
			name: "missing default", files: []string{"c", "default: x\nconfigs: {a: {}}"}, file: "c",
			wantErr: `FOLDER/c: no config "x"; valid names are a`,
		},
		{
			name: "default is a list", files: []string{"c", "configs: {a: {}}\ndefault: [a]"}, file: "c",
			wantErr: "FOLDER/c:2: default: cannot unmarshal !!seq into string",
		},
		{name: "no configs", files: []string{"c", "configs: {}"}, file: "c", wantErr: "FOLDER/c: no configs"},
		{
			name: "configs is a list", files: []string{"c", "version: v1\nconfigs: []"}, file: "c",
			wantErr: "FOLDER/c:2: configs: expected a mapping",
		},
		{
			name: "version of the file", files: []string{"c", "version: v2\nconfigs: {a: {}}"}, file: "c",
			wantErr: `FOLDER/c:1: version: "v2": expected v1`,
		},
		{
			name: "version of a config", files: []string{"c", "version: v1\nconfigs:\n  a: {version: v3}"}, file: "c",
			wantErr: `FOLDER/c:3: version: "v3": expected v1`,
		},

		{name: "folder with one file", files: []string{"any", single}, want: "single any"},
		{name: "folder with a default", files: []string{"default", single, "other", mixed}, want: "single default"},
		{
			name: "folder, selected by label", files: []string{"default", single, "other", mixed}, label: "other",
			want: "mixed other",
		},
		{
			name: "folder, unknown name", files: []string{"default", single, "other", mixed}, label: "../other",
			wantErr: `FOLDER: no config "../other"; valid names are default, other`,
		},
		{name: "empty folder", files: nil, wantErr: "FOLDER: no configs"},
		{
			name: "folder without a default", files: []string{"a", none, "b", none},
			wantErr: "FOLDER: several configs without a default; set --config-name to one of a, b",
		},
		{name: "missing file", file: "x", wantErr: "read config: open FOLDER/x: no such file or directory"},
	} {
		dir, label := writeDir(t, c.files...), filepath.Join(t.TempDir(), "label")
		if c.label != "-" {
			os.WriteFile(label, []byte(c.label), 0o644)
		}
		l, err := newTestBuilder(t, nil, "--config-file="+filepath.Join(dir, c.file), "--config-name="+c.config,
			"--config-name-file="+label).Load()
		if c.wantErr != "" {
			got := strings.NewReplacer(dir, "FOLDER", label,
				"LABEL").Replace(strings.TrimPrefix(errText(err), "read config: FOLDER"))
			if strings.TrimPrefix(got, "read config: ") != strings.TrimPrefix(c.wantErr, "read config: ") {
				t.Errorf("%s: got %s, want %s", c.name, got, c.wantErr)
			}
			continue
		}
		if got := l.Settings.MIGStrategy + " " + l.Config; err != nil || got != c.want {
			t.Errorf("%s: got %s, error %v, want %s", c.name, got, err, c.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "accepted"
	}
	return err.Error()
}

// TestMountedConfigMap checks that the links and folders of the kubelet's mount
// are not configs.
func TestMountedConfigMap(t *testing.T) {
	dir := newConfigMap(t, "config0", "flags: {migStrategy: single}\n", "config1", "flags: {migStrategy: mixed}\n")
	l, err := newTestBuilder(t, map[string]string{"CONFIG_FILE": dir, "CONFIG_NAME": "config1"}).Load()
	if err != nil || l.Settings.MIGStrategy != MIGMixed {
		t.Errorf("got %+v, error %v, want MIG strategy mixed", l.Settings, err)
	}
}

// TestNotRegularFiles checks that a pipe does not block, and that /dev/null is
// an empty config.
func TestNotRegularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, null := filepath.Join(dir, "pipe"), filepath.Join(dir, "null")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loadError(t, nil, FileLocation{File: pipe}, dir); got != "read config: pipe: not a regular file" {
		t.Error(got)
	}
	got := loadError(t, nil, FileLocation{File: "/dev/zero"}, dir)
	if got != "read config: /dev/zero: not a regular file" {
		t.Error(got)
	}
	os.Symlink(os.DevNull, null) // the "empty" fallback of NVIDIA's config-manager
	l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: null})
	if err != nil || l.Settings.MIGStrategy != MIGNone || l.Notices != nil {
		t.Errorf("got %+v, error %v, want the defaults without notices", l, err)
	}
}
