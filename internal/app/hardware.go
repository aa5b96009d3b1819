package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/sim"
)

// simulatedGPUs is how many a simulated machine has.
const simulatedGPUs = 8

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
	hw := &hardware{
		kubeletDir: o.kubeletDir, devicePluginDir: o.devicePluginDir,
		unsupported: func() []string { return nil },
		run:         func(context.Context) error { return nil },
		closeDriver: func() {}, close: func() {},
	}
	if o.simulate == simulateNothing {
		s := o.loaded.Settings
		driver := nvml.New(nvml.Options{DriverRoots: []string{s.ContainerDriverRoot, s.DriverRoot}, PerLink: o.metrics.nvlinkLinks})
		hw.Backend, hw.unsupported, hw.closeDriver, hw.xidAt = driver, driver.Missing, driver.Close, driver.XidAt
		return hw, nil
	}
	rows := nvml.Metrics()
	if o.metrics.nvlinkLinks {
		rows = nvml.MetricsPerLink()
	}
	machine := sim.NewMachine(rows, simulatedGPUs, time.Now)
	script, err := o.script()
	if err != nil {
		return nil, err
	}
	if script != nil {
		machine = sim.Named(script.Machine, rows, time.Now)
	}
	machine.Means = nvml.Means
	hw.Backend = machine
	if o.simulate == simulateHardware {
		return hw, nil
	}
	node, err := sim.NewNode(machine, log)
	if err != nil {
		return nil, err
	}
	node.Script = script
	hw.kubeletDir, hw.devicePluginDir, hw.cdiDir = node.Dir(), node.DevicePluginDir(), filepath.Join(node.Dir(), "cdi")
	hw.run, hw.close, hw.processes = node.Run, node.Close, node.Crowd
	return hw, nil
}

// script is what is to happen on the simulated node; nil where that is not said.
func (o *options) script() (*sim.Script, error) {
	name, said := strings.CutPrefix(o.simulate, simulateScript)
	if !said {
		return nil, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--simulate: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was read
	script, err := sim.ReadScript(file)
	if err != nil {
		return nil, fmt.Errorf("--simulate: %s: %w", name, err)
	}
	return script, nil
}

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
