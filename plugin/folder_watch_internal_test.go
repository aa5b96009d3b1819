package plugin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestFolderWatch checks that new and removed files are reported, also after the folder was replaced.
func TestFolderWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "device-plugins")
	w := &folderWatch{dir: dir, newWatcher: fsnotify.NewWatcher, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx) }()
	change := func(event string, do func() error) {
		t.Helper()
		_, changed := w.Get()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("no change after: %s", event)
		}
	}
	file := filepath.Join(dir, "kubelet.sock")
	create := func() error { return os.WriteFile(file, nil, 0o600) }
	for range 2 {
		change("the folder is created", func() error { return os.Mkdir(dir, 0o755) })
		change("a file is created", create)
		change("the file is removed", func() error { return os.Remove(file) })
		change("the folder is removed", func() error { return os.Remove(dir) })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFolderWatchWithoutInotify checks that the folder counts as changed once a second, and that inotify is retried.
func TestFolderWatchWithoutInotify(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tries := 0
		w := &folderWatch{dir: t.TempDir(), newWatcher: func() (*fsnotify.Watcher, error) { tries++; return nil, syscall.EMFILE }, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.run(ctx) }()
		begin := time.Now()
		for second := 1; second <= 3; second++ {
			_, changed := w.Get()
			<-changed
			if got := time.Since(begin); got != time.Duration(second)*folderPollInterval {
				t.Errorf("change %d after %s", second, got)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if tries < 3 {
			t.Errorf("got %d tries of inotify", tries)
		}
	})
}
