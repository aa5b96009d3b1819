// Package nodelabel copies the value of a label of the node to a file, which
// selects the node's configuration.
//
// The file keeps the last known value while the API server is away, also over a
// restart.
package nodelabel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/retry"
)

const minBackoff, maxBackoff = 500 * time.Millisecond, 10 * time.Second

// errListed ends Load.
var errListed = errors.New("listed")

// LabelWatcher copies the label.
type LabelWatcher struct {
	device.Heartbeat
	Node *kubeapi.Follower // of /api/v1/nodes
	Key  string            // of the label
	File string            // holds the value
	// Default is the value for a node without the label; may be empty.
	Default string
	Log     *slog.Logger

	found    bool // the node is in the list
	loggedAt time.Time
}

// Load copies the current value. After an error, the file has the last known
// value, or the Default.
func (w *LabelWatcher) Load(ctx context.Context) error {
	err := w.Node.Follow(ctx, func(e kubeapi.WatchEvent) error {
		if err := w.handle(e); err != nil {
			return err
		}
		if e.Type == kubeapi.ListEnded {
			return errListed
		}
		return nil
	})
	if errors.Is(err, errListed) {
		return nil
	}
	if _, statErr := os.Stat(w.File); errors.Is(statErr, fs.ErrNotExist) {
		err = errors.Join(err, w.store(w.Default))
	}
	return fmt.Errorf("read label %s of the node: %w", w.Key, err)
}

// Run copies changes until ctx is done.
func (w *LabelWatcher) Run(ctx context.Context) error {
	backoff := retry.Backoff{Min: minBackoff, Max: maxBackoff}
	for ctx.Err() == nil {
		w.Rest()
		begin := time.Now()
		err := w.Node.Follow(ctx, w.handle)
		w.Beat()
		switch {
		case ctx.Err() != nil:
		case err == nil:
			// a watch that ends at once must not be renewed without a pause
			_ = retry.Sleep(ctx, time.Until(begin.Add(maxBackoff/5)))
		default:
			if time.Since(begin) > maxBackoff {
				backoff.Reset()
			}
			if w.loggedAt.IsZero() {
				w.Log.Warn("cannot watch node label, keeping the last config", "label", w.Key, "err", err)
				w.loggedAt = time.Now()
			}
			_ = retry.Sleep(ctx, retry.Spread(backoff.Next()))
		}
	}
	return nil
}

func (w *LabelWatcher) handle(e kubeapi.WatchEvent) error {
	switch e.Type {
	case kubeapi.ListStarted:
		w.found = false
		return nil
	case kubeapi.Added, kubeapi.Modified:
		w.found = true
		var node struct {
			Metadata struct{ Labels map[string]string }
		}
		if err := json.Unmarshal(e.Object, &node); err != nil {
			return fmt.Errorf("decode node: %w", err)
		}
		if err := w.store(cmp.Or(node.Metadata.Labels[w.Key], w.Default)); err != nil {
			return err
		}
	case kubeapi.ListEnded:
		if !w.found {
			return errors.New("the API server has no such node")
		}
	}
	if !w.loggedAt.IsZero() {
		w.Log.Info("watching node label again", "label", w.Key)
		w.loggedAt = time.Time{}
	}
	return nil
}

// store replaces the content of the file, if it differs.
func (w *LabelWatcher) store(value string) error {
	before, err := os.ReadFile(w.File)
	if err == nil && strings.TrimSpace(string(before)) == value {
		return nil
	}
	if err := atomicfile.Replace(w.File, []byte(value+"\n")); err != nil {
		return fmt.Errorf("store label %s: %w", w.Key, err)
	}
	w.Log.Info("node label selects a config", "label", w.Key, "value", value)
	return nil
}
