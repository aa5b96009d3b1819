// Package cdi writes the CDI specs of the node's NVIDIA devices: the changes
// that a container runtime makes to a container with a device. The files stay
// after the end of the process, because a restarted container needs them.
//
// nvidia-container-toolkit's nvcdi finds the files of the driver below the
// driver root. Its NVML calls are answered from the inventory
// (nvml_adapter.go): so no call hangs, meets a missing function, or fails for
// all GPUs because of a lost GPU (docs/contributing/adr/0007-cdi.md).
package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const (
	// rebuildInterval bounds the delay of changes that the inventory does not
	// show: a new socket of nvidia-persistenced, or a removed socket that would
	// keep containers from starting.
	rebuildInterval = 30 * time.Second
	// retryInterval is the time between a failure and the next build.
	retryInterval = 10 * time.Second
)

// SpecState is the state of the specs.
type SpecState struct {
	Classes []string // with a spec: "gpu", "gds", …
	Err     error    // the reason for missing specs or devices
}

// Attempted reports whether the specs of a device were written or failed.
func (s SpecState) Attempted() bool { return len(s.Classes) > 0 || s.Err != nil }

// Writer writes specs. The files stay: the next Writer replaces or removes
// them.
type Writer struct {
	options Options
	dir     string
	publish func(SpecState)
	log     *slog.Logger

	files     []specFile
	devices   []device.Device // of the newest specs
	nextBuild time.Time
	lastError string // as logged
}

// New returns a Writer of files in a folder, by default DefaultDir. publish is
// called with each change of the state.
func New(o Options, dir string, log *slog.Logger, publish func(SpecState)) *Writer {
	// nvcdi compares prefixes of paths.
	o.DriverRoot = filepath.Clean(cmp.Or(o.DriverRoot, "/"))
	o.TargetDriverRoot = filepath.Clean(cmp.Or(o.TargetDriverRoot, o.DriverRoot))
	o.TargetDevRoot = filepath.Clean(cmp.Or(o.TargetDevRoot, o.TargetDriverRoot))
	o.DevRoot = filepath.Clean(cmp.Or(o.DevRoot, "/"))
	dir = cmp.Or(dir, DefaultDir)
	return &Writer{options: o, dir: dir, publish: publish, log: log, files: specFiles(dir)}
}

// Update rebuilds the specs if due, or if another program altered a file.
// Callers repeat Update, also without a change of the inventory.
func (w *Writer) Update(statuses []device.Status) {
	devices := devicesOf(statuses)
	altered := false
	for i := range w.files {
		if f := &w.files[i]; f.content != nil && !f.isIntact() {
			altered, f.content, f.devices = true, nil, 0
			w.log.Warn("CDI spec missing or changed, rewriting", "file", f.path, "class", f.class)
		}
	}
	changed := !reflect.DeepEqual(devices, w.devices)
	if changed || altered || !time.Now().Before(w.nextBuild) {
		w.rebuild(devices, changed)
	}
}

// devicesOf returns the devices of the inventory, regardless of health. A GPU
// that is gone is left out: its index and device node may belong to another
// GPU.
func devicesOf(statuses []device.Status) []device.Device {
	devices := make([]device.Device, 0, len(statuses))
	for _, s := range statuses {
		if !s.Gone || !s.WholeGPU() {
			devices = append(devices, s.Device)
		}
	}
	return devices
}

// rebuild builds and writes all specs. After a failure, existing files stay:
// they are likely to be right.
func (w *Writer) rebuild(devices []device.Device, changed bool) {
	w.devices = devices
	before := slices.Clone(w.files)
	log := slog.New(slog.DiscardHandler)
	if changed { // nvcdi's messages repeat
		log = w.log
	}
	b := newSpecBuilder(&w.options, devices, log)
	var errs []error
	for i := range w.files {
		f := &w.files[i]
		spec, err := b.build(f.class)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.class, err))
		}
		switch {
		case spec != nil:
			errs = append(errs, f.write(spec))
		case err == nil:
			errs = append(errs, f.remove())
		}
	}
	atomicfile.RemoveStale(filepath.Join(w.dir, "spec.*.tmp")) // of the CDI library, left by a failed write
	w.report(errors.Join(errs...), !reflect.DeepEqual(before, w.files))
}

// report publishes and logs the state, if changed, and schedules the next
// build.
func (w *Writer) report(err error, changed bool) {
	w.nextBuild = time.Now().Add(rebuildInterval)
	errText := ""
	switch {
	case err != nil:
		w.nextBuild = time.Now().Add(retryInterval)
		errText = strings.ReplaceAll(err.Error(), "\n", "; ")
	case len(w.devices) == 0:
		errText = "no device"
	}
	if !changed && errText == w.lastError {
		return
	}
	w.lastError = errText
	state, devices := SpecState{Err: err}, 0
	for _, f := range w.files {
		if f.content != nil {
			state.Classes = append(state.Classes, f.class)
		}
		if f.class == response.GPUClass {
			devices = f.devices
		}
	}
	w.publish(state)
	log := w.log.With("dir", w.dir, "devices", devices, "classes", strings.Join(state.Classes, ","))
	switch {
	case err != nil:
		log.Warn("cannot write all CDI specs, retrying", "err", errText)
	case len(w.devices) == 0:
		w.log.Info("waiting for a device to write CDI specs", "err", errText)
	default:
		log.Info("CDI specs written")
	}
}

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
