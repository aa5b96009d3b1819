package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
	"github.com/podgauge/podgauge/plugin/response"
)

// deviceNodesInterval is how often the driver's device nodes are looked for: a driver that
// comes late brings them with it.
const deviceNodesInterval = 2 * time.Second

// gpuClass is the CDI class of GPUs and MIG devices.
const gpuClass = "gpu"

// valueFunc is the Look of what is published, as a Board or a config.Watcher has it.
type valueFunc[T any] func() (T, <-chan struct{})

// cdiSpecs keeps CDI specs written while the settings ask for them.
type cdiSpecs struct {
	settings valueFunc[config.Settings]
	board    valueFunc[[]device.Status]
	dir      string
	log      *slog.Logger

	writer atomic.Pointer[cdi.Writer] // the one that runs; written by Run

	mu sync.Mutex
	// All below are guarded by mu. They stay when a writer ends, as its files do.
	writtenFor config.Settings // that state is of
	state      cdi.SpecState
	changed    chan struct{} // closed when made or state differs
}

// HasSpec reports whether there is a spec of a class.
func (s *cdiSpecs) HasSpec(class string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.state.Classes, class)
}

// errNotWritten is why specs are missing before a writer has tried to write them.
var errNotWritten = errors.New("not written yet")

// Missing returns why containers cannot be started by these settings; nil: they can. The channel is closed when
// that may have changed. If CDI is the only strategy, the spec of the GPUs must be written. Beside another one, an
// attempt is enough, because Allocate then leaves out what has no spec.
func (s *cdiSpecs) Missing(want config.Settings) (changed <-chan struct{}, missing error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	switch {
	case !usesCDI(want):
	case !sameSpecs(s.writtenFor, want):
		missing = errNotWritten
	case usesOnlyCDI(want):
		if !slices.Contains(s.state.Classes, gpuClass) {
			missing = cmp.Or(s.state.Err, errNotWritten)
		}
	case !s.state.Attempted():
		missing = errNotWritten
	}
	return s.changed, missing
}

// Written returns 1 for each class that has a spec, and 0 for GPUs if they need one and have none.
func (s *cdiSpecs) Written() map[string]float64 {
	settings, _ := s.settings()
	if !usesCDI(settings) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	written := map[string]float64{gpuClass: 0}
	for _, class := range s.state.Classes {
		written[class] = 1
	}
	return written
}

// publish replaces what the newest writer has written.
func (s *cdiSpecs) publish(writtenFor config.Settings, state cdi.SpecState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writtenFor, s.state = writtenFor, state
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Ready says what is missing of the specs, where there should be any.
func (s *cdiSpecs) Ready() error {
	if w := s.writer.Load(); w != nil {
		return w.Ready()
	}
	return nil
}

// Alive says that the writer has stopped.
func (s *cdiSpecs) Alive() error {
	if w := s.writer.Load(); w != nil {
		return w.Alive()
	}
	return nil
}

// Run is a loop over writers: each keeps what the settings of its time ask for. Files stay when a writer ends,
// because containers that were created by them restart. An earlier process' files are removed at start.
func (s *cdiSpecs) Run(ctx context.Context) error {
	if settings, _ := s.settings(); !usesCDI(settings) {
		if err := cdi.RemoveSpecs(s.dir); err != nil {
			s.log.Warn("remove CDI specs of an earlier process", "err", err)
		}
	}
	for ctx.Err() == nil {
		settings, changed := s.settings()
		if !usesCDI(settings) {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		if err := s.runWriter(ctx, settings); err != nil {
			return err
		}
	}
	return nil
}

// runWriter runs one writer until the settings ask for another.
func (s *cdiSpecs) runWriter(ctx context.Context, settings config.Settings) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wantOptions := cdiOptions(settings)
	o := wantOptions
	o.Statuses, o.Log, o.Dir = s.board, s.log, s.dir
	ids := response.DeviceIDStrategy(settings.DeviceIDStrategy)
	o.DeviceName = func(d device.Device) string {
		return ids.Name(response.GrantedDevice{Device: d, MIGIndex: d.MIGDeviceIndex})
	}
	o.HasGraphics = func(d device.Device) bool { return strings.Contains(d.Profile, "+gfx") }
	var w *cdi.Writer
	o.OnChange = func() { s.publish(settings, w.State()) }
	w = cdi.New(o)
	s.writer.Store(w)
	defer s.writer.Store(nil)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // waited for below
	tick := time.NewTicker(deviceNodesInterval)
	defer tick.Stop()
	for {
		current, changed := s.settings()
		if !usesCDI(current) || current.DeviceIDStrategy != settings.DeviceIDStrategy || !reflect.DeepEqual(cdiOptions(current), wantOptions) {
			cancel()
			return <-ended
		}
		for unchanged := true; unchanged; {
			select {
			case err := <-ended:
				return err
			case <-changed:
				unchanged = false
			case <-tick.C: // without a driver what is written is likelier to be true than what would be
				unchanged = !hasDeviceNodes(resolveDevRoot(current))
			}
		}
	}
}

func usesCDI(s config.Settings) bool {
	return slices.Contains(s.DeviceListStrategy, config.ListCDIAnnotations) || slices.Contains(s.DeviceListStrategy, config.ListCDICRI)
}

// usesOnlyCDI reports whether a container without its CDI spec does not start.
func usesOnlyCDI(s config.Settings) bool {
	return !slices.Contains(s.DeviceListStrategy, config.ListEnvvar) && !slices.Contains(s.DeviceListStrategy, config.ListVolumeMounts)
}

// sameSpecs reports whether both settings need the same specs.
func sameSpecs(a, b config.Settings) bool {
	return usesCDI(a) == usesCDI(b) && a.DeviceIDStrategy == b.DeviceIDStrategy && reflect.DeepEqual(cdiOptions(a), cdiOptions(b))
}

// cdiOptions are those that settings have a word for.
func cdiOptions(s config.Settings) cdi.Options {
	channels, _ := cdi.FindIMEXChannels(resolveDevRoot(s), s.IMEX.ChannelIDs)
	return cdi.Options{
		DriverRoot: resolveDriverRoot(s), DevRoot: resolveDevRoot(s), TargetDriverRoot: s.DriverRoot, TargetDevRoot: s.DevRoot,
		HookPath: s.CDIHookPath, FeatureFlags: s.CDIFeatureFlags, DisabledHooks: s.CDIDisabledHooks,
		GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
}

// resolveDriverRoot is where this process finds the driver's files: where they are
// mounted, or else where they are on the host.
func resolveDriverRoot(s config.Settings) string {
	if _, err := os.Stat(s.ContainerDriverRoot); err == nil {
		return s.ContainerDriverRoot
	}
	return s.DriverRoot
}

// resolveDevRoot is where this process finds /dev: its own, unless the driver's root has
// one.
func resolveDevRoot(s config.Settings) string {
	if root := resolveDriverRoot(s); hasDeviceNodes(root) {
		return root
	}
	return "/"
}

// hasDeviceNodes tells whether the driver's device nodes are below a root.
func hasDeviceNodes(root string) bool {
	_, err := os.Stat(root + "/dev/nvidiactl")
	return err == nil
}

// imexChannels are the channels that containers get. One that is required and not there
// is an error.
func imexChannels(s config.Settings) ([]int, error) {
	found, missing := cdi.FindIMEXChannels(resolveDevRoot(s), s.IMEX.ChannelIDs)
	if len(missing) > 0 && s.IMEX.Required {
		return found, fmt.Errorf("IMEX channels %v are required and not there", missing)
	}
	return found, nil
}

// requireDriver fails if the first listing finds no driver that can be used. A driver that is still initializing
// is waited for, while the probes are answered. A device that is left out has an error beside those that are there.
func (a *app) requireDriver(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.monitor.FirstListing():
	}
	if d := a.monitor.Driver(); d.State == device.DriverAbsent || d.State == device.DriverFailing {
		return fmt.Errorf("--fail-on-init-error: %w", d.Err)
	}
	return nil
}
