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

// OwnerFileName is the file with the token of the process that owns the folder.
const OwnerFileName = "owner"

// errNotOwner reports that a later process owns the folder.
var errNotOwner = errors.New("another podgauge that started later owns the folder: stop one of them and restart the other")

// Folder is the state folder. The process that opened the folder last owns it and is the only writer: an earlier process, which may end at any
// time or hang in the driver, must not replace newer files.
type Folder struct {
	dir          directory
	token        string      // of this process
	readTimedOut atomic.Bool // a file could not be read in time

	mu       sync.Mutex // held while the owner file is read and written
	acquired bool       // the owner file has had the token; guarded by mu
}

// OpenFolder creates the folder if it is missing. Errors are those of File.Read and of each write.
func OpenFolder(path string) *Folder { return newFolder(osDirectory{atomicfile.OSDir(path)}) }

func newFolder(f directory) *Folder { return &Folder{dir: f, token: rand.Text() + "\n"} }

// acquire makes this process the owner, or returns errNotOwner.
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

// directory is the file access of a Folder.
type directory interface {
	atomicfile.Dir
	// mkdir creates the folder if it is missing.
	mkdir() error
	// read returns the content of a file, at most limit+1 bytes.
	read(name string, limit int64) ([]byte, error)
	// RemoveStaleTemps removes the temporary files of interrupted writes.
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

// isMissing reports whether the file or the folder does not exist.
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
		return nil, fmt.Errorf("%w: a link", ErrInvalidFile)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: not a regular file", ErrInvalidFile), err)
	}
	return io.ReadAll(io.LimitReader(file, limit+1))
}
