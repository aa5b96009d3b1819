// Package testfile reads the files of tests, and compares golden files.
package testfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// Read returns the content of a file.
func Read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

// Names returns the sorted names of the files in a folder.
func Names(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Section is a part of a file that begins with the line "= TITLE".
type Section struct{ Title, Text string }

// Sections reads a file of sections. Lines that begin with # are comments.
func Sections(t testing.TB, path string) (all []Section) {
	t.Helper()
	for line := range strings.Lines(Read(t, path)) {
		if title, isTitle := strings.CutPrefix(line, "= "); isTitle {
			all = append(all, Section{Title: strings.TrimSpace(title)})
		} else if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			all[len(all)-1].Text += line
		}
	}
	return all
}

// CheckGolden compares a text with a golden file, or writes the file first.
func CheckGolden(t testing.TB, update bool, path, got string) {
	t.Helper()
	if update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644)) //nolint:gosec // a file of the repository
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		difference := firstDifference(got, string(want))
		t.Errorf("differs from %s (%v); if intended, run make golden\n%s", path, err, difference)
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d: got %q\nwant %q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

// CopyUnpacked copies a program to a folder in blocks of 32 KB, as containerd
// unpacks a layer, and returns the path of the copy. The kernel keeps the file
// of Go's linker in huge pages, and a huge page counts as resident as a whole.
func CopyUnpacked(t testing.TB, program, dir string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(program))
	from, err := os.Open(program)
	require.NoError(t, err)
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	require.NoError(t, err)
	// The anonymous structs hide WriteTo and ReadFrom, which would copy larger
	// blocks.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	require.NoError(t, errors.Join(err, to.Sync(), to.Close(), from.Close()))
	return path
}
