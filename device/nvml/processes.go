package nvml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
)

var _ device.Occupied = (*Backend)(nil)

// muddled are how the versions of drivers begin whose lists of processes have a field that no header knows,
// so that what is read of them is nonsense (https://github.com/wookayin/gpustat/issues/157).
var muddled = []string{"535.54.", "535.86."}

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

// muddles tells whether the driver is one of muddled.
func (d *driver) muddles() bool {
	return slices.ContainsFunc(d.facts, func(l device.Label) bool {
		return l.Name == "driver_version" && slices.ContainsFunc(muddled, func(begin string) bool { return strings.HasPrefix(l.Value, begin) })
	})
}

// on tells whether a process of a GPU is on a device: on a slice only if it says so.
func on(p nvml.ProcessInfo, d device.Device) bool {
	return d.WholeGPU() || int(p.GpuInstanceId) == d.GI && int(p.ComputeInstanceId) == d.CI
}
