package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/podgauge/podgauge/internal/atomicfile"
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
func OpenFolder(path string) *Folder { return newFolder(osDirectory{atomicfile.OSDir(path)}) }

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
		err = atomicfile.Replace(d.dir, OwnerFileName, []byte(d.token))
	}
	if err != nil {
		return fmt.Errorf("take over the folder: %w", err)
	}
	d.acquired = true
	return nil
}

// directory is the folder's files.
type directory interface {
	atomicfile.Dir
	// mkdir makes the folder if it is missing.
	mkdir() error
	// read returns a file's content, up to one byte more than limit.
	read(name string, limit int64) ([]byte, error)
	// RemoveStaleTemps removes temporary files that interrupted writes have left.
	RemoveStaleTemps(name string)
}

// move renames a file. A file that does not exist is no error.
func move(d directory, from, to string) error {
	if err := d.Rename(from, to); err != nil && !isMissing(err) {
		return err
	}
	if err := d.Sync(); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// isMissing reports whether there is no such file, or no folder for it.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// osDirectory is a directory of the operating system's file system.
type osDirectory struct{ atomicfile.OSDir }

func (d osDirectory) mkdir() error { return os.MkdirAll(string(d.OSDir), 0o700) }

func (d osDirectory) read(name string, limit int64) ([]byte, error) {
	// A FIFO must not block the process.
	file, err := os.OpenFile(d.Path(name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
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
