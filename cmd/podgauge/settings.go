package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/config"
	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/device/nvml/cdi"
	"github.com/podgauge/podgauge/plugin/answer"
)

// nodesEvery is how often the driver's device nodes are looked for: a driver that
// comes late brings them with it.
const nodesEvery = 2 * time.Second

// looker is the Look of what is published, as a Board or a config.Watch has it.
type looker[T any] func() (T, <-chan struct{})

// specs keeps CDI specs written while the settings ask for them.
type specs struct {
	settings looker[config.Settings]
	board    looker[[]device.Status]
	dir      string
	log      *slog.Logger

	writer atomic.Pointer[cdi.Writer] // the one that runs; written by Run
}

// HasSpec tells whether there is a spec of a class.
func (s *specs) HasSpec(class string) bool {
	w := s.writer.Load()
	return w != nil && w.HasSpec(class)
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

// Run is a loop over writers: each keeps what the settings of its time ask for.
func (s *specs) Run(ctx context.Context) error {
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
	w := cdi.New(o)
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

// demand ends a start where the settings ask for it: NVIDIA's plugin does so by
// default, and this one when it was told to, since a driver may come later.
func (o *options) demand(ctx context.Context, hw *hardware) error {
	if _, err := imex(o.loaded.Settings); err != nil {
		return err
	}
	if !o.loaded.Settings.FailOnInitError {
		return nil
	}
	// A device that is left out has an error beside those that are there.
	if devices, err := listed(ctx, hw); devices == nil && err != nil && ctx.Err() == nil {
		return fmt.Errorf("--fail-on-init-error: %w", err)
	}
	return nil
}
