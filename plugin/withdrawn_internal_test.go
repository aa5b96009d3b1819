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
