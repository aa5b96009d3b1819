package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, want := range []string{"old", "new"} {
		require.NoError(t, atomicfile.Replace(path, []byte(want)))
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("content: got %q, %v, want %q", got, err, want)
		}
	}
	expect.EqualSlices(t, testfile.Names(t, dir), []string{"file"}, "files")
}

func TestReplaceFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "folder")
	require.NoError(t, os.Mkdir(path, 0o755))
	expect.Error(t, atomicfile.Replace(path, nil), "", "for the name of a folder")
	expect.EqualSlices(t, testfile.Names(t, dir), []string{"folder"}, "files")
	expect.Error(t, atomicfile.Replace(filepath.Join(dir, "missing", "file"), nil), "",
		"in a missing folder")
}

func TestRemoveStaleTemps(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for name, at := range map[string]time.Time{".file.1.tmp": old, ".file.2.tmp": time.Now(), ".other.1.tmp": old, "file": old} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	atomicfile.RemoveStaleTemps(filepath.Join(dir, "file"))
	expect.EqualSlices(t, testfile.Names(t, dir), []string{".file.2.tmp", ".other.1.tmp", "file"}, "files")
}
