package plugin

import (
	"log/slog"
	"os"
	"slices"
	"testing"
)

// TestDeletedResourceFile: the next registration restores the file.
func TestDeletedResourceFile(t *testing.T) {
	s := loadRegistered(t.TempDir(), slog.New(slog.DiscardHandler))
	s.remove("example.com/none")
	if _, err := os.Lstat(s.path); err == nil {
		t.Error("a file without resources exists")
	}
	s.add("nvidia.com/gpu")
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	s.add("nvidia.com/gpu")
	if again := loadRegistered(s.path[:len(s.path)-len(registeredFile)], s.log); !slices.Equal(again.list(), []string{"nvidia.com/gpu"}) {
		t.Errorf("resources %q, want nvidia.com/gpu", again.list())
	}
}

// TestResourceFileInARollingUpdate: an unchanged registration of the old process keeps the entries of the new process.
func TestResourceFileInARollingUpdate(t *testing.T) {
	dir := t.TempDir()
	old := loadRegistered(dir, slog.New(slog.DiscardHandler))
	old.add("example.com/old")
	loadRegistered(dir, old.log).add("example.com/new")
	old.add("example.com/old")
	if got, want := loadRegistered(dir, old.log).list(), []string{"example.com/new", "example.com/old"}; !slices.Equal(got, want) {
		t.Errorf("resources %q, want %q", got, want)
	}
}
