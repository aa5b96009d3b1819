// Package cdi writes CDI specs of the node's NVIDIA devices, and keeps them true:
// what a container runtime adds to a container that names a device. The files outlive
// the process, because a container that restarts needs them, whoever runs here then.
//
// What a driver consists of is known by nvidia-container-toolkit's nvcdi, which
// looks for it below the driver root. It asks NVML as well, and is answered from
// the inventory instead (nvml_adapter.go): so no call of its can hang, meet a function
// that the library lacks, or fail for all GPUs when one is lost
// (docs/adr/0007-cdi.md).
package cdi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// DefaultDir is where runtimes look for specs of what comes and goes.
	DefaultDir = "/var/run/cdi"
	// DefaultHookPath is NVIDIA's plugin's default.
	DefaultHookPath = "/usr/bin/nvidia-ctk"
	// Vendor is NVIDIA's plugin's, so that either finds its files replaced by the
	// other's, and containers that one has started are known to the other.
	Vendor = "k8s.device-plugin.nvidia.com"
)

// How often what is looked at.
const (
	fileCheckInterval = time.Second
	// rebuildInterval finds what no change of the inventory tells of: a socket of
	// nvidia-persistenced that came, or went and would keep containers from starting.
	rebuildInterval = 30 * time.Second
	minBackoff      = time.Second
	maxBackoff      = time.Minute
	// firstListingTimeout is how long the first listing may take before it is said that there
	// is none.
	firstListingTimeout = 10 * time.Second
)

// Options say what is written, and where things are.
type Options struct {
	// Statuses is the Board's.
	Statuses func() ([]device.Status, <-chan struct{})
	Log      *slog.Logger
	// Dir is where specs go. Default: DefaultDir.
	Dir string
	// OnChange is called on Run's goroutine when State differs. Nil: nothing is called.
	OnChange func()

	// DeviceName is what a device is called, in the spec as in the answer to Allocate.
	// Default: its id.
	DeviceName func(device.Device) string
	// HasGraphics tells whether a slice can do graphics, as its profile says ("+gfx").
	// Nil: none can.
	HasGraphics func(device.Device) bool

	// DriverRoot and DevRoot are where this process finds the driver's files and
	// /dev. Default: /, and DriverRoot where it has a /dev.
	DriverRoot, DevRoot string
	// TargetDriverRoot and TargetDevRoot are where they are on the host. Default:
	// where this process finds them, and TargetDriverRoot.
	TargetDriverRoot, TargetDevRoot string
	// HookPath is nvidia-cdi-hook or nvidia-ctk on the host. Default: DefaultHookPath.
	HookPath string
	// FeatureFlags and DisabledHooks are nvcdi's. EnabledHooks may name newHooks.
	FeatureFlags, DisabledHooks, EnabledHooks []string

	// GDRCopy, GDS and MOFED have a spec of their own where the node has what they
	// are for.
	GDRCopy, GDS, MOFED bool
	// IMEXChannels have one together.
	IMEXChannels []int
}

// SpecState is what there is now.
type SpecState struct {
	Devices []string // the names that the spec of GPUs has
	Classes []string // the classes of which there is a spec: "gpu", "gds", …
	Err     error    // why something is not there, if so
}

// Attempted reports whether the specs of a device were written, or cannot be.
func (s SpecState) Attempted() bool {
	return len(s.Classes) > 0 || s.Err != nil && !errors.Is(s.Err, errNoDevice)
}

// Writer writes specs. Its Run is the only one that does anything, on the one
// goroutine that runs it.
type Writer struct {
	Options
	device.Heartbeat

	state atomic.Pointer[SpecState] // written by Run

	// All below belong to Run's goroutine.
	devices   []device.Device // that the newest specs were made for
	cleaned   bool            // an earlier process left nothing that is not wanted
	files     map[string]*specFile
	nextBuild time.Time     // when specs are made anew though nothing has changed
	backoff   time.Duration // the pause before what failed is tried again
	lastError string        // what was last complained about
	startedAt time.Time
}

// New makes a Writer. It does nothing before Run.
func New(o Options) *Writer {
	o.Dir = cmp.Or(o.Dir, DefaultDir)
	o.HookPath = cmp.Or(o.HookPath, DefaultHookPath)
	// nvcdi cuts roots off paths as they are written, so they are written one way.
	o.DriverRoot = filepath.Clean(cmp.Or(o.DriverRoot, "/"))
	o.TargetDriverRoot = filepath.Clean(cmp.Or(o.TargetDriverRoot, o.DriverRoot))
	o.TargetDevRoot = filepath.Clean(cmp.Or(o.TargetDevRoot, o.TargetDriverRoot))
	if o.DevRoot != "" {
		o.DevRoot = filepath.Clean(o.DevRoot)
	}
	if o.DeviceName == nil {
		o.DeviceName = func(d device.Device) string { return string(d.ID) }
	}
	if o.HasGraphics == nil {
		o.HasGraphics = func(device.Device) bool { return false }
	}
	return &Writer{Options: o, files: map[string]*specFile{}}
}

// State is the newest. It is not to be changed.
func (w *Writer) State() SpecState {
	if s := w.state.Load(); s != nil {
		return *s
	}
	return SpecState{}
}

// HasSpec tells whether there is a spec of a class.
func (w *Writer) HasSpec(class string) bool { return slices.Contains(w.State().Classes, class) }

// Ready says so once the specs are there, or have been found impossible, or there
// is no device to write one for.
func (w *Writer) Ready() error {
	if statuses, _ := w.Statuses(); len(statuses) > 0 && !w.State().Attempted() {
		return errors.New("not written yet")
	}
	return nil
}

// errNoDevice is why there is no spec on a node without a driver, or a GPU.
var errNoDevice = errors.New("no device is known")

// Run keeps the specs until ctx is done. What fails is tried again. The files stay
// at the end: the next Writer replaces or removes them.
func (w *Writer) Run(ctx context.Context) error {
	w.startedAt = time.Now()
	for {
		w.Beat()
		statuses, changed := w.Statuses()
		if statuses != nil || time.Since(w.startedAt) >= firstListingTimeout {
			w.update(devicesOf(statuses))
		}
		timer := time.NewTimer(fileCheckInterval)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// devicesOf leaves the verdicts out: whether a device is well changes no spec. A GPU that is
// gone has none, since its index and device node may be another's by now. The result is nil
// if nothing was listed yet.
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

// update makes what has to be made, and mends files that were lost or altered.
func (w *Writer) update(devices []device.Device) {
	changed := !reflect.DeepEqual(devices, w.devices)
	if changed || !time.Now().Before(w.nextBuild) {
		w.rebuild(devices, changed)
	} else if err := w.restoreFiles(); err != nil {
		w.publishResult(err)
	}
}

// rebuild makes all specs anew, and has their files say so.
func (w *Writer) rebuild(devices []device.Device, changed bool) {
	w.devices = devices
	b := specBuilder{Options: &w.Options, devices: devices}
	if changed { // the many lines that nvcdi says are the same each time
		b.log = w.Log
	}
	var errs []error
	if len(devices) == 0 {
		errs = append(errs, errNoDevice)
	}
	if devices == nil { // without a driver, the files of an earlier process are likelier to be true than none
		w.publishResult(errNoDevice)
		return
	}
	results := b.buildAll()
	for _, class := range classes {
		r := results[class]
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", class, r.err))
		}
		switch {
		case r.spec != nil:
			errs = append(errs, w.putSpec(class, r.spec))
		case r.err == nil: // there is nothing for it
			errs = append(errs, w.dropSpec(class))
		} // else what there was is likelier to be true than nothing
	}
	if !w.cleaned {
		errs = append(errs, removeTempFiles(w.Dir))
		w.cleaned = true
	}
	w.publishResult(errors.Join(errs...))
}

// restoreFiles writes again what is not as it was written.
func (w *Writer) restoreFiles() error {
	var errs []error
	for _, class := range classes {
		f := w.files[class]
		if f == nil || f.isUnchanged() {
			continue
		}
		if err := f.write(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", class, err))
			delete(w.files, class)
			continue
		}
		w.Log.Warn("wrote a CDI spec again, which was lost or altered", "file", f.path)
	}
	return errors.Join(errs...)
}

// publishResult tells what there is now, and why not more, and plans the next time.
func (w *Writer) publishResult(err error) {
	specState := &SpecState{Err: err}
	for _, class := range classes {
		if f := w.files[class]; f != nil {
			specState.Classes = append(specState.Classes, class)
		}
	}
	if f := w.files[gpuClass]; f != nil {
		specState.Devices = f.devices
	}
	w.publish(specState)
	w.scheduleNext(err != nil)
}

// scheduleNext says when specs are made anew.
func (w *Writer) scheduleNext(failed bool) {
	wait := rebuildInterval
	if failed {
		w.backoff = min(max(minBackoff, 2*w.backoff), maxBackoff)
		wait = w.backoff
	} else {
		w.backoff = 0
	}
	w.nextBuild = time.Now().Add(wait)
}

// publish publishes, and logs what is new: a failure that stays the same once.
func (w *Writer) publish(specState *SpecState) {
	previous := w.State()
	w.state.Store(specState)
	errText := ""
	if specState.Err != nil {
		errText = strings.ReplaceAll(specState.Err.Error(), "\n", "; ")
	}
	isNew := errText != w.lastError || !slices.Equal(previous.Devices, specState.Devices) || !slices.Equal(previous.Classes, specState.Classes)
	w.lastError = errText
	if isNew && w.OnChange != nil {
		w.OnChange()
	}
	switch {
	case !isNew:
	case errors.Is(specState.Err, errNoDevice):
		w.Log.Info("no CDI specs until there is a device", "why", errText)
	case specState.Err != nil:
		w.Log.Warn("write CDI specs, will go on trying", "devices", len(specState.Devices), "classes", strings.Join(specState.Classes, ","), "err", errText)
	default:
		w.Log.Info("CDI specs", "dir", w.Dir, "devices", len(specState.Devices), "classes", strings.Join(specState.Classes, ","))
	}
}

// FindIMEXChannels tells which of some IMEX channels there are on this node. Like NVIDIA's
// plugin it looks in /dev, too: that is where a runtime puts them for us.
func FindIMEXChannels(devRoot string, ids []int) (present, missing []int) {
	for _, id := range ids {
		node := imexChannelNode(id)
		if isCharDevice(filepath.Join("/", devRoot, node)) || isCharDevice(node) {
			present = append(present, id)
		} else {
			missing = append(missing, id)
		}
	}
	return present, missing
}

func imexChannelNode(id int) string {
	return fmt.Sprintf("/dev/nvidia-caps-imex-channels/channel%d", id)
}

func isCharDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}
