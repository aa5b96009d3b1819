package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
)

// nodeBackend is the backend, real or simulated, and the kubelet that goes with it.
type nodeBackend struct {
	device.Backend
	kubeletDir, devicePluginDir string
	cdiDir                      string // where CDI specs go; empty: where runtimes look
	procDir                     string // where processes are looked up; empty: /proc
	// processes tell whose they are; nil: nobody can.
	processes exporter.ProcessResolver
	// xidEventAt says what an Xid means that the kernel's log tells of the GPU at an address, and of
	// these instances; false while no such GPU is known. Nil where there is no such log.
	xidEventAt func(pci string, xid uint64, gi, ci uint32) (device.Event, bool)
	// missingFamilies are the families that the driver is too old for.
	missingFamilies func() []string
	// run is what simulates; it returns at once, or when ctx is done.
	run func(ctx context.Context) error
	// closeDriver gives the driver up. No call to it may be under way.
	closeDriver func()
	close       func()
}

func (o *options) openPlatform(log *slog.Logger) (*nodeBackend, error) {
	backend, node, err := o.platform.Open(OpenOptions{DriverRoots: libraryRoots(o.loaded.Settings), PerLink: o.metrics.perNVLink, Log: log})
	if err != nil {
		return nil, err
	}
	nb := &nodeBackend{
		Backend: backend, kubeletDir: o.kubeletDir, devicePluginDir: o.devicePluginDir,
		missingFamilies: func() []string { return nil },
		run:             func(context.Context) error { return nil },
		closeDriver:     func() {}, close: func() {},
	}
	if d, ok := backend.(libraryBackend); ok {
		nb.missingFamilies, nb.closeDriver, nb.xidEventAt = d.MissingFamilies, d.Close, d.XidEventAt
	}
	if node != nil {
		nb.kubeletDir, nb.devicePluginDir, nb.cdiDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
		nb.run, nb.close, nb.processes = node.Run, node.Close, node.Processes()
	}
	return nb, nil
}

// libraryRoots are the folders that may have the driver's library, in order.
func libraryRoots(s config.Settings) []string { return []string{s.ContainerDriverRoot, s.DriverRoot} }

// shutdown gives the driver up if nothing hangs in it; what does ends with the
// process.
func (nb *nodeBackend) shutdown(readers *device.Readers, monitor *device.Monitor) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	readers.Pause() // a scrape that was cut off may yet have begun a flight
	if !readers.Drain(ctx) || !monitor.Drain(ctx) {
		return
	}
	closed := make(chan struct{})
	go func() { // ends when the driver lets go, and with the process if it never does
		nb.closeDriver()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
