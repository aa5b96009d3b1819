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
	"github.com/podgauge/podgauge/plugin/answer"
)

// nodesEvery is how often the driver's device nodes are looked for: a driver that
// comes late brings them with it.
const nodesEvery = 2 * time.Second

// gpuClass is the CDI class of GPUs and MIG devices.
const gpuClass = "gpu"

// looker is the Look of what is published, as a Board or a config.Watch has it.
type looker[T any] func() (T, <-chan struct{})

// specs keeps CDI specs written while the settings ask for them.
type specs struct {
	settings looker[config.Settings]
	board    looker[[]device.Status]
	dir      string
	log      *slog.Logger

	writer atomic.Pointer[cdi.Writer] // the one that runs; written by Run

	mu sync.Mutex
	// All below are guarded by mu. They stay when a writer ends, as its files do.
	made    config.Settings // that state is of
	state   cdi.State
	changed chan struct{} // closed when made or state differs
}

// HasSpec reports whether there is a spec of a class.
func (s *specs) HasSpec(class string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.state.Classes, class)
}

// errNotWritten is why specs are missing before a writer has tried to write them.
var errNotWritten = errors.New("not written yet")

// Missing returns why containers cannot be started by these settings; nil: they can. The channel is closed when
// that may have changed. If CDI is the only strategy, the spec of the GPUs must be written. Beside another one, an
// attempt is enough, because Allocate then leaves out what has no spec.
func (s *specs) Missing(want config.Settings) (changed <-chan struct{}, missing error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	switch {
	case !usesCDI(want):
	case !sameSpecs(s.made, want):
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
func (s *specs) Written() map[string]float64 {
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
func (s *specs) publish(made config.Settings, state cdi.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made, s.state = made, state
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Ready says what is missing of the specs, where there should be any.
func (s *specs) Ready() error {
	if w := s.writer.Load(); w != nil {
		return w.Ready()
	}
	return nil
}

// Alive says that the writer has stopped.
func (s *specs) Alive() error {
	if w := s.writer.Load(); w != nil {
		return w.Alive()
	}
	return nil
}

// Run is a loop over writers: each keeps what the settings of its time ask for. Files stay when a writer ends,
// because containers that were created by them restart. An earlier process' files are removed at start.
func (s *specs) Run(ctx context.Context) error {
	if settings, _ := s.settings(); !usesCDI(settings) {
		if err := cdi.Remove(s.dir); err != nil {
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
		if err := s.write(ctx, settings); err != nil {
			return err
		}
	}
	return nil
}

// write runs one writer until the settings ask for another.
func (s *specs) write(ctx context.Context, settings config.Settings) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wanted := cdiOptions(settings)
	o := wanted
	o.Look, o.Log, o.Dir = s.board, s.log, s.dir
	ids := answer.IDStrategy(settings.DeviceIDStrategy)
	o.Name = func(d device.Device) string { return ids.Name(answer.Device{Device: d, MIGIndex: d.Slice}) }
	o.Graphics = func(d device.Device) bool { return strings.Contains(d.Profile, "+gfx") }
	var w *cdi.Writer
	o.Changed = func() { s.publish(settings, w.State()) }
	w = cdi.New(o)
	s.writer.Store(w)
	defer s.writer.Store(nil)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // waited for below
	tick := time.NewTicker(nodesEvery)
	defer tick.Stop()
	for {
		now, changed := s.settings()
		if !usesCDI(now) || now.DeviceIDStrategy != settings.DeviceIDStrategy || !reflect.DeepEqual(cdiOptions(now), wanted) {
			cancel()
			return <-ended
		}
		for same := true; same; {
			select {
			case err := <-ended:
				return err
			case <-changed:
				same = false
			case <-tick.C: // without a driver what is written is likelier to be true than what would be
				same = !hasNodes(devRoot(now))
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
	channels, _ := cdi.Channels(devRoot(s), s.IMEX.ChannelIDs)
	return cdi.Options{
		DriverRoot: driverRoot(s), DevRoot: devRoot(s), TargetDriverRoot: s.DriverRoot, TargetDevRoot: s.DevRoot,
		HookPath: s.CDIHookPath, FeatureFlags: s.CDIFeatureFlags, DisabledHooks: s.CDIDisabledHooks,
		GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
}

// driverRoot is where this process finds the driver's files: where they are
// mounted, or else where they are on the host.
func driverRoot(s config.Settings) string {
	if _, err := os.Stat(s.ContainerDriverRoot); err == nil {
		return s.ContainerDriverRoot
	}
	return s.DriverRoot
}

// devRoot is where this process finds /dev: its own, unless the driver's root has
// one.
func devRoot(s config.Settings) string {
	if root := driverRoot(s); hasNodes(root) {
		return root
	}
	return "/"
}

// hasNodes tells whether the driver's device nodes are below a root.
func hasNodes(root string) bool {
	_, err := os.Stat(root + "/dev/nvidiactl")
	return err == nil
}

// imex are the channels that containers get. One that is required and not there
// is an error.
func imex(s config.Settings) ([]int, error) {
	there, missing := cdi.Channels(devRoot(s), s.IMEX.ChannelIDs)
	if len(missing) > 0 && s.IMEX.Required {
		return there, fmt.Errorf("IMEX channels %v are required and not there", missing)
	}
	return there, nil
}

// requireDriver fails if the first listing finds no driver that can be used. A driver that is still initializing
// is waited for, while the probes are answered. A device that is left out has an error beside those that are there.
func (a *assembly) requireDriver(ctx context.Context) error {
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
