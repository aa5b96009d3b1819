package sysfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// fileTimeout is how long a reading waits for a file: a file of a NIC is a
	// call to its driver or firmware.
	fileTimeout = 50 * time.Millisecond
	// maxHanging bounds the reads that do not return, each of which has a thread
	// and is the only one of its device.
	maxHanging   = 64
	maxFileBytes = 4096
	maxEntries   = 256 // of a folder, and ports; further ones are ignored
)

// files reads files that may hang.
type files struct {
	root fs.FS

	mu      sync.Mutex
	pending map[string]bool // the devices of the files that are being read; guarded by mu
}

// file returns the content of a file. While a read hangs, no file of its device
// is read.
func (f *files) file(path string) (string, error) {
	device := strings.Join(strings.SplitN(path, "/", 4)[:3], "/") // class/infiniband/mlx5_0
	if err := f.begin(device); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	type result struct {
		content []byte
		err     error
	}
	read, inTime := retry.WithTimeout(context.Background(), fileTimeout, func(context.Context) (r result) {
		defer f.end(device)
		opened, err := f.root.Open(path)
		if err != nil {
			return result{err: err}
		}
		defer opened.Close() //nolint:errcheck // opened for reading
		r.content, r.err = io.ReadAll(io.LimitReader(opened, maxFileBytes))
		return r
	})
	if !inTime {
		return "", fmt.Errorf("read %s: no answer within %s", path, fileTimeout)
	}
	return strings.TrimSpace(string(read.content)), read.err
}

// begin begins a read of a device's file, or returns why it may not begin.
func (f *files) begin(device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.pending[device]:
		return errors.New("an earlier read of the device does not return")
	case len(f.pending) >= maxHanging:
		return fmt.Errorf("reads of %d other devices do not return", maxHanging)
	}
	f.pending[device] = true
	return nil
}

func (f *files) end(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pending, device)
}

// collection is a running reading.
type collection struct {
	*files
	reading *Reading
	missing int   // values
	err     error // of the first missing value
}

// miss counts a missing value.
func (c *collection) miss(err error) {
	c.missing++
	if c.err == nil {
		c.err = err
	}
}

// list returns the names in a folder; none if the folder is missing.
func (c *collection) list(folder string) (names []string) {
	entries, _ := fs.ReadDir(c.root, folder)
	if len(entries) > maxEntries {
		c.miss(fmt.Errorf("list %s: %d entries, only the first %d are read", folder, len(entries), maxEntries))
		entries = entries[:maxEntries]
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
