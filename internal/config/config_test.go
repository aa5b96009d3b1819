package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestBuilder returns a Builder with these flags and variables.
func newTestBuilder(t testing.TB, env map[string]string, args ...string) *Builder {
	t.Helper()
	b := NewBuilder(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	b.AddFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return b
}

// writeTemp writes a file, and returns its path.
func writeTemp(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustLoad loads a file without flags and variables.
func mustLoad(t testing.TB, text string) Loaded {
	t.Helper()
	l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: writeTemp(t, "config.yaml", text)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// loadError returns the error of a rejected file, without the file's folder.
func loadError(t testing.TB, env map[string]string, s FileLocation, dir string) string {
	t.Helper()
	l, err := newTestBuilder(t, env).LoadFrom(s)
	if err == nil {
		t.Errorf("got %+v, want an error", l.Settings)
		return ""
	}
	return strings.ReplaceAll(err.Error(), dir+"/", "")
}

// newConfigMap creates a mounted ConfigMap as the kubelet does. Names and texts
// of the files alternate.
func newConfigMap(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	updateConfigMap(t, dir, files...)
	for i := 0; i < len(files); i += 2 {
		if err := os.Symlink("..data/"+files[i], filepath.Join(dir, files[i])); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// updateConfigMap replaces the files of a ConfigMap in one rename.
func updateConfigMap(t testing.TB, dir string, files ...string) {
	t.Helper()
	data, err := os.MkdirTemp(dir, "..2026_")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(files); i += 2 {
		os.WriteFile(filepath.Join(data, files[i]), []byte(files[i+1]), 0o644)
	}
	if err := os.Symlink(filepath.Base(data), filepath.Join(dir, "..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}
