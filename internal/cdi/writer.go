// Package cdi writes the CDI specs of the node's NVIDIA devices: the changes that a container runtime makes to a container with a device.
// The files stay after the end of the process, because a restarted container needs them.
//
// nvidia-container-toolkit's nvcdi finds the files of the driver below the driver root. Its NVML calls are answered from the inventory
// (nvml_adapter.go): so no call hangs, meets a missing function, or fails for all GPUs because of a lost GPU (docs/contributing/adr/0007-cdi.md).
package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
)

// DefaultDir is the runtimes' folder for specs of dynamic devices.
const DefaultDir = "/var/run/cdi"

const (
	// rebuildInterval bounds the delay of changes that the inventory does not show: a new socket of nvidia-persistenced, or a removed
	// socket that would keep containers from starting.
	rebuildInterval = 30 * time.Second
	// retryInterval is the time between a failure and the next build.
	retryInterval = 10 * time.Second
)

// Options configure a Writer.
type Options struct {
	// Publish is called with each change of the state. Slices are read-only.
	Publish func(SpecState)
	Log     *slog.Logger
	// Dir is the folder of specs. Default: DefaultDir.
	Dir string
	// DeviceName returns the name of a device, as in the response to Allocate.
	DeviceName func(device.Device) string
	// DriverRoot and DevRoot are the folders of the driver's files and of /dev in this process's mounts. Default: /.
	DriverRoot, DevRoot string
	// TargetDriverRoot and TargetDevRoot are the same folders on the host. Default: DriverRoot, and TargetDriverRoot.
	TargetDriverRoot, TargetDevRoot string
	// HookPath is nvidia-cdi-hook or nvidia-ctk on the host.
	HookPath string
	// FeatureFlags and DisabledHooks are nvcdi's. EnabledHooks may have newHooks.
	FeatureFlags, DisabledHooks, EnabledHooks []string
	// GDRCopy, GDS and MOFED enable specs of their own, on nodes with such devices.
	GDRCopy, GDS, MOFED bool
	// IMEXChannels share one spec.
	IMEXChannels []int
}

// SpecState is the state of the specs.
type SpecState struct {
	Devices []string // names in the spec of GPUs
	Classes []string // with a spec: "gpu", "gds", …
	Err     error    // the reason for missing specs or devices
}

// Attempted reports whether the specs of a device were written or failed.
func (s SpecState) Attempted() bool {
	return len(s.Classes) > 0 || s.Err != nil && !errors.Is(s.Err, errNoDevice)
}

// errNoDevice is the reason for missing specs on a node without a GPU.
var errNoDevice = errors.New("no device")

// Writer writes specs. The files stay: the next Writer replaces or removes them.
type Writer struct {
	Options

	state     SpecState       // as published
	devices   []device.Device // of the newest specs
	files     map[string]*specFile
	cleaned   bool // an earlier process's files are removed
	nextBuild time.Time
	lastError string // as logged
}

// New returns a Writer.
func New(o Options) *Writer {
	o.Dir = cmp.Or(o.Dir, DefaultDir)
	// nvcdi compares prefixes of paths.
	o.DriverRoot = filepath.Clean(cmp.Or(o.DriverRoot, "/"))
	o.TargetDriverRoot = filepath.Clean(cmp.Or(o.TargetDriverRoot, o.DriverRoot))
	o.TargetDevRoot = filepath.Clean(cmp.Or(o.TargetDevRoot, o.TargetDriverRoot))
	o.DevRoot = filepath.Clean(cmp.Or(o.DevRoot, "/"))
	w := &Writer{Options: o, files: map[string]*specFile{}}
	for _, class := range classes {
		w.files[class] = newSpecFile(o.Dir, class)
	}
	return w
}

// Update rebuilds the specs if due, or if another program altered a file. Callers repeat Update, also without a change of the inventory.
func (w *Writer) Update(statuses []device.Status) {
	devices := devicesOf(statuses)
	altered := false
	for class, f := range w.files {
		if f.written != nil && !f.isUnchanged() {
			altered, f.written = true, nil
			w.Log.Warn("CDI spec missing or changed, rewriting", "file", f.path, "class", class)
		}
	}
	changed := !reflect.DeepEqual(devices, w.devices)
	if changed || altered || !time.Now().Before(w.nextBuild) {
		w.rebuild(devices, changed)
	}
}

// devicesOf returns the devices of the inventory, regardless of health. A GPU that is gone is left out: its index and device node may belong
// to another GPU.
func devicesOf(statuses []device.Status) []device.Device {
	devices := make([]device.Device, 0, len(statuses))
	for _, s := range statuses {
		if !s.Gone || !s.WholeGPU() {
			devices = append(devices, s.Device)
		}
	}
	return devices
}

// rebuild builds and writes all specs. After a failure, existing files stay: they are likely to be right.
func (w *Writer) rebuild(devices []device.Device, changed bool) {
	w.devices = devices
	var errs []error
	if len(devices) == 0 {
		errs = append(errs, errNoDevice)
	}
	log := slog.New(slog.DiscardHandler)
	if changed { // nvcdi's messages repeat
		log = w.Log
	}
	b := newSpecBuilder(&w.Options, devices, log)
	for _, class := range classes {
		spec, err := b.build(class)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", class, err))
		}
		switch {
		case spec != nil:
			errs = append(errs, w.files[class].put(spec))
		case err == nil:
			errs = append(errs, w.drop(w.files[class]))
		}
	}
	w.cleaned = true
	atomicfile.RemoveStale(filepath.Join(w.Dir, "spec.*.tmp")) // of the CDI library, left by a failed write
	w.publish(errors.Join(errs...))
}

// drop removes a file of this Writer, and in the first build a file of an earlier process. Another program's newer file stays.
func (w *Writer) drop(f *specFile) error {
	if f.isUnchanged() || !w.cleaned {
		return f.remove()
	}
	f.written = nil
	return nil
}

// publish publishes and logs the state, if changed, and schedules the next build.
func (w *Writer) publish(err error) {
	w.nextBuild = time.Now().Add(rebuildInterval)
	if err != nil {
		w.nextBuild = time.Now().Add(retryInterval)
	}
	state, errText := SpecState{Err: err}, ""
	for _, class := range classes {
		if w.files[class].written != nil {
			state.Classes = append(state.Classes, class)
		}
	}
	if gpu := w.files[response.GPUClass]; gpu.written != nil {
		for _, d := range gpu.spec.Devices {
			state.Devices = append(state.Devices, d.Name)
		}
	}
	if err != nil {
		errText = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if errText == w.lastError && slices.Equal(w.state.Devices, state.Devices) && slices.Equal(w.state.Classes, state.Classes) {
		return
	}
	w.state, w.lastError = state, errText
	w.Publish(state)
	log := w.Log.With("dir", w.Dir, "devices", len(state.Devices), "classes", strings.Join(state.Classes, ","))
	switch {
	case errors.Is(err, errNoDevice):
		w.Log.Info("waiting for a device to write CDI specs", "err", errText)
	case err != nil:
		log.Warn("cannot write all CDI specs, retrying", "err", errText)
	default:
		log.Info("CDI specs written")
	}
}
