package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/device/nvml"
	"github.com/podgauge/podgauge/sim"
)

// simulatedGPUs is how many a simulated machine has.
const simulatedGPUs = 8

// hardware is the backend, real or simulated, and the kubelet that goes with it.
type hardware struct {
	device.Backend
	kubeletDir, devicePluginDir string
	// unsupported are the families that the driver is too old for.
	unsupported func() []string
	// run is what simulates; it returns at once, or when ctx is done.
	run func(ctx context.Context) error
	// closeDriver gives the driver up. No call to it may be under way.
	closeDriver func()
	close       func()
}

func (c *config) hardware(log *slog.Logger) (*hardware, error) {
	hw := &hardware{
		kubeletDir: c.kubeletDir, devicePluginDir: c.devicePluginDir,
		unsupported: func() []string { return nil },
		run:         func(context.Context) error { return nil },
		closeDriver: func() {}, close: func() {},
	}
	if c.simulate == simulateNothing {
		driver := nvml.New(nvml.Options{DriverRoots: []string{c.driverRootCtr, c.driverRoot}})
		hw.Backend, hw.unsupported, hw.closeDriver = driver, driver.Missing, driver.Close
		return hw, nil
	}
	machine := sim.NewMachine(nvml.Metrics(), simulatedGPUs, time.Now)
	hw.Backend = machine
	if c.simulate == simulateHardware {
		return hw, nil
	}
	node, err := sim.NewNode(machine, log)
	if err != nil {
		return nil, err
	}
	hw.kubeletDir, hw.devicePluginDir = node.Dir(), node.DevicePluginDir()
	hw.run, hw.close = node.Run, node.Close
	return hw, nil
}

// leave gives the driver up if nothing hangs in it; what does ends with the
// process.
func (hw *hardware) leave(readers *device.Readers, monitor *device.Monitor) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveBy)
	defer cancel()
	if readers.Drain(ctx) && monitor.Drain(ctx) {
		hw.closeDriver()
	}
}
