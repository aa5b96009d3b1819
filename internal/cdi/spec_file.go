package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/podgauge/podgauge/plugin/response"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

type specFile struct {
	path    string
	written fs.FileInfo // of the file as written; nil: the file does not exist or is an earlier process's
	spec    *specs.Spec // as written
}

// newSpecFile returns the file of a class with the name that NVIDIA's plugin uses.
func newSpecFile(dir, class string) *specFile {
	return &specFile{path: filepath.Join(dir, cdi.GenerateSpecName(response.CDIVendor, class)+".json")}
}

// put replaces the file. A file with the same spec stays untouched, because runtimes read all specs again after a change.
func (f *specFile) put(s spec.Interface) error {
	if f.isUnchanged() && reflect.DeepEqual(f.spec, s.Raw()) {
		return nil
	}
	f.written = nil // a failed write may have replaced the file: the next put writes again
	err := s.Save(f.path)
	if err == nil {
		f.spec = s.Raw()
		f.written, err = os.Stat(f.path)
	}
	return err
}

func (f *specFile) isUnchanged() bool {
	info, err := os.Stat(f.path)
	return err == nil && f.written != nil && os.SameFile(info, f.written) && info.Size() == f.written.Size() && info.ModTime().Equal(f.written.ModTime())
}

func (f *specFile) remove() error {
	f.written = nil
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
