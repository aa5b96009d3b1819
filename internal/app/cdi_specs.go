package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin/response"
)

// deviceNodesInterval is the interval between searches for the driver's device nodes. A driver may start late.
const deviceNodesInterval = 2 * time.Second

// gpuClass is the CDI class of GPUs and MIG devices.
const gpuClass = "gpu"

// published is a published value: a *device.Inventory, a *config.Watcher or a *pubsub.Value.
type published[T any] interface {
	// Get returns the value and a channel, closed at the next change.
	Get() (T, <-chan struct{})
}

// cdiSpecs writes CDI specs while the settings ask for CDI.
type cdiSpecs struct {
	settings  published[config.Settings]
	inventory published[[]device.Status]
	dir       string
	log       *slog.Logger

	writer  atomic.Pointer[cdi.Writer] // running; written by Run
	written pubsub.Value[writtenSpecs] // outlasts a writer, as the files do
}

// writtenSpecs is the state of the specs for some settings.
type writtenSpecs struct {
	settings config.Settings
	state    cdi.SpecState
}

// HasSpec reports whether there is a spec of a class.
func (s *cdiSpecs) HasSpec(class string) bool {
	written, _ := s.written.Get()
	return slices.Contains(written.state.Classes, class)
}

// errNotWritten is the reason before a writer has tried to write specs.
var errNotWritten = errors.New("not written yet")

// Missing returns the reason why containers cannot start with these settings, if any, and a channel for changes. If CDI is the only
// strategy, the spec of the GPUs must be written. Otherwise an attempt is enough: Allocate omits devices without a spec.
func (s *cdiSpecs) Missing(want config.Settings) (changed <-chan struct{}, missing error) {
	written, changed := s.written.Get()
	switch {
	case !usesCDI(want):
		return changed, nil
	case !usesCDI(written.settings) || !sameSpecs(written.settings, want):
		return changed, errNotWritten
	case usesOnlyCDI(want) && !slices.Contains(written.state.Classes, gpuClass):
		return changed, cmp.Or(written.state.Err, errNotWritten)
	case !usesOnlyCDI(want) && !written.state.Attempted():
		return changed, errNotWritten
	}
	return changed, nil
}

// Written returns 1 for each class with a spec, and 0 for GPUs without a required spec.
func (s *cdiSpecs) Written() map[string]float64 {
	if settings, _ := s.settings.Get(); !usesCDI(settings) {
		return nil
	}
	specs, _ := s.written.Get()
	written := map[string]float64{gpuClass: 0}
	for _, class := range specs.state.Classes {
		written[class] = 1
	}
	return written
}

// Ready returns the reason why specs are missing, if the settings ask for specs.
func (s *cdiSpecs) Ready() error {
	if w := s.writer.Load(); w != nil {
		return w.Ready()
	}
	return nil
}

// Alive returns an error if the writer has stopped.
func (s *cdiSpecs) Alive() error {
	if w := s.writer.Load(); w != nil {
		return w.Alive()
	}
	return nil
}

// Run runs a writer for the current settings, and replaces the writer when the settings change. Files outlast their writer, because
// containers restart by them. Run removes the files of an earlier process if the settings do not use CDI.
func (s *cdiSpecs) Run(ctx context.Context) error {
	if settings, _ := s.settings.Get(); !usesCDI(settings) {
		if err := cdi.RemoveSpecs(s.dir); err != nil {
			s.log.Warn("remove CDI specs of an earlier process", "err", err)
		}
	}
	for ctx.Err() == nil {
		settings, changed := s.settings.Get()
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

// runWriter runs a writer until the settings need different specs.
func (s *cdiSpecs) runWriter(ctx context.Context, settings config.Settings) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wantOptions := cdiOptions(settings)
	o := wantOptions
	o.Statuses, o.Log, o.Dir = s.inventory.Get, s.log, s.dir
	ids := response.DeviceIDStrategy(settings.DeviceIDStrategy)
	o.DeviceName = func(d device.Device) string {
		return ids.Name(response.GrantedDevice{Device: d, MIGIndex: d.MIGDeviceIndex})
	}
	w := cdi.New(o)
	_, written := w.Get()
	s.writer.Store(w)
	defer s.writer.Store(nil)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // waited for below
	tick := time.NewTicker(deviceNodesInterval)
	defer tick.Stop()
	for {
		current, changed := s.settings.Get()
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
			case <-written:
				var state cdi.SpecState
				state, written = w.Get()
				s.written.Set(writtenSpecs{settings, state})
			case <-tick.C: // without a driver, keep the written specs
				unchanged = !hasDeviceNodes(resolveDevRoot(current))
			}
		}
	}
}

// sameSpecs reports whether two settings with CDI need the same specs.
func sameSpecs(a, b config.Settings) bool {
	return a.DeviceIDStrategy == b.DeviceIDStrategy && reflect.DeepEqual(cdiOptions(a), cdiOptions(b))
}

// cdiOptions returns the options in the settings.
func cdiOptions(s config.Settings) cdi.Options {
	channels, _ := cdi.FindIMEXChannels(resolveDevRoot(s), s.IMEX.ChannelIDs)
	return cdi.Options{
		DriverRoot: resolveDriverRoot(s), DevRoot: resolveDevRoot(s), TargetDriverRoot: s.DriverRoot, TargetDevRoot: s.DevRoot,
		HookPath: s.CDIHookPath, FeatureFlags: s.CDIFeatureFlags, DisabledHooks: s.CDIDisabledHooks,
		GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
}
