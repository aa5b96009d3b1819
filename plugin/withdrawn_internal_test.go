package plugin

import (
	"log/slog"
	"slices"
	"testing"
)

// TestResourceFileInARollingUpdate checks that an unchanged registration of the old process keeps the entries of the new process.
func TestResourceFileInARollingUpdate(t *testing.T) {
	dir := t.TempDir()
	old := loadRegistered(dir, slog.New(slog.DiscardHandler))
	old.add("example.com/old")
	loadRegistered(dir, old.log).add("example.com/new")
	old.add("example.com/old")
	if got, want := loadRegistered(dir, old.log).list(), []string{"example.com/new", "example.com/old"}; !slices.Equal(got, want) {
		t.Errorf("resources: got %q, want %q", got, want)
	}
}
