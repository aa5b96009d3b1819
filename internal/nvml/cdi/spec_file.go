package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// specFile is the file of a class.
type specFile struct {
	atomicfile.OSDir
	name string
	// All below describe the file as written. If written is nil, the file does not exist or is an earlier process's.
	written fs.FileInfo
	content []byte
	devices []string // names
}

// newSpecFile returns the file of a class with the name that NVIDIA's plugin uses.
func newSpecFile(dir, class string) *specFile {
	return &specFile{OSDir: atomicfile.OSDir(dir), name: cdi.GenerateSpecName(Vendor, class) + ".json"}
}

// put writes a spec. A file with the same content stays untouched, because runtimes read all specs again after a change.
func (f *specFile) put(spec *specs.Spec) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.name, err)
	}
	if bytes.Equal(f.content, content) && f.isUnchanged() {
		return nil
	}
	if err := f.write(content); err != nil {
		f.written = nil // the rename may have succeeded: the next put writes again
		return err
	}
	f.content, f.devices = content, nil
	for _, d := range spec.Devices {
		f.devices = append(f.devices, d.Name)
	}
	return nil
}

func (f *specFile) write(content []byte) error {
	err := os.MkdirAll(string(f.OSDir), 0o755)
	if err == nil {
		err = atomicfile.Replace(f, f.name, content)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	return nil
}

// Rename checks the temporary file like a runtime before the rename. Runtimes ignore temporary files.
func (f *specFile) Rename(from, to string) error {
	temp := f.Path(from)
	if _, err := cdi.ReadSpec(temp, 0); err != nil {
		return fmt.Errorf("check spec: %w", err)
	}
	if err := os.Chmod(temp, 0o644); err != nil {
		return err
	}
	info, err := os.Stat(temp)
	if err != nil {
		return err
	}
	if err := f.OSDir.Rename(from, to); err != nil {
		return err
	}
	f.written = info
	return nil
}

// isUnchanged reports whether the file is the written one.
func (f *specFile) isUnchanged() bool {
	info, err := os.Stat(f.Path(f.name))
	return err == nil && f.written != nil && os.SameFile(info, f.written) && info.Size() == f.written.Size() && info.ModTime().Equal(f.written.ModTime())
}

// remove removes the file and the temporary files of an interrupted process.
func (f *specFile) remove() error {
	f.written = nil
	f.RemoveStaleTemps(f.name)
	if err := f.Remove(f.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CDI spec: %w", err)
	}
	return nil
}

// RemoveSpecs removes the specs of an earlier process, for settings without CDI. The default of dir is DefaultDir.
func RemoveSpecs(dir string) error {
	var errs []error
	for _, class := range classes {
		errs = append(errs, newSpecFile(cmp.Or(dir, DefaultDir), class).remove())
	}
	return errors.Join(errs...)
}
