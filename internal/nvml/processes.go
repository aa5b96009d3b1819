package nvml

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

var _ device.Occupied = (*Backend)(nil)

// lists are the kinds of process that hold a GPU, each with the function for it.
// GetComputeRunningProcesses of go-nvml falls back on older versions.
var lists = [...]struct {
	symbol string
	ask    func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
}{
	{"nvmlDeviceGetComputeRunningProcesses_v3", nvml.Device.GetComputeRunningProcesses},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", nvml.Device.GetGraphicsRunningProcesses},
}

// Processes are those that have a context on a device, by the numbers that the driver
// gives. A number of 0, of which nothing can be said, is dropped.
func (b *Backend) Processes(d device.Device) ([]uint32, error) {
	t, g, err := b.gpu(d.GPU)
	if err != nil {
		return nil, err
	}
	if t.muddles() {
		return nil, nil
	}
	if !g.enter() {
		return nil, device.ErrStalled
	}
	defer g.leave()
	var pids []uint32
	for _, list := range lists {
		if !t.has[list.symbol] {
			continue
		}
		processes, ret := list.ask(g.handle)
		if notHere(ret) { // vGPU, say
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("%s: %w", list.symbol, answer(ret))
		}
		for _, p := range processes {
			if p.Pid != 0 && on(p, d) {
				pids = append(pids, p.Pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// muddles reports whether the driver fills its lists of processes with a struct that no
// header describes. From 535.43.02 until 535.98 it has a field more than nvmlProcessInfo_t
// (https://github.com/wookayin/gpustat/issues/157, and nvitop's list of versions).
func (d *driver) muddles() bool {
	at := slices.IndexFunc(d.facts, func(l device.Label) bool { return l.Name == "driver_version" })
	if at < 0 {
		return false
	}
	major, minor, ok := majorMinor(d.facts[at].Value)
	return ok && major == 535 && minor >= 43 && minor < 98
}

// on tells whether a process of a GPU is on a device: on a slice only if it says so.
func on(p nvml.ProcessInfo, d device.Device) bool {
	return d.WholeGPU() || int(p.GpuInstanceId) == d.GI && int(p.ComputeInstanceId) == d.CI
}
