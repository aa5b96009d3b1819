package sysfs

import (
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"
)

const (
	// fileTimeout is how long a reading waits for a file: a file of a NIC is a
	// call to its driver or firmware.
	fileTimeout = 50 * time.Millisecond
	// maxHanging bounds the reads that do not return, each of which has a
	// thread.
	maxHanging   = 8
	maxFileBytes = 4096
	maxEntries   = 256 // of a folder, and ports; further ones are ignored
)

// files reads files that may hang.
type files struct {
	root fs.FS

	mu      sync.Mutex
	pending map[string]bool // the files that are being read; guarded by mu
}

// file returns the content of a file. A read that hangs is not repeated until
// it returns.
func (f *files) file(path string) (string, error) {
	if !f.begin(path) {
		return "", fmt.Errorf("read %s: an earlier read does not return", path)
	}
	type result struct {
		content []byte
		err     error
	}
	results := make(chan result, 1)
	go func() {
		var read result
		opened, err := f.root.Open(path)
		if err == nil {
			read.content, err = io.ReadAll(io.LimitReader(opened, maxFileBytes))
			opened.Close() //nolint:errcheck // opened for reading
		}
		read.err = err
		f.mu.Lock()
		delete(f.pending, path)
		f.mu.Unlock()
		results <- read
	}()
	select {
	case read := <-results:
		return strings.TrimSpace(string(read.content)), read.err
	case <-time.After(fileTimeout):
		return "", fmt.Errorf("read %s: no answer within %s", path, fileTimeout)
	}
}

// begin reports whether a read of a file may begin.
func (f *files) begin(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending[path] || len(f.pending) >= maxHanging {
		return false
	}
	f.pending[path] = true
	return true
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
