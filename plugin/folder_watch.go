package plugin

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// folderPollInterval is the time between two looks at a folder without inotify,
// and at a missing folder.
const folderPollInterval = time.Second

// folderWatch publishes changes of the folder of the kubelet's socket and of
// the own sockets.
type folderWatch struct {
	pubsub.Value[struct{}]
	dir        string
	newWatcher func() (*fsnotify.Watcher, error)
	log        *slog.Logger
}

// run watches the folder until ctx is done. While the folder cannot be watched,
// each second counts as a change.
func (w *folderWatch) run(ctx context.Context) error {
	logged := ""
	for ctx.Err() == nil {
		err := w.watch(ctx)
		// The endpoints log a missing folder.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && err.Error() != logged {
			logged = err.Error()
			w.log.Warn("cannot watch device-plugin folder, polling every second", "folder", w.dir, "err", err)
		}
		_ = retry.Sleep(ctx, folderPollInterval) // an error ends the loop
		w.Set(struct{}{})
	}
	return nil
}

// watch publishes changes until ctx is done or the folder is gone.
func (w *folderWatch) watch(ctx context.Context) error {
	watcher, err := w.newWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close() //nolint:errcheck // no more events are needed
	if err := watcher.Add(w.dir); err != nil {
		return err
	}
	w.Set(struct{}{}) // changes before Add
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			w.Set(struct{}{})
			if event.Name == w.dir && event.Has(fsnotify.Remove|fsnotify.Rename) {
				return fs.ErrNotExist
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}
