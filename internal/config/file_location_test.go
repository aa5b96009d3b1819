package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
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

// TestConfigNameWithoutFile checks that the name of a config requires a file.
func TestConfigNameWithoutFile(t *testing.T) {
	const want = "--config-name and --config-name-file require --config-file"
	for _, variable := range []string{"CONFIG_NAME", "CONFIG_NAME_FILE"} {
		if _, err := newTestBuilder(t, map[string]string{variable: "a"}).Load(); fmt.Sprint(err) != want {
			t.Errorf("%s: got %v, want %s", variable, err, want)
		}
		if _, err := newTestBuilder(t, map[string]string{variable: ""}).Load(); err != nil {
			t.Error(err)
		}
	}
}

// TestNamedConfigs checks that configs are selected as by NVIDIA's config-manager.
func TestNamedConfigs(t *testing.T) {
	none, single, mixed := "version: v1\n", "flags: {migStrategy: single}", "flags: {migStrategy: mixed}"
	one, named, two := []string{"c", single}, []string{"c", namedConfigs}, []string{"default", single, "other", mixed}
	file := func(text string) []string { return []string{"c", text} }
	for _, c := range []struct {
		name          string
		files         []string
		config, label string // by flag, and in a file; "-": no file
		want          string // MIG strategy and config, or the error; the folder is F
	}{
		{"one config", one, "", "-", "single "},
		{"name for an unnamed config", one, "x", "", `F/c: --config-name "x": the file has one config without a name`},
		{"the default", named, "", "\n", "none plain"},
		{"selected by flag", named, "mixed", "wrong", "mixed mixed"},
		{"selected by label", named, "", "mixed\n", "mixed mixed"},
		{"unknown name", named, "x", "", `F/c: no config "x"; valid names are mixed, plain, void, wrong`},
		{"invalid config", named, "wrong", "", `F/c:9: flags.migStrategy: "odd": expected none, single or mixed`},
		{"null config", named, "void", "", "F/c:10: is empty"},
		{"named default", file("configs: {default: {" + mixed + "}, other: {}}"), "", "", "mixed default"},
		{"single config", file("configs: {other: {" + mixed + "}}"), "", "", "mixed other"},
		{"no default", file("configs: {b: {}, a: {}}"), "", "", "F/c: several configs without a default; set --config-name to one of a, b"},
		{"missing default", file("default: x\nconfigs: {a: {}}"), "", "", `F/c: no config "x"; valid names are a`},
		{"default is a list", file("configs: {a: {}}\ndefault: [a]"), "", "", "F/c:2: default: cannot unmarshal !!seq into string"},
		{"no configs", file("configs: {}"), "", "", "F/c: no configs"},
		{"configs is a list", file("version: v1\nconfigs: []"), "", "", "F/c:2: configs: expected a mapping"},
		{"version of the file", file("version: v2\nconfigs: {a: {}}"), "", "", `F/c:1: version: "v2": expected v1`},
		{"version of a config", file("version: v1\nconfigs:\n  a: {version: v3}"), "", "", `F/c:3: version: "v3": expected v1`},
		{"folder with one file", []string{"any", single}, "", "", "single any"},
		{"folder with a default", two, "", "", "single default"},
		{"folder, selected by label", two, "", "other", "mixed other"},
		{"folder, unknown name", two, "", "../other", `read config: F: no config "../other"; valid names are default, other`},
		{"empty folder", nil, "", "", "read config: F: no configs"},
		{
			"folder without a default",
			[]string{"a", none, "b", none},
			"", "",
			"read config: F: several configs without a default; set --config-name to one of a, b",
		},
	} {
		dir := writeFiles(t, c.files...)
		path, label := dir, filepath.Join(t.TempDir(), "label")
		if len(c.files) > 0 && c.files[0] == "c" {
			path = filepath.Join(dir, "c")
		}
		if c.label != "-" {
			os.WriteFile(label, []byte(c.label), 0o644)
		}
		l, err := newTestBuilder(t, nil, "--config-file="+path, "--config-name="+c.config, "--config-name-file="+label).Load()
		got := l.Settings.MIGStrategy + " " + l.Config
		if err != nil {
			got = strings.ReplaceAll(err.Error(), dir, "F")
		}
		expect.Equal(t, got, c.want, c.name)
	}
}

// TestNotRegularFiles checks that a pipe does not block, that /dev/null is an empty config, and missing files and names.
func TestNotRegularFiles(t *testing.T) {
	dir := writeFiles(t, "label", "two\nlines", "c", namedConfigs)
	pipe, null, label := filepath.Join(dir, "pipe"), filepath.Join(dir, "null"), filepath.Join(dir, "label")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for want, location := range map[string]FileLocation{
		"read config: F/pipe: not a regular file":                 {File: pipe},
		"read config: /dev/zero: not a regular file":              {File: "/dev/zero"},
		"read config: open F/x: no such file or directory":        {File: filepath.Join(dir, "x")},
		"read config: F/label: not the name of a config":          {File: filepath.Join(dir, "c"), NameFile: label},
		"read config: F/pipe: not a regular file, with its label": {File: filepath.Join(dir, "c"), NameFile: pipe},
	} {
		_, err := newTestBuilder(t, nil).LoadFrom(location)
		if got := strings.ReplaceAll(fmt.Sprint(err), dir, "F"); got != strings.TrimSuffix(want, ", with its label") {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	os.Symlink(os.DevNull, null) // the "empty" fallback of NVIDIA's config-manager
	l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: null})
	if err != nil || l.Settings.MIGStrategy != MIGNone || l.Notices != nil {
		t.Errorf("got %+v, error %v, want the defaults without notices", l, err)
	}
}

// TestFileBecomesPipe replaces a file by a pipe and back while it is read: no read waits for a writer.
func TestFileBecomesPipe(t *testing.T) {
	dir := writeFiles(t, "file", "version: v1\n")
	file, pipe, path := filepath.Join(dir, "file"), filepath.Join(dir, "pipe"), filepath.Join(dir, "c")
	require.NoError(t, errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(file, path)))
	timeout, read := time.After(time.Minute), make(chan struct{})
	go func() {
		defer close(read)
		for range 2000 {
			_, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: path})
			if err != nil && !strings.Contains(err.Error(), "not a regular file") {
				t.Error(err)
			}
		}
	}()
	for {
		for _, target := range []string{file, pipe} {
			os.Symlink(target, path+".new")
			os.Rename(path+".new", path)
		}
		select {
		case <-read:
			return
		case <-timeout:
			t.Fatal("a read waits for a writer")
		default:
		}
	}
}

const v1 = "version: v1\n"

// TestFiles checks the error, or notices, unknown keys and settings, of the files in testdata/files.txt. A case is "==",
// the file, "--" and the lines.
func TestFiles(t *testing.T) {
	const name = "testdata/files.txt"
	var updated strings.Builder
	for c := range strings.SplitSeq("\n"+strings.TrimSuffix(testfile.Read(t, name), "\n"), "\n==\n") {
		if c == "" {
			continue
		}
		file, _, _ := strings.Cut(c, "\n--\n")
		l, got := loadFile(t, file+"\n")
		if got == "accepted" {
			got = describe(l)
		}
		fmt.Fprintf(&updated, "==\n%s\n--\n%s\n", file, got)
	}
	testfile.CheckGolden(t, *update, name, updated.String())
}

// TestHostileFiles checks that small files cannot take unlimited resources.
func TestHostileFiles(t *testing.T) {
	bomb := v1 + "flags:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("  %c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10))
	}
	manyKeys := ""
	for i := range maxFileBytes / 16 {
		manyKeys += fmt.Sprintf("x%d: 1\n", i)
	}
	for file, want := range map[string]string{
		"":                   "config.yaml: is empty",
		"\xff\xfe\x00":       "config.yaml: incomplete UTF-16 character",
		v1 + "flags: \x01\n": "config.yaml: control characters are not allowed",
		"version: v1 # " + strings.Repeat("x", maxFileBytes): "config.yaml: more than 128 KiB",
		bomb:                        "document contains excessive aliasing",
		v1 + "flags: &a [*a]\n":     "anchor 'a' value contains itself",
		v1 + "flags: &a {<<: *a}\n": "anchor 'a' value contains itself",
		v1 + "flags: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000): "flags: expected a mapping",
		strings.Repeat("[", maxFileBytes):                                      "exceeded max depth of 10000",
		strings.Repeat("{a: ", 30000):                                          "exceeded max depth of 10000",
		"[" + strings.Repeat("1,", maxFileBytes/2-1):                           "did not find expected",
		v1 + manyKeys + "flags: 0\n":                                           "flags: expected a mapping",
		"version: *v\n":                                                        "unknown anchor 'v' referenced",
		v1 + "<<: 5\n":                                                         "map merge requires map or sequence of maps as the value",
	} {
		if _, got := loadFile(t, file); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%.80q: got error %q, want %q", file, got, want)
		}
	}
}

// TestDependentSettings checks settings that depend on others.
func TestDependentSettings(t *testing.T) {
	if s := mustLoad(t, v1+"flags: {nvidiaDriverRoot: 5}\n").Settings; s.DriverRoot != "5" || s.DevRoot != "5" {
		t.Errorf("got driver root %s and dev root %s, want 5", s.DriverRoot, s.DevRoot)
	}
	for given, want := range map[string]bool{"": true, "failRequestsGreaterThanOne: false,": false} {
		file := v1 + "flags: {mpsRoot: /m}\nsharing: {mps: {" + given + " resources: [{name: gpu, replicas: 2}]}}\n"
		expect.Equal(t, mustLoad(t, file).Settings.Sharing.MPS.FailRequestsGreaterThanOne, want,
			given, "got requests for several replicas rejected")
	}
}
