package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin/response"
)

// cdiInterval is the interval between checks of the spec files and searches for
// the driver's device nodes. A driver may start late.
const cdiInterval = time.Second

// CDISpecs writes CDI specs while the settings ask for CDI.
type CDISpecs struct {
	settings  *pubsub.Value[config.Settings]
	inventory *device.Inventory
	isPaused  func() bool
	dir       string
	log       *slog.Logger
	device.Heartbeat

	written pubsub.Value[writtenSpecs] // outlasts a writer, as the files do

	// Fields of Run.
	writer  *cdi.Writer     // nil without CDI
	active  config.Settings // of the writer
	options cdi.Options     // likewise, from active
}

// NewCDISpecs returns the specs in a folder, unless paused: a newer process
// writes them.
func NewCDISpecs(
	settings *pubsub.Value[config.Settings], devices *device.Inventory, isPaused func() bool, dir string,
	log *slog.Logger,
) *CDISpecs {
	return &CDISpecs{settings: settings, inventory: devices, isPaused: isPaused, dir: dir, log: log}
}

// writtenSpecs is the state of the specs for some settings.
type writtenSpecs struct {
	settings config.Settings
	state    cdi.SpecState
}

// HasSpec reports whether there is a spec of a class.
func (s *CDISpecs) HasSpec(class string) bool {
	return slices.Contains(s.written.Newest().state.Classes, class)
}

// errNotWritten is the reason before a writer has tried to write specs.
var errNotWritten = errors.New("not written yet")

// Missing returns the reason why containers cannot start with these settings,
// if any, and a channel for changes. If CDI is the only strategy, the spec of
// the GPUs must be written. Otherwise an attempt is enough: Allocate omits
// devices without a spec.
func (s *CDISpecs) Missing(want config.Settings) (changed <-chan struct{}, missing error) {
	written, changed := s.written.Get()
	switch {
	case !UsesCDI(want):
		return changed, nil
	case !sameSpecs(written.settings, want):
		return changed, errNotWritten
	case usesOnlyCDI(want) && !slices.Contains(written.state.Classes, response.GPUClass):
		return changed, cmp.Or(written.state.Err, errNotWritten)
	case !usesOnlyCDI(want) && !written.state.Attempted():
		return changed, errNotWritten
	}
	return changed, nil
}

// Written returns 1 for each class with a spec, and 0 for GPUs without a
// required spec.
func (s *CDISpecs) Written() map[string]float64 {
	if !UsesCDI(s.settings.Newest()) {
		return nil
	}
	written := map[string]float64{response.GPUClass: 0}
	for _, class := range s.written.Newest().state.Classes {
		written[class] = 1
	}
	return written
}

// Ready returns an error until the first attempt to write specs, if the
// settings ask for specs. A node without devices is ready.
func (s *CDISpecs) Ready() error {
	settings, written := s.settings.Newest(), s.written.Newest()
	attempted := sameSpecs(written.settings, settings) && written.state.Attempted()
	if UsesCDI(settings) && len(s.inventory.Newest()) > 0 && !attempted {
		return errors.New("CDI specs not written yet")
	}
	return nil
}

// Run keeps the specs up to date until ctx is done. The files stay, because
// containers restart by them. Run removes the files of an earlier process if
// the settings do not use CDI.
func (s *CDISpecs) Run(ctx context.Context) error {
	if !UsesCDI(s.settings.Newest()) {
		if err := cdi.RemoveSpecs(s.dir); err != nil {
			s.log.Warn("cannot remove CDI specs of an earlier process", "err", err)
		}
	}
	for {
		s.Beat()
		settings, changed := s.settings.Get()
		statuses, listed := s.inventory.Get()
		s.replaceWriter(settings)
		if s.writer != nil && statuses != nil && !s.isPaused() { // after the first listing
			s.writer.Update(statuses)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-listed:
		case <-time.After(retry.Aligned(cdiInterval)):
		}
	}
}

// replaceWriter replaces the writer if the settings need different specs.
// Without a driver, the written specs stay.
func (s *CDISpecs) replaceWriter(settings config.Settings) {
	if !UsesCDI(settings) {
		s.writer = nil
		return
	}
	options := cdiOptions(settings)
	same := reflect.DeepEqual(options, s.options) || !hasDeviceNodes(DevRoot(settings))
	if s.writer != nil && same && sameSpecs(settings, s.active) {
		return
	}
	s.active, s.options = settings, options
	s.writer = cdi.New(options, s.dir, s.log, func(state cdi.SpecState) {
		s.written.Set(writtenSpecs{settings, state})
	})
}

// sameSpecs reports whether two settings need the same specs.
func sameSpecs(a, b config.Settings) bool {
	return UsesCDI(a) == UsesCDI(b) && reflect.DeepEqual(cdiOptions(a), cdiOptions(b))
}

// cdiOptions returns the options in the settings.
func cdiOptions(s config.Settings) cdi.Options {
	channels, _ := cdi.FindIMEXChannels(DevRoot(s), s.IMEX.ChannelIDs)
	return cdi.Options{
		DeviceIDStrategy: s.DeviceIDStrategy,
		DriverRoot:       resolveDriverRoot(s),
		DevRoot:          DevRoot(s),
		TargetDriverRoot: s.DriverRoot,
		TargetDevRoot:    s.DevRoot,
		HookPath:         s.CDIHookPath,
		FeatureFlags:     s.CDIFeatureFlags,
		DisabledHooks:    s.CDIDisabledHooks,
		GDRCopy:          s.GDRCopy,
		GDS:              s.GDS,
		MOFED:            s.MOFED,
		IMEXChannels:     channels,
	}
}

// resolveDriverRoot returns the driver root in this container: the mount or,
// without a mount, the host's path.
func resolveDriverRoot(s config.Settings) string {
	if _, err := os.Stat(s.ContainerDriverRoot); err == nil {
		return s.ContainerDriverRoot
	}
	return s.DriverRoot
}

// DevRoot returns the parent folder of dev/ in this container: a driver root
// with device nodes, or /.
func DevRoot(s config.Settings) string {
	if root := resolveDriverRoot(s); hasDeviceNodes(root) {
		return root
	}
	return "/"
}

// hasDeviceNodes reports whether a root has the driver's device nodes.
func hasDeviceNodes(root string) bool {
	_, err := os.Stat(root + "/dev/nvidiactl")
	return err == nil
}

// IMEXChannels returns the channels for containers. A missing channel is an
// error if channels are required.
func IMEXChannels(s config.Settings) ([]int, error) {
	found, missing := cdi.FindIMEXChannels(DevRoot(s), s.IMEX.ChannelIDs)
	if len(missing) > 0 && s.IMEX.Required {
		return found, fmt.Errorf("required IMEX channels missing: %v", missing)
	}
	return found, nil
}

// UsesCDI reports whether containers get CDI device names.
func UsesCDI(s config.Settings) bool {
	return slices.Contains(s.DeviceListStrategy, response.CDIAnnotations) ||
		slices.Contains(s.DeviceListStrategy, response.CDICRI)
}

// usesOnlyCDI reports whether containers cannot start without a CDI spec.
func usesOnlyCDI(s config.Settings) bool {
	return !slices.Contains(s.DeviceListStrategy, response.EnvVar) &&
		!slices.Contains(s.DeviceListStrategy, response.VolumeMounts)
}
