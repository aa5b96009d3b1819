package nodefiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/podgauge/podgauge/kube/internal/source"
	v1 "k8s.io/api/core/v1"
)

// LabelFile copies the value of a label of the node to a file, which selects
// podgauge's config.
type LabelFile struct {
	file[*v1.Node]

	key, defaultValue string
}

// NewLabelFile returns a file with the value of a label. A node without the
// label has the default value, which may be empty.
func NewLabelFile(
	path string, node *source.Source[*v1.Node], key, defaultValue string, log *slog.Logger,
) (*LabelFile, error) {
	f, err := newFile(path, node, log)
	return &LabelFile{f, key, defaultValue}, err
}

// Load updates the file once. After an error, the file has the last known value
// or the default.
func (f *LabelFile) Load(ctx context.Context) error {
	err := f.wait(ctx)
	if err == nil {
		err = f.update(ctx)
	}
	if err == nil {
		return nil
	}
	if _, statErr := os.Stat(f.path); errors.Is(statErr, fs.ErrNotExist) {
		err = errors.Join(err, f.store(f.defaultValue+"\n"))
	}
	return fmt.Errorf("read label %s of the node: %w", f.key, err)
}

// Run follows the label until ctx is done.
func (f *LabelFile) Run(ctx context.Context) error { return f.run(ctx, f.update) }

func (f *LabelFile) update(context.Context) error {
	for _, node := range f.objects.Objects() { // one or none
		return f.store(cmp.Or(node.Labels[f.key], f.defaultValue) + "\n")
	}
	return errors.New("the API server has no such node")
}
