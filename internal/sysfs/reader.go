// Package sysfs reads RDMA ports and the sensors of CPU sockets from the
// kernel's sysfs.
//
// Ids of device plugins and DRA drivers never become paths: Reading.Devices
// looks them up among the names that sysfs lists.
package sysfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
)

const (
	// waitTimeout is how long a scrape waits for a reading. A later scrape
	// shows a slower reading.
	waitTimeout = 200 * time.Millisecond
	// fileTimeout is how long a reading waits for a file: a file of a NIC is a
	// call to its driver or firmware.
	fileTimeout = 50 * time.Millisecond
	maxAge      = 60 * time.Second // of an exported reading
	// maxHanging bounds the reads that do not return, each of which has a
	// thread.
	maxHanging   = 8
	maxFileBytes = 4096
	maxEntries   = 256 // of a folder, and ports; further ones are ignored
	logInterval  = time.Hour
)

// Options select what is read.
type Options struct {
	Root      fs.FS // sysfs; os.Root.FS keeps links inside
	RDMA, CPU bool
	Log       *slog.Logger
}

// Reader reads sysfs. Its methods are safe for concurrent use.
type Reader struct {
	options Options
	log     *loglimit.Limiter[string]

	mu      sync.Mutex
	newest  *Reading        // the newest complete reading; guarded by mu
	running chan struct{}   // closed at the end of the running reading; nil: none; guarded by mu
	pending map[string]bool // the files that are being read; guarded by mu
}

// New returns a Reader. Nothing is opened before the first Read.
func New(o Options) *Reader {
	return &Reader{options: o, log: loglimit.New[string](logInterval), pending: map[string]bool{}}
}

// Read returns a new reading, or the newest one of the last minute if the new
// one takes over 200 ms; nil: none. A nil Reader has no reading.
func (r *Reader) Read(ctx context.Context) *Reading {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	r.mu.Lock()
	if r.running == nil {
		r.running = make(chan struct{})
		go r.read(r.running)
	}
	ended := r.running
	r.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == nil || time.Since(r.newest.At) >= maxAge {
		return nil
	}
	return r.newest
}

// read makes a reading. At most one runs.
func (r *Reader) read(ended chan struct{}) {
	c := &collection{Reader: r, reading: &Reading{At: time.Now(), devices: map[string][]string{}}}
	if r.options.RDMA {
		c.readRDMA()
	}
	if r.options.CPU {
		c.readCPU()
	}
	if c.err != nil && r.log.Allow("", time.Now()) {
		r.options.Log.Warn("sysfs values missing", "values", c.missing, "first", c.err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest, r.running = c.reading, nil
	close(ended)
}

// collection is a running reading.
type collection struct {
	*Reader
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
	entries, _ := fs.ReadDir(c.options.Root, folder)
	if len(entries) > maxEntries {
		c.miss(fmt.Errorf("list %s: %d entries, only the first %d are read", folder, len(entries), maxEntries))
		entries = entries[:maxEntries]
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// file returns the content of a file. A read that hangs is not repeated until
// it returns.
func (r *Reader) file(path string) (string, error) {
	if !r.begin(path) {
		return "", fmt.Errorf("read %s: an earlier read does not return", path)
	}
	type result struct {
		content []byte
		err     error
	}
	results := make(chan result, 1)
	go func() {
		var read result
		f, err := r.options.Root.Open(path)
		if err == nil {
			read.content, err = io.ReadAll(io.LimitReader(f, maxFileBytes))
			f.Close() //nolint:errcheck // opened for reading
		}
		read.err = err
		r.mu.Lock()
		delete(r.pending, path)
		r.mu.Unlock()
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
func (r *Reader) begin(path string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[path] || len(r.pending) >= maxHanging {
		return false
	}
	r.pending[path] = true
	return true
}
