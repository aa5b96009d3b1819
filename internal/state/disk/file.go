// Package disk keeps values in files for the next process. A file is replaced as a whole, at
// most once a second, and at once if that is urgent (docs/adr/0013-incident-store.md).
package disk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// WriteInterval is the time between two writes, unless a value is urgent.
	WriteInterval = time.Second
	// RetryInterval is the time after a write that failed.
	RetryInterval = 10 * time.Second
	// maxRead bounds how long Read waits for the disk, and maxEnd how long End does.
	maxRead = 5 * time.Second
	maxEnd  = 2 * time.Second
)

var (
	// ErrForeign is returned by a decoder if this program has not written the file, or not all of it.
	ErrForeign = errors.New("not a file of podgauge")
	// ErrNewer is returned by a decoder if the file is a newer version's.
	ErrNewer = errors.New("file of a newer version")
	// ErrHung is returned by Read if the disk has not answered in time.
	ErrHung = errors.New("the disk does not answer")

	// errUnread is why nothing is written: the file has what this process does not know.
	errUnread = errors.New("the disk answered too late, and the stored state stays as it is: restart podgauge to read it")
)

// Format is how a value is stored.
type Format[T any] struct {
	// Name is the file's without its extension.
	Name string
	// Version is the format's. While the file is a newer version's, this one writes to
	// NAME.vVERSION.json instead.
	Version int
	// MaxBytes bounds a file that is read.
	MaxBytes int64
	// Encode may return content together with an error: what it had to leave out.
	Encode func(T) ([]byte, error)
	// Decode returns ErrForeign or ErrNewer for a file that it does not understand.
	Decode func([]byte) (T, error)
}

// File keeps the newest value that was saved. Save never waits for the disk.
type File[T any] struct {
	format Format[T]
	folder *Folder
	log    *slog.Logger
	wake   chan struct{} // has room for one

	mu sync.Mutex
	// All below are guarded by mu.
	newest  *T   // nil: nothing was saved yet
	urgent  bool // newest is to be written at once
	free    bool // the next process finds no counts and starts them from 0
	writing bool // a write is under way, and what it leaves is unknown
	late    bool // Read has returned without the disk's answer
	view    View[T]
	changed chan struct{} // closed when view changes

	flushing chan struct{} // has room for one: a write, or Read until the disk has answered
	// All below are guarded by flushing.
	name    string
	unread  error             // errUnread, or nil
	written *T                // what the file has; nil: unknown
	sum     [sha256.Size]byte // of written
	odd     error             // what written lacks
}

// View is what the disk has.
type View[T any] struct {
	// Shown is the newest value whose counts metrics may show: the next process continues
	// from them or from greater ones, even after a SIGKILL, or starts from 0. Nil: none.
	Shown *T
	// Err is why the newest value is not on disk; nil if it is, or will be within a second.
	Err error
}

// Found is what Read has found.
type Found[T any] struct {
	Value T
	// Behind reports that metrics may have counted more than Value: counts start from 0.
	Behind bool
	// Err is why an earlier process's value cannot be read; nil if there is none.
	Err error
}

// New describes a file and touches nothing. Read must be called before Run.
func New[T any](folder *Folder, format Format[T], log *slog.Logger) *File[T] {
	return &File[T]{
		format: format, folder: folder, log: log, name: format.Name + ".json",
		wake: make(chan struct{}, 1), changed: make(chan struct{}), flushing: make(chan struct{}, 1),
	}
}

// behindSuffix marks a file that could not be replaced: metrics count more than it.
const behindSuffix = ".behind"

// badSuffix marks a file that could not be read or understood. The newest one is kept.
const badSuffix = ".bad"

// Read takes over the folder and reads what an earlier process has left. If the disk does not
// answer, Read returns ErrHung after maxRead, and at once for the folder's other files. A file
// that is read later is never replaced: the next process reads it.
func (f *File[T]) Read() Found[T] {
	wait := maxRead
	if f.folder.hung.Load() {
		wait = 0
	}
	f.flushing <- struct{}{}
	read := make(chan Found[T], 1)
	go func() { // ends with the process if the disk never answers
		f.load(read)
		<-f.flushing
	}()
	select {
	case found := <-read:
		return found
	case <-time.After(wait):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case found := <-read:
		return found
	default:
	}
	f.folder.hung.Store(true)
	f.late, f.view.Err = true, ErrHung
	f.log.Error("state folder does not answer: start without the stored state, and keep state in memory only", "file", f.format.Name)
	f.publish()
	return Found[T]{Err: ErrHung}
}

// load is Read without its bound. The caller holds flushing.
func (f *File[T]) load(read chan<- Found[T]) {
	err := f.folder.own()
	found, name := f.read()
	newer := found.Err
	if !errors.Is(newer, ErrNewer) {
		newer = nil
	} else {
		f.name = fmt.Sprintf("%s.v%d.json", f.format.Name, f.format.Version)
		found, name = f.read()
	}
	free := name != f.name // the next process finds no counts
	if found.Err != nil && (!f.isLate() || errors.Is(found.Err, ErrForeign)) {
		aside := move(f.folder.files, name, f.name+badSuffix)
		if free, err = aside == nil, cmp.Or(err, aside); free {
			found.Err, name = fmt.Errorf("%w (set aside as %s)", found.Err, f.name+badSuffix), ""
		}
	}
	if newer != nil {
		found.Behind, free = true, true // the newer version's counts are unknown, so this one's start from 0 each time
		found.Err = errors.Join(fmt.Errorf("%w (left as it is, %s is used instead)", newer, f.name), found.Err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.late && name != "":
		f.unread, err = errUnread, cmp.Or(err, errUnread)
		f.log.Error("state is kept in memory only", "file", f.name, "err", err)
	case f.late:
		f.free, f.view.Shown = true, f.newest
	case free:
		f.free = true
	default:
		f.view.Shown = &found.Value
	}
	f.note(err)
	read <- found
}

// read reads the file, or the one that could not be replaced, and returns which it was.
func (f *File[T]) read() (found Found[T], name string) {
	f.folder.files.tidy(f.name)
	for _, name := range []string{f.name, f.name + behindSuffix} {
		content, err := f.folder.files.read(name, f.format.MaxBytes)
		if missing(err) {
			continue
		}
		if err == nil && int64(len(content)) > f.format.MaxBytes {
			err = fmt.Errorf("%w: it is larger than %d bytes", ErrForeign, f.format.MaxBytes)
		}
		if err == nil {
			found.Value, err = f.format.Decode(content)
		}
		if err != nil {
			return Found[T]{Err: fmt.Errorf("read %s: %w", name, err)}, name
		}
		found.Behind = name != f.name
		return found, name
	}
	return found, ""
}

// Save has a value written, which must not be changed any more: within a second, or at once if
// it is urgent. An older value that is not yet written is dropped.
func (f *File[T]) Save(v T, urgent bool) {
	f.mu.Lock()
	f.newest, f.urgent = &v, f.urgent || urgent
	if f.free && !f.writing {
		f.view.Shown = f.newest
		f.publish()
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run writes what is saved until ctx is done. It does not wait for a write that is under way then.
func (f *File[T]) Run(ctx context.Context) error {
	timer := time.NewTimer(0) // Read may have failed
	defer timer.Stop()
	var next time.Time // when the next write is due that is not urgent
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-timer.C:
		}
		if wait := time.Until(next); wait > 0 && !f.isUrgent() {
			timer.Reset(wait)
			continue
		}
		next = time.Now().Add(WriteInterval)
		flushed := make(chan error, 1)
		go func() { flushed <- f.Flush() }() // ends with the process if the disk hangs
		select {
		case <-ctx.Done():
			return nil
		case err := <-flushed:
			if err != nil {
				next = time.Now().Add(RetryInterval)
				timer.Reset(RetryInterval)
			}
		}
	}
}

func (f *File[T]) isLate() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.late
}

func (f *File[T]) isUrgent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.urgent
}

// Flush writes the newest value that was saved, if it is not on disk.
func (f *File[T]) Flush() error {
	f.flushing <- struct{}{}
	defer func() { <-f.flushing }()
	f.mu.Lock()
	newest := f.newest
	f.urgent, f.writing = false, true
	f.mu.Unlock()
	err := cmp.Or(f.folder.own(), f.unread)
	if err == nil && newest != f.written {
		err = f.write(newest)
	}
	var left bool
	if err != nil {
		f.written = nil
		left = !errors.Is(err, errTaken) && f.leave() == nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writing = false
	switch {
	case left:
		f.free = true
		if f.newest != nil { // otherwise metrics still show what Read has found
			f.view.Shown = f.newest
		}
	case err != nil:
		f.free = false // the file may be there or not
	case newest != nil:
		f.free, f.view.Shown = false, newest
	}
	f.note(cmp.Or(err, f.odd))
	return err
}

// End writes the newest value that was saved. It does not wait for a disk that hangs.
func (f *File[T]) End() {
	ended := make(chan struct{})
	go func() { // ends with the process if the disk hangs
		f.Flush() //nolint:errcheck // View.Err and the log have it
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(maxEnd):
		f.log.Error("state folder does not answer: end without the last write", "file", f.format.Name)
	}
}

// write replaces the file, unless it has the same content.
func (f *File[T]) write(v *T) error {
	content, odd := f.format.Encode(*v)
	if content == nil {
		return odd
	}
	if sum := sha256.Sum256(content); f.written == nil || sum != f.sum {
		if err := replace(f.folder.files, f.name, content); err != nil {
			return err
		}
		f.sum = sum
		f.folder.files.remove(f.name + behindSuffix) //nolint:errcheck // the file goes before it
	}
	f.written, f.odd = v, odd
	return nil
}

// leave moves the file away, since metrics are going to count more than it does. That needs
// no room on the disk. The next process still reads it, but for its counts.
func (f *File[T]) leave() error { return move(f.folder.files, f.name, f.name+behindSuffix) }

// Look returns what the disk has, and a channel that is closed when that changes.
func (f *File[T]) Look() (View[T], <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view, f.changed
}

// note publishes what became of a write, and logs it if it is the first that failed or the
// first that worked again. The caller holds mu.
func (f *File[T]) note(err error) {
	switch was := f.view.Err; {
	case err != nil && was == nil:
		f.log.Warn("state is kept in memory only", "file", f.name, "err", err)
	case err == nil && was != nil:
		f.log.Info("state is on disk again", "file", f.name)
	}
	f.view.Err = err
	f.publish()
}

// publish wakes those who wait for a change of the view. The caller holds mu.
func (f *File[T]) publish() {
	close(f.changed)
	f.changed = make(chan struct{})
}
