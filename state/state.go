// Package state keeps what is known of the devices' health from one process to the next.
package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/device"
)

const (
	// FileName is the file's in the folder.
	FileName = "health.json"
	// BadName is what one is called that was set aside. The newest of them is kept.
	BadName = FileName + ".bad"
	// BootPath is where Linux says which boot this is.
	BootPath = "/proc/sys/kernel/random/boot_id"

	mostBytes  = 4 << 20 // of a file
	writeEvery = 100 * time.Millisecond
	retryAfter = 10 * time.Second // a write that failed
)

// File keeps a device.History in a folder. State is published to it, never queued: what is
// written is the newest, and whoever saves never waits for a disk.
type File struct {
	disk disk
	boot string // empty: it cannot be told
	log  *slog.Logger
	wake chan struct{} // has room for one

	mu sync.Mutex
	// All below are guarded by mu.
	newest *device.History // nil: nothing was saved yet
	err    error           // of the newest reading or write

	writing sync.Mutex
	written []byte // what is on disk, as far as this process knows; guarded by writing
}

// Options say where a File is.
type Options struct {
	Dir  string // made where it is missing
	Boot string // the file that says which boot this is; empty: BootPath
	Log  *slog.Logger
}

// Open reads what an earlier process has left. It never fails: where nothing can be read
// or written, Err and one line of the log say why, and the health is known for as long as
// this process lives.
func Open(o Options) (*File, device.History) {
	if o.Boot == "" {
		o.Boot = BootPath
	}
	f := newFile(folder(o.Dir), bootID(o.Boot), o.Log)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		f.fail(fmt.Errorf("make its folder: %w", err))
		return f, device.History{}
	}
	return f, f.read()
}

func newFile(d disk, boot string, log *slog.Logger) *File {
	return &File{disk: d, boot: boot, log: log, wake: make(chan struct{}, 1)}
}

// bootID is which boot this is; empty where that cannot be told.
func bootID(path string) string {
	content, err := os.ReadFile(path)
	id := strings.TrimSpace(string(content))
	if err != nil || !isWord(id) {
		return ""
	}
	return id
}

// read takes the file. One that this program has not written, or not whole, is set aside.
func (f *File) read() device.History {
	f.disk.tidy()
	content, err := f.disk.read()
	if errors.Is(err, fs.ErrNotExist) {
		return device.History{}
	}
	var d document
	if err == nil {
		d, err = decode(content)
	}
	if err != nil {
		aside := f.setAside(err)
		f.log.Warn("what was known of the devices' health cannot be read: each is checked before it is trusted",
			"file", FileName, "err", err, "aside", aside)
		return device.History{Lost: true}
	}
	h := d.history()
	h.Rebooted = d.Boot != "" && f.boot != "" && d.Boot != f.boot
	if !f.claim(d) {
		for i := range h.Records {
			for j := range h.Records[i].Xids {
				h.Records[i].Xids[j].Count = 0
			}
		}
	}
	return h
}

// setAside moves away what was not understood, so that somebody can look at it. What could
// not be read at all stays.
func (f *File) setAside(why error) bool {
	if errors.Is(why, errForeign) {
		why = setAside(f.disk)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = why // and it is said by the caller
	return why == nil
}

// claim tells whether the counts in a file can go on. The one who wrote it must have ended
// in order: of a process that was killed, some were shown that it no longer wrote, and a
// count that falls is taken by Prometheus for one that began anew, all of which is an
// increase. And the file must not say any longer that this was so, before the first count
// goes beyond it. Otherwise they begin at 0, and no event is counted twice or not at all.
// Whether the node was booted does not matter to a count.
func (f *File) claim(d document) bool {
	if !d.Ended {
		return false
	}
	d.Ended = false
	content, err := d.encode()
	if err == nil {
		err = replace(f.disk, content)
	}
	f.note(err)
	return err == nil
}

// Save publishes what is to be kept. It returns at once. The history is not written any more.
func (f *File) Save(h device.History) {
	f.mu.Lock()
	f.newest = &h
	f.mu.Unlock()
	f.stir()
}

func (f *File) stir() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run writes what was saved, a few times a second at most, until ctx is done.
func (f *File) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		}
		pause := writeEvery
		if f.write(false) != nil {
			pause = retryAfter
			f.stir()
		}
		rest(ctx, pause)
	}
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// End writes the last that was saved, and that it is the last. To be called when nobody
// saves any more.
func (f *File) End() {
	f.write(true) //nolint:errcheck // Err has it, and the log
}

// Err is why nothing is kept; nil where it is.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// write has the newest on disk, and is quick where it is there already.
func (f *File) write(ended bool) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	newest := f.newest
	f.mu.Unlock()
	if newest == nil {
		return nil
	}
	d, odd := newDocument(*newest, f.boot, ended)
	content, err := d.encode()
	if err == nil && !bytes.Equal(content, f.written) {
		f.written = nil
		if err = replace(f.disk, content); err == nil {
			f.written = content
		}
	}
	f.note(cmp.Or(err, odd))
	return err
}

// note keeps what came of a write.
func (f *File) note(err error) {
	if err != nil {
		f.fail(fmt.Errorf("write %s: %w", FileName, err))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		f.log.Info("the health's memory is kept again")
	}
	f.err = nil
}

// fail says why nothing is kept, once until it is again.
func (f *File) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.log.Warn("the devices' health is not kept for the next process", "err", err)
	}
	f.err = err
}
