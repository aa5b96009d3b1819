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

	"github.com/podgauge/podgauge/internal/atomicfile"
)

const (
	// WriteInterval is the time between two writes, unless a value is urgent.
	WriteInterval = time.Second
	// RetryInterval is the time after a write that failed.
	RetryInterval = 10 * time.Second
	// readTimeout bounds how long Read waits for the disk, and endTimeout how long End does.
	readTimeout = 5 * time.Second
	endTimeout  = 2 * time.Second
)

var (
	// ErrInvalidFile is returned by a decoder if this program has not written the file, or not all of it.
	ErrInvalidFile = errors.New("not a file of podgauge")
	// ErrNewerVersion is returned by a decoder if the file is a newer version's.
	ErrNewerVersion = errors.New("file of a newer version")
	// ErrDiskTimeout is returned by Read if the disk has not answered in time.
	ErrDiskTimeout = errors.New("the disk does not answer")

	// errLateRead is why nothing is written: the file has what this process does not know.
	errLateRead = errors.New("the disk answered too late, and the stored state stays as it is: restart podgauge to read it")
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
	// Decode returns ErrInvalidFile or ErrNewerVersion for a file that it does not understand.
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
	newest       *T   // nil: nothing was saved yet
	urgent       bool // newest is to be written at once
	countsReset  bool // the next process finds no counts and starts them from 0
	writing      bool // a write is under way, and what it leaves is unknown
	readTimedOut bool // Read has returned without the disk's answer
	status       WriteStatus[T]
	changed      chan struct{} // closed when view changes

	diskLock chan struct{} // has room for one: a write, or Read until the disk has answered
	// All below are guarded by flushing.
	name        string
	lateReadErr error             // errLateRead, or nil
	written     *T                // what the file has; nil: unknown
	digest      [sha256.Size]byte // of written
	encodeErr   error             // what written lacks
}

// WriteStatus is what the disk has.
type WriteStatus[T any] struct {
	// Exportable is the newest value whose counts metrics may show: the next process continues
	// from them or from greater ones, even after a SIGKILL, or starts from 0. Nil: none.
	Exportable *T
	// Err is why the newest value is not on disk; nil if it is, or will be within a second.
	Err error
}

// ReadResult is what Read has found.
type ReadResult[T any] struct {
	Value T
	// CountsStale reports that metrics may have counted more than Value: counts start from 0.
	CountsStale bool
	// Err is why an earlier process's value cannot be read; nil if there is none.
	Err error
}

// New describes a file and touches nothing. Read must be called before Run.
func New[T any](folder *Folder, format Format[T], log *slog.Logger) *File[T] {
	return &File[T]{
		format: format, folder: folder, log: log, name: format.Name + ".json",
		wake: make(chan struct{}, 1), changed: make(chan struct{}), diskLock: make(chan struct{}, 1),
	}
}

// staleSuffix marks a file that could not be replaced: metrics count more than it.
const staleSuffix = ".behind"

// invalidSuffix marks a file that could not be read or understood. The newest one is kept.
const invalidSuffix = ".bad"

// Read takes over the folder and reads what an earlier process has left. If the disk does not
// answer, Read returns ErrDiskTimeout after readTimeout, and at once for the folder's other files. A file
// that is read later is never replaced: the next process reads it.
func (f *File[T]) Read() ReadResult[T] {
	timeout := readTimeout
	if f.folder.readTimedOut.Load() {
		timeout = 0
	}
	f.diskLock <- struct{}{}
	read := make(chan ReadResult[T], 1)
	go func() { // ends with the process if the disk never answers
		f.load(read)
		<-f.diskLock
	}()
	select {
	case result := <-read:
		return result
	case <-time.After(timeout):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case result := <-read:
		return result
	default:
	}
	f.folder.readTimedOut.Store(true)
	f.readTimedOut, f.status.Err = true, ErrDiskTimeout
	f.log.Error("state folder does not answer: start without the stored state, and keep state in memory only", "file", f.format.Name)
	f.notify()
	return ReadResult[T]{Err: ErrDiskTimeout}
}

// load is Read without its bound. The caller holds flushing.
func (f *File[T]) load(read chan<- ReadResult[T]) {
	err := f.folder.acquire()
	result, name := f.read()
	newer := result.Err
	if !errors.Is(newer, ErrNewerVersion) {
		newer = nil
	} else {
		f.name = fmt.Sprintf("%s.v%d.json", f.format.Name, f.format.Version)
		result, name = f.read()
	}
	countsReset := name != f.name // the next process finds no counts
	if result.Err != nil && (!f.isReadTimedOut() || errors.Is(result.Err, ErrInvalidFile)) {
		moveErr := move(f.folder.dir, name, f.name+invalidSuffix)
		if countsReset, err = moveErr == nil, cmp.Or(err, moveErr); countsReset {
			result.Err, name = fmt.Errorf("%w (set aside as %s)", result.Err, f.name+invalidSuffix), ""
		}
	}
	if newer != nil {
		result.CountsStale, countsReset = true, true // the newer version's counts are unknown, so this one's start from 0 each time
		result.Err = errors.Join(fmt.Errorf("%w (left as it is, %s is used instead)", newer, f.name), result.Err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.readTimedOut && name != "":
		f.lateReadErr, err = errLateRead, cmp.Or(err, errLateRead)
		f.log.Error("state is kept in memory only", "file", f.name, "err", err)
	case f.readTimedOut:
		f.countsReset, f.status.Exportable = true, f.newest
	case countsReset:
		f.countsReset = true
	default:
		f.status.Exportable = &result.Value
	}
	f.setErr(err)
	read <- result
}

// read reads the file, or the one that could not be replaced, and returns which it was.
func (f *File[T]) read() (result ReadResult[T], name string) {
	f.folder.dir.RemoveStaleTemps(f.name)
	for _, name := range []string{f.name, f.name + staleSuffix} {
		content, err := f.folder.dir.read(name, f.format.MaxBytes)
		if isMissing(err) {
			continue
		}
		if err == nil && int64(len(content)) > f.format.MaxBytes {
			err = fmt.Errorf("%w: it is larger than %d bytes", ErrInvalidFile, f.format.MaxBytes)
		}
		if err == nil {
			result.Value, err = f.format.Decode(content)
		}
		if err != nil {
			return ReadResult[T]{Err: fmt.Errorf("read %s: %w", name, err)}, name
		}
		result.CountsStale = name != f.name
		return result, name
	}
	return result, ""
}

// Save has a value written, which must not be changed any more: within a second, or at once if
// it is urgent. An older value that is not yet written is dropped.
func (f *File[T]) Save(v T, urgent bool) {
	f.mu.Lock()
	f.newest, f.urgent = &v, f.urgent || urgent
	if f.countsReset && !f.writing {
		f.status.Exportable = f.newest
		f.notify()
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

func (f *File[T]) isReadTimedOut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readTimedOut
}

func (f *File[T]) isUrgent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.urgent
}

// Flush writes the newest value that was saved, if it is not on disk.
func (f *File[T]) Flush() error {
	f.diskLock <- struct{}{}
	defer func() { <-f.diskLock }()
	f.mu.Lock()
	newest := f.newest
	f.urgent, f.writing = false, true
	f.mu.Unlock()
	err := cmp.Or(f.folder.acquire(), f.lateReadErr)
	if err == nil && newest != f.written {
		err = f.write(newest)
	}
	var movedAside bool
	if err != nil {
		f.written = nil
		movedAside = !errors.Is(err, errNotOwner) && f.moveAside() == nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writing = false
	switch {
	case movedAside:
		f.countsReset = true
		if f.newest != nil { // otherwise metrics still show what Read has found
			f.status.Exportable = f.newest
		}
	case err != nil:
		f.countsReset = false // the file may be there or not
	case newest != nil:
		f.countsReset, f.status.Exportable = false, newest
	}
	f.setErr(cmp.Or(err, f.encodeErr))
	return err
}

// End writes the newest value that was saved. It does not wait for a disk that hangs.
func (f *File[T]) End() {
	ended := make(chan struct{})
	go func() { // ends with the process if the disk hangs
		f.Flush() //nolint:errcheck // WriteStatus.Err and the log have it
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endTimeout):
		f.log.Error("state folder does not answer: end without the last write", "file", f.format.Name)
	}
}

// write replaces the file, unless it has the same content.
func (f *File[T]) write(v *T) error {
	content, encodeErr := f.format.Encode(*v)
	if content == nil {
		return encodeErr
	}
	if sum := sha256.Sum256(content); f.written == nil || sum != f.digest {
		if err := atomicfile.Replace(f.folder.dir, f.name, content); err != nil {
			return err
		}
		f.digest = sum
		f.folder.dir.Remove(f.name + staleSuffix) //nolint:errcheck // the file goes before it
	}
	f.written, f.encodeErr = v, encodeErr
	return nil
}

// moveAside moves the file away, since metrics are going to count more than it does. That needs
// no room on the disk. The next process still reads it, but for its counts.
func (f *File[T]) moveAside() error { return move(f.folder.dir, f.name, f.name+staleSuffix) }

// Get returns what the disk has, and a channel that is closed when that changes.
func (f *File[T]) Get() (WriteStatus[T], <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, f.changed
}

// setErr publishes what became of a write, and logs it if it is the first that failed or the
// first that worked again. The caller holds mu.
func (f *File[T]) setErr(err error) {
	switch before := f.status.Err; {
	case err != nil && before == nil:
		f.log.Warn("state is kept in memory only", "file", f.name, "err", err)
	case err == nil && before != nil:
		f.log.Info("state is on disk again", "file", f.name)
	}
	f.status.Err = err
	f.notify()
}

// notify wakes those who wait for a change of the view. The caller holds mu.
func (f *File[T]) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}
