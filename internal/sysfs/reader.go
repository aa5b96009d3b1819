// Package sysfs reads RDMA ports and the sensors of CPU sockets from the
// kernel's sysfs.
//
// Ids of device plugins and DRA drivers never become paths: Reading.Devices
// looks them up among the names that sysfs lists.
package sysfs

import (
	"context"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// waitTimeout is how long the scrape that begins a reading waits for it. A
	// later scrape shows a slower reading.
	waitTimeout = 200 * time.Millisecond
	maxAge      = 60 * time.Second // of an exported reading
	logInterval = time.Hour
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
	files   *files
	log     *loglimit.Limiter[string]

	newest  atomic.Pointer[Reading] // complete; nil: none yet
	running atomic.Bool             // a reading
}

// New returns a Reader. Nothing is opened before the first Read.
func New(o Options) *Reader {
	return &Reader{
		options: o, files: &files{root: o.Root, pending: map[string]bool{}}, log: loglimit.New[string](logInterval),
	}
}

// Read returns a new reading, or the newest one of the last minute if the new
// one takes over 200 ms; nil: none. While a reading runs, Read returns the
// newest one at once. A nil Reader has no reading.
func (r *Reader) Read(ctx context.Context) *Reading {
	if r == nil {
		return nil
	}
	if r.running.CompareAndSwap(false, true) {
		retry.WithTimeout(ctx, waitTimeout, r.read)
	}
	newest := r.newest.Load()
	if newest == nil || time.Since(newest.At) >= maxAge {
		return nil
	}
	return newest
}

// read makes a reading. At most one runs.
func (r *Reader) read(context.Context) (none struct{}) {
	c := &collection{files: r.files, reading: &Reading{At: time.Now(), devices: map[string][]string{}}}
	if r.options.RDMA {
		c.readRDMA()
	}
	if r.options.CPU {
		c.readCPU()
	}
	if c.err != nil && r.log.Allow("", time.Now()) {
		r.options.Log.Warn("sysfs values missing", "values", c.missing, "first", c.err)
	}
	r.newest.Store(c.reading)
	r.running.Store(false)
	return none
}
