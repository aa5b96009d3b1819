package collect

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// ProcessIDs returns the processes with a context on a device, by the driver's
// numbers, as far as known.
func (g *GPUReader) ProcessIDs(d device.Device) ([]uint32, error) {
	if g.session.HasBrokenProcessInfo() {
		return nil, nil
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	uses, ret := g.listProcesses(true)
	if ret != nvml.SUCCESS && !lib.IsUnavailable(ret) {
		return nil, callError("list processes", ret)
	}
	var pids []uint32
	for _, u := range uses {
		if d.WholeGPU() || u.Device == d.ID {
			pids = append(pids, u.PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

const (
	// initialProcesses suffices mostly.
	initialProcesses = 64
	// maxProcesses is above any plausible count.
	maxProcesses = 1 << 16
	// maxPID is Linux' PID_MAX_LIMIT, and maxInstanceID is above any GPU's.
	maxPID, maxInstanceID = 1 << 22, 255
	// memoryNotAvailable is the driver's value for unknown memory.
	memoryNotAvailable = 1<<64 - 1
	// notReported is the value for an unknown number of device.ProcessUsage.
	notReported = -1
	// utilizationWindow is the period of utilization before a collection. The
	// driver samples once in 1/6 to 1 s (nvml.h,
	// nvmlDeviceGetUtilizationRates), so a busy process has a sample,
	// regardless of the interval of collections.
	utilizationWindow = 2 * time.Second
)

// ReadProcessUsage returns the processes with a context on the GPU or its MIG
// devices.
func (g *GPUReader) ReadProcessUsage() (uses []device.ProcessUsage, known bool) {
	if g.session.HasBrokenProcessInfo() {
		return nil, false
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	uses, ret := g.listProcesses(false)
	if ret != nvml.SUCCESS {
		return nil, false
	}
	if !g.MIG.Load().Enabled { // NVML has no utilization of MIG devices
		g.fillUtilization(uses)
	}
	return uses, true
}

// listProcesses returns a row for each process and device, without utilization.
// Unless all lists are asked for, an empty list of graphics or MPS processes is
// a slow value, since most GPUs have compute processes only, and a denied list
// is due later.
func (g *GPUReader) listProcesses(all bool) (uses []device.ProcessUsage, ret nvml.Return) {
	p := &g.processes
	if p.infos == nil {
		p.infos = make([]nvml.ProcessInfo, initialProcesses)
		p.samples = make([]nvml.ProcessUtilizationSample, initialProcesses)
	}
	now := time.Now()
	for i, list := range g.session.ProcessLists {
		interval := time.Duration(0)
		if i > 0 && p.lists[i].succeeded() && p.lengths[i] == 0 {
			interval = slowInterval
		}
		skipped := list == "" || !all && !p.lists[i].due(interval, now)
		switch {
		case skipped && i == 0: // denied, or unknown to the library: no process is no answer
			return nil, nvml.ERROR_NOT_SUPPORTED
		case skipped:
			continue
		}
		ret := g.readProcessList(list)
		p.lists[i].record(ret, now)
		switch {
		case lib.IsUnavailable(ret) && i > 0: // as without graphics; without the first list the GPU is a vGPU
			continue
		case ret != nvml.SUCCESS:
			return nil, ret
		}
		all = all || i == 0 && p.count != p.lengths[i] // MPS adds its server to the first list
		p.lengths[i] = p.count
		for _, info := range p.infos[:p.count] {
			if !isPlausible(info) {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			of, ok := g.processDevice(info)
			if !ok {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			uses = addUsage(uses, of, info)
		}
	}
	return uses, nvml.SUCCESS
}

// readProcessList reads a list, once more with a larger buffer if needed.
func (g *GPUReader) readProcessList(symbol string) nvml.Return {
	p := &g.processes
	for range 2 {
		ret := lib.ListProcesses(symbol, g.Handle, p.infos, &p.count)
		if ret == nvml.SUCCESS && int(p.count) > len(p.infos) {
			return nvml.ERROR_UNKNOWN
		}
		length := grownLength(p.count, len(p.infos))
		if ret != nvml.ERROR_INSUFFICIENT_SIZE || length == len(p.infos) {
			return ret
		}
		p.infos = make([]nvml.ProcessInfo, length)
	}
	return nvml.ERROR_INSUFFICIENT_SIZE
}

// grownLength returns the length of a new buffer, with room for new processes.
func grownLength(count uint32, length int) int {
	return min(2*max(int(min(count, maxProcesses)), length), maxProcesses)
}

// isPlausible returns false for a process that cannot exist. Drivers have
// filled lists with shorter entries, so that memory appears as a pid, and a pid
// as an instance (https://github.com/NVIDIA/go-nvml/issues/75).
func isPlausible(info nvml.ProcessInfo) bool {
	return info.Pid > 0 && info.Pid <= maxPID &&
		(info.GpuInstanceId <= maxInstanceID || info.GpuInstanceId == NoInstanceID)
}

// processDevice returns the device of a process. On a MIG-enabled GPU the
// driver informs only the privileged; for all others the device is unknown.
func (g *GPUReader) processDevice(info nvml.ProcessInfo) (device.ID, bool) {
	mig := g.MIG.Load()
	if mig.Enabled && info.GpuInstanceId == NoInstanceID {
		return "", false
	}
	if mig.Enabled {
		if id := mig.DeviceID(info.GpuInstanceId, info.ComputeInstanceId); id != "" {
			return id, true
		}
	}
	return device.ID(g.ID), true
}

// addUsage adds a process, possibly on several lists with the same memory.
func addUsage(uses []device.ProcessUsage, dev device.ID, info nvml.ProcessInfo) []device.ProcessUsage {
	memory := float64(notReported)
	if info.UsedGpuMemory != memoryNotAvailable {
		memory = float64(info.UsedGpuMemory)
	}
	for i := range uses {
		if u := &uses[i]; u.PID == info.Pid && u.Device == dev {
			u.MemoryBytes = max(u.MemoryBytes, memory)
			return uses
		}
	}
	return append(uses, device.ProcessUsage{
		Device: dev, PID: info.Pid, MemoryBytes: memory,
		SM: notReported, MemoryController: notReported, Encoder: notReported, Decoder: notReported,
	})
}

// fillUtilization fills in the utilization in utilizationWindow. The driver
// lists active processes, and returns NOT_FOUND without active processes.
func (g *GPUReader) fillUtilization(uses []device.ProcessUsage) {
	p := &g.processes
	if !g.session.Symbols[lib.UtilizationSymbol] || len(uses) == 0 {
		return
	}
	since := uint64(time.Now().Add(-utilizationWindow).UnixMicro()) // the driver uses the node's clock
	ret := lib.ProcessUtilization(g.Handle, p.samples, &p.count, since)
	switch {
	case ret == nvml.ERROR_NOT_FOUND:
		p.count = 0
	case ret == nvml.ERROR_INSUFFICIENT_SIZE:
		if length := grownLength(p.count, len(p.samples)); length > len(p.samples) {
			p.samples = make([]nvml.ProcessUtilizationSample, length)
		}
		return
	case ret != nvml.SUCCESS || int(p.count) > len(p.samples):
		return
	}
	averageSamples(uses, p.samples[:p.count], since)
}

// averageSamples gives each process the mean of its samples, and 0 without any.
// Samples of unlisted processes and times to come are dropped.
func averageSamples(uses []device.ProcessUsage, samples []nvml.ProcessUtilizationSample, since uint64) {
	latest := since + uint64((utilizationWindow + time.Minute).Microseconds())
	for i := range uses {
		u, n := &uses[i], 0.0
		u.SM, u.MemoryController, u.Encoder, u.Decoder = 0, 0, 0, 0
		for _, s := range samples {
			if u.PID == s.Pid && s.TimeStamp > since && s.TimeStamp <= latest {
				u.SM += percentToRatio(s.SmUtil)
				u.MemoryController += percentToRatio(s.MemUtil)
				u.Encoder += percentToRatio(s.EncUtil)
				u.Decoder += percentToRatio(s.DecUtil)
				n++
			}
		}
		if n > 0 {
			u.SM, u.MemoryController, u.Encoder, u.Decoder = u.SM/n, u.MemoryController/n, u.Encoder/n, u.Decoder/n
		}
	}
}

// percentToRatio caps at 1: drivers have returned garbage
// (https://github.com/Syllo/nvtop/issues/110).
func percentToRatio(v uint32) float64 { return float64(min(v, 100)) / 100 }
