package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
)

// hardware is the backend, real or simulated, and the kubelet that goes with it.
type hardware struct {
	device.Backend
	kubeletDir, devicePluginDir string
	cdiDir                      string // where CDI specs go; empty: where runtimes look
	proc                        string // where processes are looked up; empty: /proc
	// processes tell whose they are; nil: nobody can.
	processes exporter.Processes
	// xidAt says what an Xid means that the kernel's log tells of the GPU at an address, and of
	// these instances; false while no such GPU is known. Nil where there is no such log.
	xidAt func(pci string, xid uint64, gi, ci uint32) (device.Event, bool)
	// unsupported are the families that the driver is too old for.
	unsupported func() []string
	// run is what simulates; it returns at once, or when ctx is done.
	run func(ctx context.Context) error
	// closeDriver gives the driver up. No call to it may be under way.
	closeDriver func()
	close       func()
}

func (o *options) hardware(log *slog.Logger) (*hardware, error) {
	backend, node, err := o.platform.Open(OpenOptions{DriverRoots: driverRoots(o.loaded.Settings), PerLink: o.metrics.nvlinkLinks, Log: log})
	if err != nil {
		return nil, err
	}
	hw := &hardware{
		Backend: backend, kubeletDir: o.kubeletDir, devicePluginDir: o.devicePluginDir,
		unsupported: func() []string { return nil },
		run:         func(context.Context) error { return nil },
		closeDriver: func() {}, close: func() {},
	}
	if d, ok := backend.(driver); ok {
		hw.unsupported, hw.closeDriver, hw.xidAt = d.Missing, d.Close, d.XidAt
	}
	if node != nil {
		hw.kubeletDir, hw.devicePluginDir, hw.cdiDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
		hw.run, hw.close, hw.processes = node.Run, node.Close, node.Processes()
	}
	return hw, nil
}

// driverRoots are the folders that may have the driver's library, in order.
func driverRoots(s config.Settings) []string { return []string{s.ContainerDriverRoot, s.DriverRoot} }

// leave gives the driver up if nothing hangs in it; what does ends with the
// process.
func (hw *hardware) leave(readers *device.Readers, monitor *device.Monitor) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveBy)
	defer cancel()
	readers.Pause() // a scrape that was cut off may yet have begun a flight
	if !readers.Drain(ctx) || !monitor.Drain(ctx) {
		return
	}
	closed := make(chan struct{})
	go func() { // ends when the driver lets go, and with the process if it never does
		hw.closeDriver()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
