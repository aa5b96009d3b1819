package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
)

// nodeBackend is the node's devices, real or simulated, and the kubelet's folders.
type nodeBackend struct {
	device.Backend
	library                     libraryBackend // of the driver; nil: the devices are simulated
	node                        SimulatedNode  // nil: the devices are on this machine
	kubeletDir, devicePluginDir string
	cdiDir                      string // of CDI specs; empty: the default of container runtimes
	procDir                     string // of processes; empty: /proc
}

func (o *options) openPlatform(log *slog.Logger) (*nodeBackend, error) {
	backend, node, err := o.platform.Open(OpenOptions{DriverRoots: libraryRoots(o.loaded.Settings), PerLink: o.metrics.perNVLink, Log: log})
	if err != nil {
		return nil, err
	}
	nb := &nodeBackend{Backend: backend, node: node, kubeletDir: o.kubeletDir, devicePluginDir: o.devicePluginDir}
	nb.library, _ = backend.(libraryBackend)
	if node != nil {
		nb.kubeletDir, nb.devicePluginDir, nb.cdiDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
	}
	return nb, nil
}

// missingFamilies returns the metric families missing in an old driver library.
func (nb *nodeBackend) missingFamilies() []string {
	if nb.library == nil {
		return nil
	}
	return nb.library.MissingFamilies()
}

// processes returns the processes of a simulated node; nil: use the machine's processes.
func (nb *nodeBackend) processes() exporter.ProcessResolver {
	if nb.node == nil {
		return nil
	}
	return nb.node.Processes()
}

// run runs a simulated node.
func (nb *nodeBackend) run(ctx context.Context) error {
	if nb.node == nil {
		return nil
	}
	return nb.node.Run(ctx)
}

// close removes the files of a simulated node.
func (nb *nodeBackend) close() {
	if nb.node != nil {
		nb.node.Close()
	}
}

// shutdown unloads the driver's library, unless a call hangs in it. A hanging call ends with the process.
func (nb *nodeBackend) shutdown(readers *device.Readers, monitor *device.Monitor) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	readers.Pause() // an interrupted scrape may have begun a collection
	if !readers.Drain(ctx) || !monitor.Drain(ctx) || nb.library == nil {
		return
	}
	closed := make(chan struct{})
	go func() { // ends when the library returns, or with the process
		nb.library.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
