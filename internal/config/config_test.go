package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestBuilder returns a Builder with these flags and variables.
func newTestBuilder(t testing.TB, env map[string]string, args ...string) *Builder {
	t.Helper()
	b := NewBuilder(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	b.AddFlags(f)
	require.NoError(t, f.Parse(args))
	return b
}

// writeFiles creates a folder of files. Names and texts alternate.
func writeFiles(t testing.TB, files ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o644))
	}
	return dir
}

// loadFile loads a file without flags and variables. The error, or "accepted", lacks the folder.
func loadFile(t testing.TB, text string) (l Loaded, errText string) {
	t.Helper()
	dir := writeFiles(t, "config.yaml", text)
	l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: filepath.Join(dir, "config.yaml")})
	if err == nil {
		return l, "accepted"
	}
	return l, strings.ReplaceAll(err.Error(), dir+"/", "")
}

func mustLoad(t testing.TB, text string) Loaded {
	t.Helper()
	l, errText := loadFile(t, text)
	if errText != "accepted" {
		t.Fatal(errText)
	}
	return l
}

// describe returns the notices, unknown keys and settings of a file, a line each, without its folder.
func describe(l Loaded) string {
	lines := slices.Clone(l.Notices)
	for _, key := range l.UnknownKeys {
		lines = append(lines, key.String())
	}
	for _, s := range l.Summary() {
		lines = append(lines, fmt.Sprintf("%s: %s (%s)", s.Name, s.Value, s.Origin))
	}
	return regexp.MustCompile(`[^ (\n]*/([\w.-]+:\d)`).ReplaceAllString(strings.Join(lines, "\n"), "$1")
}
