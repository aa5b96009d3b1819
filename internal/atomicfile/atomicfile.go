// Package atomicfile replaces files as a whole: readers, and the disk after a
// loss of power, have the old or the new content.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Replace replaces the content of a file, or creates the file with mode 0600.
// After nil, the content is on disk.
func Replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPattern(path))
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes renames in a folder survive a loss of power.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// RemoveStaleTemps removes the temporary files that interrupted calls of
// Replace left.
func RemoveStaleTemps(path string) {
	RemoveStale(filepath.Join(filepath.Dir(path), tempPattern(path)))
}

// staleAge is above the duration of any Replace: another process may be
// writing.
const staleAge = time.Minute

// RemoveStale removes old files that match a pattern of filepath.Glob. Errors
// are ignored: the next call tries again.
func RemoveStale(pattern string) {
	temps, _ := filepath.Glob(pattern)
	for _, temp := range temps {
		if info, err := os.Lstat(temp); err == nil && time.Since(info.ModTime()) > staleAge {
			_ = os.Remove(temp)
		}
	}
}

func tempPattern(path string) string { return "." + filepath.Base(path) + ".*.tmp" }
