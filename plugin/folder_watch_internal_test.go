package plugin

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestFolderWatchWithoutInotify checks that the folder counts as changed once a
// second, and that inotify is retried.
func TestFolderWatchWithoutInotify(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tries := 0
		w := &folderWatch{dir: t.TempDir(), newWatcher: func() (*fsnotify.Watcher, error) {
			tries++
			return nil,
				syscall.EMFILE
		}, log: slog.New(slog.DiscardHandler)}
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
