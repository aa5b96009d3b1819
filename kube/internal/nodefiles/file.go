// Package nodefiles keeps files for podgauge, which has no access to the API
// server: the name of the node's config, and the claims with admin access.
//
// The files keep the last known content while the API server is away.
package nodefiles

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/kube/internal/source"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second

// File is a file that follows the objects of a source.
type File struct {
	Path    string
	Objects *source.Source
	// Content returns the content for the objects. An empty content with an
	// error leaves the file as it is.
	Content func(ctx context.Context, objects []any) (string, error)
	// Default is the content before the objects are known; empty: none.
	Default string
	// Once ends Run after the first content, or with ctx.
	Once bool
	Log  *slog.Logger
}

// Run keeps the file until ctx is done. The source runs beside it.
func (f *File) Run(ctx context.Context) error {
	if _, err := os.Stat(f.Path); f.Default != "" && os.IsNotExist(err) {
		if err := f.store(f.Default); err != nil {
			return err
		}
	}
	changes := make(chan struct{}, 1)
	_, err := f.Objects.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { pubsub.Notify(changes) },
		UpdateFunc: func(_, _ any) { pubsub.Notify(changes) },
		DeleteFunc: func(any) { pubsub.Notify(changes) },
	})
	if err != nil {
		return err
	}
	select {
	case <-f.Objects.HasSyncedChecker().Done():
		f.follow(ctx, changes)
	case <-ctx.Done():
		err, _ := f.Objects.Err.Get()
		f.Log.Warn("no answer of the API server, keeping the last known content", "file", f.Path,
			"err", cmp.Or(err, ctx.Err()))
	}
	return nil
}

// follow updates the file after each change, and again after an error.
func (f *File) follow(ctx context.Context, changes <-chan struct{}) {
	backoff := retry.Backoff{Min: minBackoff, Max: maxBackoff}
	failed := false
	for ctx.Err() == nil {
		var again <-chan time.Time
		content, err := f.Content(ctx, f.Objects.GetStore().List())
		if content != "" || err == nil {
			err = errors.Join(err, f.store(content))
		}
		switch {
		case err != nil:
			if !failed {
				f.Log.Warn("cannot update file, trying again", "file", f.Path, "err", err)
			}
			again = time.After(retry.Spread(backoff.Next()))
		case failed:
			f.Log.Info("updated file again", "file", f.Path)
			backoff.Reset()
		}
		if failed = err != nil; f.Once {
			return
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-changes:
		}
	}
}

// store replaces the content, if it differs.
func (f *File) store(content string) error {
	if before, err := os.ReadFile(f.Path); err == nil && string(before) == content {
		return nil
	}
	if err := atomicfile.Replace(f.Path, []byte(content)); err != nil {
		return err
	}
	f.Log.Info("file changed", "file", f.Path, "content", content)
	return nil
}

// Label returns the content of a file with a label of the node. A node without
// the label has the default value, which may be empty.
func Label(key, defaultValue string) func(context.Context, []any) (string, error) {
	return func(_ context.Context, nodes []any) (string, error) {
		if len(nodes) == 0 {
			return "", errors.New("the API server has no such node")
		}
		return cmp.Or(nodes[0].(*v1.Node).Labels[key], defaultValue) + "\n", nil
	}
}
