package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
)

// OwnerFileName is the file with the token of the process that owns the folder.
const OwnerFileName = "owner"

// errNotOwner reports that a later process owns the folder.
var errNotOwner = errors.New("another podgauge process, started later, owns the folder: stop one process and restart the other")

// Folder is the state folder. The process that opened the folder last owns it and is the only writer: an earlier process, which may end at any
// time or hang in the driver, must not replace newer files.
type Folder struct {
	dir   directory
	token string // of this process
	// readDeadline bounds the wait for stored values: a disk that hangs must not keep the process from starting.
	readDeadline time.Time

	mu       sync.Mutex // held while the owner file is read and written
	acquired bool       // the owner file has had the token; guarded by mu
}

// OpenFolder creates the folder if it is missing. Errors are those of File.Read and of each write.
func OpenFolder(path string) *Folder { return newFolder(osDirectory{atomicfile.OSDir(path)}) }

func newFolder(f directory) *Folder {
	return &Folder{dir: f, token: rand.Text() + "\n", readDeadline: time.Now().Add(readTimeout)}
}

// acquire makes this process the owner, or returns errNotOwner.
func (d *Folder) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	owner, err := d.dir.read(OwnerFileName)
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
	// read returns the content of a file, at most maxBytes+1 bytes.
	read(name string) ([]byte, error)
	// RemoveStaleTemps removes the temporary files of interrupted writes.
	RemoveStaleTemps(name string)
}

// isMissing reports whether the file or the folder does not exist.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// osDirectory is a directory of the operating system's file system.
type osDirectory struct{ atomicfile.OSDir }

func (d osDirectory) mkdir() error { return os.MkdirAll(string(d.OSDir), 0o700) }

func (d osDirectory) read(name string) ([]byte, error) {
	file, err := os.OpenFile(d.Path(name), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	return io.ReadAll(io.LimitReader(file, maxBytes+1))
}
