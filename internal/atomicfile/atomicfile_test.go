package atomicfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestReplace(t *testing.T) {
	d := OSDir(t.TempDir())
	for _, want := range []string{"old", "new"} {
		if err := Replace(d, "file", []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(d.Path("file")); err != nil || string(got) != want {
			t.Errorf("content: got %q, %v, want %q", got, err, want)
		}
	}
	wantFiles(t, d, "file")
}

func TestReplaceFailure(t *testing.T) {
	d := OSDir(t.TempDir())
	if err := os.Mkdir(d.Path("folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(d, "folder", nil); err == nil {
		t.Error("got no error for the name of a folder")
	}
	wantFiles(t, d, "folder")
	if err := Replace(OSDir(d.Path("missing")), "file", nil); err == nil {
		t.Error("got no error in a missing folder")
	}
}

func TestRemoveStaleTemps(t *testing.T) {
	d := OSDir(t.TempDir())
	for name, age := range map[string]time.Duration{".file.1.tmp": 2 * staleAge, ".file.2.tmp": 0, ".other.1.tmp": 2 * staleAge, "file": 2 * staleAge} {
		if err := os.WriteFile(d.Path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(d.Path(name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	d.RemoveStaleTemps("file")
	wantFiles(t, d, ".file.2.tmp", ".other.1.tmp", "file")
}

func wantFiles(t *testing.T, d OSDir, want ...string) {
	t.Helper()
	paths, err := filepath.Glob(d.Path("*"))
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	if err != nil || !slices.Equal(paths, want) {
		t.Errorf("files: got %q, %v, want %q", paths, err, want)
	}
}
