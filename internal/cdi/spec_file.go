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

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/podgauge/podgauge/plugin/response"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// DefaultDir is the runtimes' folder for specs of dynamic devices.
const DefaultDir = "/var/run/cdi"

// specFile is the file of a class.
type specFile struct {
	class, path string
	content     []byte // as written; nil: no spec, or an earlier process's
	devices     int    // in the content
}

// specFiles returns the files of all classes, with the names that NVIDIA's
// plugin uses.
func specFiles(dir string) []specFile {
	files := make([]specFile, len(classes))
	for i, class := range classes {
		name := cdi.GenerateSpecName(response.CDIVendor, class) + ".json"
		files[i] = specFile{class: class, path: filepath.Join(dir, name)}
	}
	return files
}

// write replaces the file. A file with the same content stays untouched,
// because runtimes read all specs again after a change.
func (f *specFile) write(s spec.Interface) error {
	content, err := json.Marshal(s.Raw())
	if err != nil {
		return err
	}
	f.content, f.devices = content, len(s.Raw().Devices)
	if f.isIntact() {
		return nil
	}
	if err = s.Save(f.path); err != nil {
		f.content, f.devices = nil, 0
	}
	return err
}

// isIntact reports whether the file has the written content.
func (f *specFile) isIntact() bool {
	content, err := os.ReadFile(f.path)
	return err == nil && bytes.Equal(content, f.content)
}

func (f *specFile) remove() error {
	f.content, f.devices = nil, 0
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CDI spec: %w", err)
	}
	return nil
}

// RemoveSpecs removes the specs of an earlier process, for settings without
// CDI. The default of dir is DefaultDir.
func RemoveSpecs(dir string) error {
	var errs []error
	for _, f := range specFiles(cmp.Or(dir, DefaultDir)) {
		errs = append(errs, f.remove())
	}
	return errors.Join(errs...)
}
