// Package cdi writes the CDI specs of the node's NVIDIA devices: the changes that a container runtime makes to a container with a device.
// The files stay after the end of the process, because a restarted container needs them.
//
// nvidia-container-toolkit's nvcdi finds the files of the driver below the driver root. Its NVML calls are answered from the inventory
// (nvml_adapter.go): so no call hangs, meets a missing function, or fails for all GPUs because of a lost GPU (docs/adr/0007-cdi.md).
package cdi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// DefaultDir is the runtimes' folder for specs of dynamic devices.
	DefaultDir = "/var/run/cdi"
	// DefaultHookPath is the default of NVIDIA's plugin.
	DefaultHookPath = "/usr/bin/nvidia-ctk"
	// Vendor is the vendor of NVIDIA's plugin, so that each plugin replaces the files of the other, and knows the containers.
	Vendor = "k8s.device-plugin.nvidia.com"
)

const (
	fileCheckInterval = time.Second
	// rebuildInterval bounds the delay of changes that the inventory does not show: a new socket of nvidia-persistenced, or a removed
	// socket that would keep containers from starting.
	rebuildInterval        = 30 * time.Second
	minBackoff, maxBackoff = time.Second, time.Minute
	// firstListingTimeout is the time after which a missing first listing means a node without a driver.
	firstListingTimeout = 10 * time.Second
)

// Options configure a Writer.
type Options struct {
	// Statuses returns the inventory and a channel that the next change closes.
	Statuses func() ([]device.Status, <-chan struct{})
	Log      *slog.Logger
	// Dir is the folder of specs. Default: DefaultDir.
	Dir string
	// DeviceName returns the name of a device, as in the response to Allocate. Default: the id.
	DeviceName func(device.Device) string
	// DriverRoot and DevRoot are the folders of the driver's files and of /dev in this process's mounts. Default: /, and DriverRoot
	// if it has a /dev.
	DriverRoot, DevRoot string
	// TargetDriverRoot and TargetDevRoot are the same folders on the host. Default: DriverRoot, and TargetDriverRoot.
	TargetDriverRoot, TargetDevRoot string
	// HookPath is nvidia-cdi-hook or nvidia-ctk on the host. Default: DefaultHookPath.
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

// errNoDevice is the reason for missing specs on a node without a driver or without a GPU.
var errNoDevice = errors.New("no device")

// Writer writes specs.
type Writer struct {
	Options
	device.Heartbeat

	state pubsub.Value[SpecState]

	// All below belong to Run's goroutine.
	devices   []device.Device // of the newest specs
	files     map[string]*specFile
	cleaned   bool // an earlier process's files are removed
	nextBuild time.Time
	backoff   retry.Backoff
	lastError string // as logged
}

// New returns a Writer.
func New(o Options) *Writer {
	o.Dir = cmp.Or(o.Dir, DefaultDir)
	o.HookPath = cmp.Or(o.HookPath, DefaultHookPath)
	// nvcdi compares prefixes of paths.
	o.DriverRoot = filepath.Clean(cmp.Or(o.DriverRoot, "/"))
	o.TargetDriverRoot = filepath.Clean(cmp.Or(o.TargetDriverRoot, o.DriverRoot))
	o.TargetDevRoot = filepath.Clean(cmp.Or(o.TargetDevRoot, o.TargetDriverRoot))
	if o.DevRoot != "" {
		o.DevRoot = filepath.Clean(o.DevRoot)
	}
	if o.DeviceName == nil {
		o.DeviceName = func(d device.Device) string { return string(d.ID) }
	}
	w := &Writer{Options: o, files: map[string]*specFile{}, backoff: retry.Backoff{Min: minBackoff, Max: maxBackoff}}
	for _, class := range classes {
		w.files[class] = newSpecFile(o.Dir, class)
	}
	return w
}

// Get returns the state and a channel that the next change closes. Callers must not change the slices.
func (w *Writer) Get() (SpecState, <-chan struct{}) { return w.state.Get() }

// Ready returns an error until the first attempt to write specs. A node without devices is ready.
func (w *Writer) Ready() error {
	statuses, _ := w.Statuses()
	if state, _ := w.Get(); len(statuses) > 0 && !state.Attempted() {
		return errors.New("CDI specs not written yet")
	}
	return nil
}

// Run keeps the specs up to date until ctx is done, and retries after failures. The files stay: the next Writer replaces or removes them.
func (w *Writer) Run(ctx context.Context) error {
	begin := time.Now()
	check := time.NewTicker(fileCheckInterval)
	defer check.Stop()
	for {
		w.Beat()
		statuses, changed := w.Statuses()
		if statuses != nil || time.Since(begin) >= firstListingTimeout {
			w.update(devicesOf(statuses))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-check.C:
		}
	}
}

// devicesOf returns the devices of the inventory, regardless of health; nil before the first listing. A GPU that is gone is left out: its
// index and device node may belong to another GPU.
func devicesOf(statuses []device.Status) []device.Device {
	if statuses == nil {
		return nil
	}
	devices := make([]device.Device, 0, len(statuses))
	for _, s := range statuses {
		if !s.Gone || !s.WholeGPU() {
			devices = append(devices, s.Device)
		}
	}
	return devices
}

// update rebuilds the specs if due, and restores lost or altered files.
func (w *Writer) update(devices []device.Device) {
	changed := !reflect.DeepEqual(devices, w.devices)
	if changed || !time.Now().Before(w.nextBuild) {
		w.rebuild(devices, changed)
	} else if err := w.restoreFiles(); err != nil {
		w.publish(err)
	}
}

// rebuild builds and writes all specs. Without a driver or after a failure, existing files stay: they are likely to be right.
func (w *Writer) rebuild(devices []device.Device, changed bool) {
	w.devices = devices
	if devices == nil {
		w.publish(errNoDevice)
		return
	}
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
		if !w.cleaned {
			w.files[class].RemoveStaleTemps(w.files[class].name)
		}
	}
	w.cleaned = true
	w.publish(errors.Join(errs...))
}

// drop removes a file of this Writer, and in the first build a file of an earlier process. Another program's newer file stays.
func (w *Writer) drop(f *specFile) error {
	if f.written == nil && w.cleaned || f.written != nil && !f.isUnchanged() {
		f.written = nil
		return nil
	}
	return f.remove()
}

// restoreFiles writes lost or altered files again.
func (w *Writer) restoreFiles() error {
	var errs []error
	for _, class := range classes {
		f := w.files[class]
		if f.written == nil || f.isUnchanged() {
			continue
		}
		if err := f.write(f.content); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", class, err))
			f.written = nil
			continue
		}
		w.Log.Warn("restored lost or altered CDI spec", "file", f.Path(f.name))
	}
	return errors.Join(errs...)
}

// publish publishes and logs the state, if changed, and schedules the next build.
func (w *Writer) publish(err error) {
	if err == nil {
		w.backoff.Reset()
		w.nextBuild = time.Now().Add(rebuildInterval)
	} else {
		w.nextBuild = time.Now().Add(w.backoff.Next())
	}
	state, errText := SpecState{Err: err}, ""
	for _, class := range classes {
		if w.files[class].written != nil {
			state.Classes = append(state.Classes, class)
		}
	}
	if gpu := w.files[gpuClass]; gpu.written != nil {
		state.Devices = gpu.devices
	}
	if err != nil {
		errText = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if old, _ := w.Get(); errText == w.lastError && slices.Equal(old.Devices, state.Devices) && slices.Equal(old.Classes, state.Classes) {
		return
	}
	w.lastError = errText
	w.state.Set(state)
	log := w.Log.With("dir", w.Dir, "devices", len(state.Devices), "classes", strings.Join(state.Classes, ","))
	switch {
	case errors.Is(err, errNoDevice):
		w.Log.Info("CDI specs wait for a device", "err", errText)
	case err != nil:
		log.Warn("cannot write all CDI specs, retrying", "err", errText)
	default:
		log.Info("CDI specs written")
	}
}
