// Package nodefiles keeps files for podgauge, which has no access to the API
// server: the name of the node's config, and the claims with admin access.
//
// The files keep the last known content while the API server is away.
package nodefiles

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/kube/internal/source"
	"k8s.io/client-go/tools/cache"
)

const minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second

// file is a file that follows the objects of a source.
type file[T cache.Object] struct {
	path    string
	objects *source.Source[T]
	changes <-chan struct{} // of objects
	log     *slog.Logger
}

func newFile[T cache.Object](path string, objects *source.Source[T], log *slog.Logger) (file[T], error) {
	changes, err := objects.Changes()
	return file[T]{path, objects, changes, log}, err
}

// wait returns when the objects are known.
func (f *file[T]) wait(ctx context.Context) error {
	select {
	case <-f.objects.HasSyncedChecker().Done():
		return nil
	case <-ctx.Done():
		err, _ := f.objects.Err.Get()
		return fmt.Errorf("wait for the API server: %w", cmp.Or(err, context.Cause(ctx)))
	}
}

// run calls update after each change, and again after an error.
func (f *file[T]) run(ctx context.Context, update func(context.Context) error) error {
	if f.wait(ctx) != nil {
		return nil // at the end
	}
	backoff := retry.Backoff{Min: minBackoff, Max: maxBackoff}
	failed := false
	for ctx.Err() == nil {
		var again <-chan time.Time
		if err := update(ctx); err != nil {
			if !failed && ctx.Err() == nil {
				f.log.Warn("cannot update file, keeping the last content", "file", f.path, "err", err)
			}
			again = time.After(retry.Spread(backoff.Next()))
			failed = true
		} else if failed {
			f.log.Info("updated file again", "file", f.path)
			backoff.Reset()
			failed = false
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-f.changes:
		}
	}
	return nil
}

// store replaces the content, if it differs.
func (f *file[T]) store(content string) error {
	before, err := os.ReadFile(f.path)
	if err == nil && bytes.Equal(before, []byte(content)) {
		return nil
	}
	if err := atomicfile.Replace(f.path, []byte(content)); err != nil {
		return err
	}
	f.log.Info("file changed", "file", f.path, "content", content)
	return nil
}
