package collect

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// runningProcessLists are the kinds of process that hold a GPU, each with the function for it.
// GetComputeRunningProcesses of go-nvml falls back on older versions.
var runningProcessLists = [...]struct {
	symbol string
	ask    func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
}{
	{"nvmlDeviceGetComputeRunningProcesses_v3", nvml.Device.GetComputeRunningProcesses},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", nvml.Device.GetGraphicsRunningProcesses},
}

// ProcessIDs are those that have a context on a device, by the numbers that the driver
// gives. A number of 0, of which nothing can be said, is dropped.
func (g *GPUReader) ProcessIDs(d device.Device) ([]uint32, error) {
	if g.session.HasBrokenProcessInfo() {
		return nil, nil
	}
	if !g.tryAcquire() {
		return nil, device.ErrStalled
	}
	defer g.release()
	var pids []uint32
	for _, list := range runningProcessLists {
		if !g.session.Symbols[list.symbol] {
			continue
		}
		processes, ret := list.ask(g.Handle)
		if lib.IsNotSupported(ret) { // vGPU, say
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("%s: %w", list.symbol, lib.Error(ret))
		}
		for _, p := range processes {
			if p.Pid != 0 && isOnDevice(p, d) {
				pids = append(pids, p.Pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// isOnDevice tells whether a process of a GPU is on a device: on a slice only if it says so.
func isOnDevice(p nvml.ProcessInfo, d device.Device) bool {
	return d.WholeGPU() || int(p.GpuInstanceId) == d.GI && int(p.ComputeInstanceId) == d.CI
}
