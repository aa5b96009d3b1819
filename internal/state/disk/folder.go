package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// OwnerFileName is the file that names the process that writes to the folder.
const OwnerFileName = "owner"

// errNotOwner is that a process that started later writes to the folder now.
var errNotOwner = errors.New("a podgauge that started later has taken over the folder: end one of the two, and start the other again")

// Folder is the state folder. The process that opened it last owns it, and alone writes to
// it: an earlier process, which may end at any time or hang in the driver, must not put its
// older files in place of newer ones.
type Folder struct {
	dir          directory
	token        string      // of this process
	readTimedOut atomic.Bool // a file could not be read in time

	mu       sync.Mutex // held while the owner file is read and written
	acquired bool       // the owner file has had the token; guarded by mu
}

// OpenFolder makes the folder if it is missing. It never fails: File.Read and each write
// report why the folder cannot be used.
func OpenFolder(path string) *Folder { return newFolder(osDirectory(path)) }

func newFolder(f directory) *Folder { return &Folder{dir: f, token: rand.Text() + "\n"} }

// acquire makes this process the owner, or reports that a later one is.
func (d *Folder) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	owner, err := d.dir.read(OwnerFileName, int64(len(d.token)))
	switch {
	case err == nil && string(owner) == d.token:
		d.acquired = true
		return nil
	case err == nil && d.acquired:
		return errNotOwner
	}
	if err = d.dir.mkdir(); err == nil {
		err = replace(d.dir, OwnerFileName, []byte(d.token))
	}
	if err != nil {
		return fmt.Errorf("take over the folder: %w", err)
	}
	d.acquired = true
	return nil
}

// directory are those of a folder. A change is visible at once, and outlives a loss of power only
// from the next sync on: a file's content from its own, names from the folder's.
type directory interface {
	// mkdir makes the folder if it is missing.
	mkdir() error
	// read returns a file's content, up to one byte more than limit.
	read(name string, limit int64) ([]byte, error)
	// create makes an empty file with a temporary name, in place of the file of that name.
	create(name string) (tempFile, error)
	rename(from, to string) error
	remove(name string) error
	// sync is the folder's.
	sync() error
	// removeStaleTemps removes temporary files that interrupted writes have left.
	removeStaleTemps(name string)
}

// tempFile is an os.File.
type tempFile interface {
	Name() string // without its folder
	Write([]byte) (int, error)
	Sync() error
	Close() error
}

// replace replaces a file's content. When it returns nil the content is on disk; if it is
// interrupted, the content is either the old or the new one.
func replace(d directory, name string, content []byte) error {
	f, err := d.create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(writeAndSync(f, content), f.Close()); err != nil {
		return errors.Join(err, d.remove(f.Name()))
	}
	if err := d.rename(f.Name(), name); err != nil {
		return errors.Join(err, d.remove(f.Name()))
	}
	return d.sync()
}

func writeAndSync(f tempFile, content []byte) error {
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

// move renames a file. A file that does not exist is no error.
func move(d directory, from, to string) error {
	if err := d.rename(from, to); err != nil && !isMissing(err) {
		return err
	}
	if err := d.sync(); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// isMissing reports whether there is no such file, or no folder for it.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// tempPattern is the pattern of the names of files that are not yet complete.
func tempPattern(name string) string { return "." + name + ".*.tmp" }

// staleTempAge is longer than any write takes: another process may be writing.
const staleTempAge = time.Minute

// osDirectory is files on the operating system's file system.
type osDirectory string

func (f osDirectory) path(name string) string { return filepath.Join(string(f), name) }

func (f osDirectory) mkdir() error { return os.MkdirAll(string(f), 0o700) }

func (f osDirectory) read(name string, limit int64) ([]byte, error) {
	// A FIFO must not block the process.
	file, err := os.OpenFile(f.path(name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%w: it is a link", ErrInvalidFile)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: it is not a regular file", ErrInvalidFile), err)
	}
	return io.ReadAll(io.LimitReader(file, limit+1))
}

// baseNameFile is a file whose name lacks the folder.
type baseNameFile struct{ *os.File }

func (n baseNameFile) Name() string { return filepath.Base(n.File.Name()) }

func (f osDirectory) create(name string) (tempFile, error) {
	made, err := os.CreateTemp(string(f), tempPattern(name)) // with mode 0600
	return baseNameFile{made}, err
}

func (f osDirectory) rename(from, to string) error { return os.Rename(f.path(from), f.path(to)) }

func (f osDirectory) remove(name string) error { return os.Remove(f.path(name)) }

func (f osDirectory) sync() error {
	dir, err := os.Open(string(f))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f osDirectory) removeStaleTemps(name string) {
	temps, _ := filepath.Glob(f.path(tempPattern(name))) // the pattern is valid, and there is no other error
	for _, name := range temps {
		if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > staleTempAge {
			os.Remove(name) //nolint:errcheck // the next process tries again
		}
	}
}
