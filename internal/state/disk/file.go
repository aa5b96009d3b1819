// Package disk stores values in files for the next process. A file is replaced as a whole: at most once a second, urgent values at once
// (docs/contributing/adr/0013-incident-store.md).
package disk

import (
	"context"
	"encoding/json"
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
	// RetryInterval is the time after a failed write, and until a write counts as failed.
	RetryInterval = 10 * time.Second

	readTimeout = 5 * time.Second // of all Reads of a Folder
	endTimeout  = 2 * time.Second // of End
	maxBytes    = 32 << 20        // of a file
)

var (
	errInvalidFile  = errors.New("not a file of podgauge")
	errNewerVersion = errors.New("file of a newer podgauge")
	errHung         = errors.New("the disk does not respond")
	errUnread       = errors.New("the disk hung at start: restart podgauge to read the stored state")
)

// Format is how a value is stored: as a JSON object with the member "version".
type Format[T any] struct {
	// Name of the file, without extension.
	Name string
	// Version of the format. While the file has a newer version, values go to NAME.vVERSION.json.
	Version int
	// Validate returns an error for JSON of something else.
	Validate func(*T) error
}

// File stores the newest saved value. Save never waits for the disk.
type File[T any] struct {
	format Format[T]
	folder *Folder
	log    *slog.Logger
	wake   chan struct{} // has room for one

	mu sync.Mutex
	// All below are guarded by mu.
	newest *T   // nil: no Save yet
	urgent bool // newest is urgent
	absent bool // there is no file, and no write is creating one: the next process has no counts
	status WriteStatus[T]

	published pubsub.Value[WriteStatus[T]] // status

	diskLock chan struct{} // has room for one: a write
	// All below are guarded by diskLock.
	name    string
	written *T   // content of the file; nil: unknown
	unread  bool // Read has timed out: the file is not replaced
}

// WriteStatus describes the content of the disk.
type WriteStatus[T any] struct {
	// Exportable is the newest value whose counts metrics may show: after a SIGKILL the next process continues from these or greater
	// counts, or from 0. Nil: no counts.
	Exportable *T
	// Written is the newest value that this process has written; nil: none. After a SIGKILL the next process has this value or a newer one.
	Written *T
	// Err is the error of the newest write; nil if the newest value is on disk, or will be within a second.
	Err error
}

// New returns a File without access to the disk. Read must be called before Run.
func New[T any](folder *Folder, format Format[T], log *slog.Logger) *File[T] {
	return &File[T]{format: format, folder: folder, log: log, name: format.Name + ".json", wake: make(chan struct{}, 1), diskLock: make(chan struct{}, 1)}
}

// invalidSuffix marks an unreadable file. The newest one stays.
const invalidSuffix = ".bad"

// readResult is what Read knows about the disk.
type readResult[T any] struct {
	name          string
	value         *T   // nil: none
	absent        bool // there is no file
	err, ownerErr error
}

// Read takes ownership of the folder and reads the value of an earlier process: the zero T if there is no file. If the disk hangs, Read
// returns errUnread, and the file is left to the next process.
func (f *File[T]) Read() (value T, err error) {
	read := make(chan readResult[T], 1)
	go func() { read <- f.load() }() // ends with the process if the disk hangs
	r := readResult[T]{name: f.name, err: errUnread, ownerErr: errUnread}
	select {
	case r = <-read:
	case <-time.After(time.Until(f.folder.readDeadline)):
		f.unread = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.name, f.absent, f.status.Exportable = r.name, r.absent, r.value
	f.setErr(r.ownerErr)
	if r.value != nil {
		value = *r.value
	}
	return value, r.err
}

func (f *File[T]) load() (r readResult[T]) {
	r.name, r.ownerErr = f.format.Name+".json", f.folder.acquire()
	if r.value, r.absent, r.err = f.read(r.name); errors.Is(r.err, errNewerVersion) {
		newer := fmt.Errorf("%w (%s is unchanged, %s.v%d.json is used instead)", r.err, r.name, f.format.Name, f.format.Version)
		r.name = fmt.Sprintf("%s.v%d.json", f.format.Name, f.format.Version)
		r.value, r.absent, r.err = f.read(r.name)
		r.err = errors.Join(newer, r.err)
	}
	return r
}

// read reads a file. An invalid file is set aside.
func (f *File[T]) read(name string) (value *T, absent bool, err error) {
	f.folder.dir.RemoveStaleTemps(name)
	content, err := f.folder.dir.read(name)
	if isMissing(err) {
		return nil, true, nil
	}
	if err == nil {
		value, err = f.format.decode(content)
	}
	if err == nil {
		return value, false, nil
	}
	err = fmt.Errorf("read %s: %w", name, err)
	if errors.Is(err, errNewerVersion) {
		return nil, false, err
	}
	if moveErr := errors.Join(f.folder.dir.Rename(name, name+invalidSuffix), f.folder.dir.Sync()); moveErr != nil {
		return nil, false, errors.Join(err, moveErr)
	}
	return nil, true, fmt.Errorf("%w (set aside as %s)", err, name+invalidSuffix)
}

// decode returns errInvalidFile or errNewerVersion for content without a value.
func (f Format[T]) decode(content []byte) (*T, error) {
	var head struct {
		Version int `json:"version"`
	}
	err := json.Unmarshal(content, &head)
	switch {
	case err != nil:
	case head.Version > f.Version:
		return nil, fmt.Errorf("%w: version %d, expected %d", errNewerVersion, head.Version, f.Version)
	case head.Version != f.Version:
		err = fmt.Errorf("version %d, expected %d", head.Version, f.Version)
	default:
		var decoded T
		if err = json.Unmarshal(content, &decoded); err == nil {
			err = f.Validate(&decoded)
		}
		if err == nil {
			return &decoded, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", errInvalidFile, err)
}

// Save schedules a write of the value, within a second or, if urgent, at once. An older value that is not yet written is dropped. The caller
// must not change the value any more.
func (f *File[T]) Save(v T, urgent bool) {
	f.mu.Lock()
	f.newest, f.urgent = &v, f.urgent || urgent
	if f.absent {
		f.status.Exportable = f.newest
		f.published.Set(f.status)
	}
	f.mu.Unlock()
	pubsub.Notify(f.wake)
}

// Run writes saved values until ctx is done, without waiting for a write in progress.
func (f *File[T]) Run(ctx context.Context) error {
	due := time.After(0) // Read may have failed
	var next time.Time   // of the next write that is not urgent
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-due:
		}
		f.mu.Lock()
		urgent := f.urgent
		f.mu.Unlock()
		if wait := time.Until(next); wait > 0 && !urgent {
			due = time.After(wait)
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
				due = time.After(RetryInterval)
			}
		}
	}
}

// Flush writes the newest saved value, unless it is on disk.
func (f *File[T]) Flush() error {
	f.diskLock <- struct{}{}
	defer func() { <-f.diskLock }()
	f.mu.Lock()
	newest, absent := f.newest, f.absent
	f.urgent, f.absent = false, false
	f.mu.Unlock()
	if f.unread {
		return errUnread
	}
	ended := false // guarded by mu
	hung := time.AfterFunc(RetryInterval, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !ended {
			f.setErr(errHung)
		}
	})
	defer hung.Stop()
	err := f.folder.acquire()
	if err == nil && newest != f.written {
		err = f.write(newest)
	}
	if absent {
		_, readErr := f.folder.dir.read(f.name)
		absent = isMissing(readErr)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.absent, ended = absent, true
	switch {
	case absent && f.newest != nil:
		f.status.Exportable = f.newest
	case err == nil && newest != nil:
		f.status.Exportable = newest
	}
	if err == nil {
		f.status.Written = newest
	}
	f.setErr(err)
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
		f.log.Error("state folder hangs, exiting without the last write", "file", f.format.Name)
	}
}

func (f *File[T]) write(v *T) error {
	content, err := json.Marshal(v)
	if err == nil && len(content) > maxBytes {
		err = fmt.Errorf("%s has %d bytes, at most %d", f.name, len(content), maxBytes)
	}
	if err == nil {
		err = atomicfile.Replace(f.folder.dir, f.name, content)
	}
	if err == nil {
		f.written = v
	}
	return err
}

// Get returns the status, and a channel that the next status closes.
func (f *File[T]) Get() (WriteStatus[T], <-chan struct{}) { return f.published.Get() }

// setErr publishes the result of a write, and logs the first failure and the first success after failures. The caller holds mu.
func (f *File[T]) setErr(err error) {
	switch before := f.status.Err; {
	case err != nil && before == nil:
		f.log.Warn("cannot store state, keeping it in memory", "file", f.name, "err", err)
	case err == nil && before != nil:
		f.log.Info("state storage recovered", "file", f.name)
	}
	f.status.Err = err
	f.published.Set(f.status)
}
