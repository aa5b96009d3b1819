package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// disk is the folder in which the file lies. What it does is seen at once by everybody who
// looks, and outlives a loss of power only from the next sync on: a file's content from its
// own, and which names there are from the folder's.
type disk interface {
	// read returns the file's content, fs.ErrNotExist where there is none.
	read() ([]byte, error)
	// create makes an empty file under a name that nobody has.
	create() (file, error)
	rename(from, to string) error
	remove(name string) error
	// sync is the folder's.
	sync() error
	// tidy removes what writes have left that did not come to their end.
	tidy()
}

// file is an os.File.
type file interface {
	Name() string // without its folder
	Write([]byte) (int, error)
	Sync() error
	Close() error
}

// replace puts content in the place of the file's: when it has returned, that is there
// for good, and whatever happens until then, either that or what was there before.
func replace(d disk, content []byte) error {
	f, err := d.create()
	if err != nil {
		return err
	}
	if err := errors.Join(put(f, content), f.Close()); err != nil {
		return errors.Join(err, d.remove(f.Name()))
	}
	if err := d.rename(f.Name(), FileName); err != nil {
		return errors.Join(err, d.remove(f.Name()))
	}
	return d.sync()
}

func put(f file, content []byte) error {
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

// setAside gives the file its other name.
func setAside(d disk) error {
	if err := d.rename(FileName, BadName); err != nil {
		return err
	}
	return d.sync()
}

// temporary names what is not yet whole, and no two of them alike: another process may be
// just ending.
const temporary = "." + FileName + ".*.tmp"

// leftAfter is longer than any write takes.
const leftAfter = time.Minute

// folder is a disk.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

func (f folder) read() ([]byte, error) {
	// What is no file of ours must not keep the process waiting.
	file, err := os.OpenFile(f.path(FileName), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%w: it is a link", errForeign)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%w: it is no file", errForeign), err)
	}
	return io.ReadAll(io.LimitReader(file, mostBytes+1))
}

// named is a file that goes by its name in the folder.
type named struct{ *os.File }

func (n named) Name() string { return filepath.Base(n.File.Name()) }

func (f folder) create() (file, error) {
	made, err := os.CreateTemp(string(f), temporary) // with mode 0600
	return named{made}, err
}

func (f folder) rename(from, to string) error { return os.Rename(f.path(from), f.path(to)) }

func (f folder) remove(name string) error { return os.Remove(f.path(name)) }

// sync has the names in the folder on disk.
func (f folder) sync() error {
	dir, err := os.Open(string(f))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f folder) tidy() {
	left, _ := filepath.Glob(f.path(temporary)) // the pattern is sound, and nothing else is an error
	for _, name := range left {
		if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > leftAfter {
			os.Remove(name) //nolint:errcheck // it is tried again
		}
	}
}
