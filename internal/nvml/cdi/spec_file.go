package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// specFile is a spec as it was written.
type specFile struct {
	path    string
	content []byte
	devices []string    // their names
	info    fs.FileInfo // of what was written
}

// putSpec has a class's file hold the spec. One that does already is left alone:
// runtimes read all specs again when one changes.
func (w *Writer) putSpec(class string, spec *specs.Spec) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec of %s: %w", class, err)
	}
	if f := w.files[class]; f != nil && bytes.Equal(f.content, content) && f.isUnchanged() {
		return nil
	}
	f := &specFile{path: specPath(w.Dir, class), content: content}
	for _, d := range spec.Devices {
		f.devices = append(f.devices, d.Name)
	}
	if err := f.write(); err != nil {
		return err
	}
	w.files[class] = f
	return nil
}

// write puts the file into place whole: it is written under another name, which
// runtimes pass over, and read back as a runtime reads it.
func (f *specFile) write() (err error) {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of CDI specs: %w", err)
	}
	temp, err := os.CreateTemp(dir, filepath.Base(f.path)+tempPattern)
	if err != nil {
		return fmt.Errorf("write a CDI spec: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	_, err = temp.Write(f.content)
	if err = errors.Join(err, temp.Chmod(0o644), temp.Close()); err != nil {
		return fmt.Errorf("write a CDI spec: %w", err)
	}
	if _, err := cdi.ReadSpec(temp.Name(), 0); err != nil {
		return fmt.Errorf("check %s: %w", filepath.Base(f.path), err)
	}
	info, err := os.Stat(temp.Name())
	if err != nil {
		return fmt.Errorf("write a CDI spec: %w", err)
	}
	if err := os.Rename(temp.Name(), f.path); err != nil {
		return fmt.Errorf("put a CDI spec into place: %w", err)
	}
	f.info = info
	return nil
}

// isUnchanged tells whether the file is the very one that was written.
func (f *specFile) isUnchanged() bool {
	info, err := os.Stat(f.path)
	return err == nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime())
}

// specPath is where the spec of a class is, under the name that NVIDIA's plugin gives it.
func specPath(dir, class string) string {
	return filepath.Join(dir, cdi.GenerateSpecName(Vendor, class)+".json")
}

// tempPattern stands between a spec's name and what is random in the name that it is written under.
const tempPattern = ".*.tmp"

// dropSpec removes a class's file: the one of this Writer, or in its first turn that of an earlier
// process. A file that another program has written since is kept.
func (w *Writer) dropSpec(class string) error {
	f := w.files[class]
	delete(w.files, class)
	if f == nil && w.cleaned || f != nil && !f.isUnchanged() {
		return nil
	}
	return removeFile(specPath(w.Dir, class))
}

// RemoveSpecs removes the specs that an earlier process left in a folder, for settings that need none.
func RemoveSpecs(dir string) error {
	dir = cmp.Or(dir, DefaultDir)
	errs := []error{removeTempFiles(dir)}
	for _, class := range classes {
		errs = append(errs, removeFile(specPath(dir, class)))
	}
	return errors.Join(errs...)
}

// removeTempFiles removes the files of a process that was killed while it wrote.
func removeTempFiles(dir string) error {
	var errs []error
	for _, class := range classes {
		names, err := filepath.Glob(specPath(dir, class) + tempPattern)
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, removeFile(name))
		}
	}
	return errors.Join(errs...)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a CDI spec: %w", err)
	}
	return nil
}
