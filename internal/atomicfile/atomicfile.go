// Package atomicfile replaces files as a whole: readers, and the disk after a loss of power, have the old or the new content.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Dir is a folder. A change is visible at once but survives a loss of power only after a sync: of the file for content, of the folder
// for names.
type Dir interface {
	// Create creates an empty file with a temporary name, to be renamed to name.
	Create(name string) (TempFile, error)
	Rename(from, to string) error
	Remove(name string) error
	Sync() error
}

// TempFile is an open file. Name returns the name without the folder.
type TempFile interface {
	Name() string
	Write([]byte) (int, error)
	Sync() error
	Close() error
}

// Replace replaces the content of a file, or creates the file. After nil, the content is on disk.
func Replace(d Dir, name string, content []byte) error {
	f, err := d.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, d.Remove(f.Name()))
	}
	return d.Sync()
}

// OSDir is the path of a folder of the operating system. New files have mode 0600.
type OSDir string

// Path returns the path of a file.
func (d OSDir) Path(name string) string { return filepath.Join(string(d), name) }

// Create implements Dir.
func (d OSDir) Create(name string) (TempFile, error) {
	f, err := os.CreateTemp(string(d), tempPattern(name))
	return baseNameFile{f}, err
}

// Rename implements Dir.
func (d OSDir) Rename(from, to string) error { return os.Rename(d.Path(from), d.Path(to)) }

// Remove implements Dir.
func (d OSDir) Remove(name string) error { return os.Remove(d.Path(name)) }

// Sync implements Dir.
func (d OSDir) Sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// staleAge is above the duration of any Replace: another process may be writing.
const staleAge = time.Minute

// RemoveStaleTemps removes the temporary files that an interrupted Replace left.
func (d OSDir) RemoveStaleTemps(name string) { RemoveStale(d.Path(tempPattern(name))) }

// RemoveStale removes old files that match a pattern of filepath.Glob. Errors are ignored: the next call tries again.
func RemoveStale(pattern string) {
	temps, _ := filepath.Glob(pattern)
	for _, temp := range temps {
		if info, err := os.Lstat(temp); err == nil && time.Since(info.ModTime()) > staleAge {
			_ = os.Remove(temp)
		}
	}
}

func tempPattern(name string) string { return "." + name + ".*.tmp" }

type baseNameFile struct{ *os.File }

func (f baseNameFile) Name() string { return filepath.Base(f.File.Name()) }
