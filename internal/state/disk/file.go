// Package disk stores values in files for the next process. A file is replaced as a whole: at most once a second, urgent values at once
// (docs/adr/0013-incident-store.md).
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
	"github.com/podgauge/podgauge/internal/pubsub"
)

const (
	// WriteInterval is the time between two writes, unless a value is urgent.
	WriteInterval = time.Second
	// RetryInterval is the time after a failed write.
	RetryInterval = 10 * time.Second

	readTimeout = 5 * time.Second // of Read
	endTimeout  = 2 * time.Second // of End
)

var (
	// ErrInvalidFile is the error of decoders for a foreign or incomplete file.
	ErrInvalidFile = errors.New("not a file of podgauge")
	// ErrNewerVersion is the error of decoders for a file of a newer version.
	ErrNewerVersion = errors.New("file of a newer version")
	// ErrDiskTimeout is the error of Read for a disk that hangs.
	ErrDiskTimeout = errors.New("the disk does not answer")

	// errLateRead blocks writes: the file has unread state.
	errLateRead = errors.New("the disk answered too late, and the stored state stays as it is: restart podgauge to read the state")
)

// Format is how a value is stored.
type Format[T any] struct {
	// Name of the file, without extension.
	Name string
	// Version of the format. While the file has a newer version, values go to NAME.vVERSION.json.
	Version int
	// MaxBytes bounds the file.
	MaxBytes int64
	// Encode may return content and an error that names the parts left out.
	Encode func(T) ([]byte, error)
	// Decode returns ErrInvalidFile or ErrNewerVersion for content without a value.
	Decode func([]byte) (T, error)
}

// File stores the newest saved value. Save never waits for the disk.
type File[T any] struct {
	format Format[T]
	folder *Folder
	log    *slog.Logger
	wake   chan struct{} // has room for one

	mu sync.Mutex
	// All below are guarded by mu.
	newest       *T   // nil: no Save yet
	urgent       bool // newest is urgent
	countsReset  bool // the next process finds no counts and starts from 0
	writing      bool // during a write the content of the file is unknown
	readTimedOut bool // Read has returned ErrDiskTimeout
	status       WriteStatus[T]

	published pubsub.Value[WriteStatus[T]] // status

	diskLock chan struct{} // has room for one: a write, or Read until the disk answers
	// All below are guarded by diskLock.
	name        string
	lateReadErr error             // errLateRead, or nil
	written     *T                // content of the file; nil: unknown
	digest      [sha256.Size]byte // of written
	encodeErr   error             // of written
}

// WriteStatus describes the content of the disk.
type WriteStatus[T any] struct {
	// Exportable is the newest value whose counts metrics may show: after a SIGKILL the next process continues from these or greater
	// counts, or from 0. Nil: no counts.
	Exportable *T
	// Err is the error of the newest write; nil if the newest value is on disk, or will be within a second.
	Err error
}

// ReadResult is the result of Read.
type ReadResult[T any] struct {
	Value T
	// CountsStale reports that metrics may have shown greater counts than Value has: counts start from 0.
	CountsStale bool
	// Err is the error of reading the value of an earlier process; nil if there is no file.
	Err error
}

// New returns a File without access to the disk. Read must be called before Run.
func New[T any](folder *Folder, format Format[T], log *slog.Logger) *File[T] {
	return &File[T]{
		format: format, folder: folder, log: log, name: format.Name + ".json",
		wake: make(chan struct{}, 1), diskLock: make(chan struct{}, 1),
	}
}

// staleSuffix marks a file that could not be replaced: metrics have greater counts.
const staleSuffix = ".behind"

// invalidSuffix marks an unreadable file. The newest one stays.
const invalidSuffix = ".bad"

// Read takes ownership of the folder and reads the value of an earlier process. If the disk hangs, Read returns ErrDiskTimeout after
// readTimeout, and at once for other files of the folder. A file that is read later is never replaced: the next process reads it.
func (f *File[T]) Read() ReadResult[T] {
	timeout := readTimeout
	if f.folder.readTimedOut.Load() {
		timeout = 0
	}
	f.diskLock <- struct{}{}
	read := make(chan ReadResult[T], 1)
	go func() { // ends with the process if the disk hangs
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
	f.log.Error("state folder hangs: started without the stored state, state is kept in memory only", "file", f.format.Name)
	f.published.Set(f.status)
	return ReadResult[T]{Err: ErrDiskTimeout}
}

// load is Read without the timeout. The caller holds diskLock.
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
		result.CountsStale, countsReset = true, true // the counts of the newer version are unknown
		result.Err = errors.Join(fmt.Errorf("%w (unchanged, %s is used instead)", newer, f.name), result.Err)
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

// read reads the file, or the one with staleSuffix, and returns its name.
func (f *File[T]) read() (result ReadResult[T], name string) {
	f.folder.dir.RemoveStaleTemps(f.name)
	for _, name := range []string{f.name, f.name + staleSuffix} {
		content, err := f.folder.dir.read(name, f.format.MaxBytes)
		if isMissing(err) {
			continue
		}
		if err == nil && int64(len(content)) > f.format.MaxBytes {
			err = fmt.Errorf("%w: larger than %d bytes", ErrInvalidFile, f.format.MaxBytes)
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

// Save schedules a write of the value, within a second or, if urgent, at once. An older value that is not yet written is dropped. The caller
// must not change the value any more.
func (f *File[T]) Save(v T, urgent bool) {
	f.mu.Lock()
	f.newest, f.urgent = &v, f.urgent || urgent
	if f.countsReset && !f.writing {
		f.status.Exportable = f.newest
		f.published.Set(f.status)
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run writes saved values until ctx is done, without waiting for a write in progress.
func (f *File[T]) Run(ctx context.Context) error {
	timer := time.NewTimer(0) // Read may have failed
	defer timer.Stop()
	var next time.Time // of the next write that is not urgent
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

// Flush writes the newest saved value, unless it is on disk.
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
		if f.newest != nil { // nil: metrics still show the value of Read
			f.status.Exportable = f.newest
		}
	case err != nil:
		f.countsReset = false // the file may exist or not
	case newest != nil:
		f.countsReset, f.status.Exportable = false, newest
	}
	f.setErr(cmp.Or(err, f.encodeErr))
	return err
}

// End writes the newest saved value, without waiting for a disk that hangs.
func (f *File[T]) End() {
	ended := make(chan struct{})
	go func() { // ends with the process if the disk hangs
		f.Flush() //nolint:errcheck // published and logged
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endTimeout):
		f.log.Error("state folder hangs: ended without the last write", "file", f.format.Name)
	}
}

// write replaces the file if the content differs.
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
		f.folder.dir.Remove(f.name + staleSuffix) //nolint:errcheck // read prefers the file
	}
	f.written, f.encodeErr = v, encodeErr
	return nil
}

// moveAside renames the file: metrics will show greater counts. A rename needs no disk space. The next process reads all but the counts.
func (f *File[T]) moveAside() error { return move(f.folder.dir, f.name, f.name+staleSuffix) }

// Get returns the status, and a channel that the next status closes.
func (f *File[T]) Get() (WriteStatus[T], <-chan struct{}) { return f.published.Get() }

// setErr publishes the result of a write, and logs the first failure and the first success after failures. The caller holds mu.
func (f *File[T]) setErr(err error) {
	switch before := f.status.Err; {
	case err != nil && before == nil:
		f.log.Warn("state is kept in memory only", "file", f.name, "err", err)
	case err == nil && before != nil:
		f.log.Info("state is stored again", "file", f.name)
	}
	f.status.Err = err
	f.published.Set(f.status)
}
