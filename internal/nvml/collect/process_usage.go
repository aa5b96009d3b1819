package collect

import (
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// processBuffers is what a GPU has for those who use it. The buffers stay from flight to flight,
// and grow where they were too small.
type processBuffers struct {
	pointer unsafe.Pointer // of the GPU's handle
	infos   []nvml.ProcessInfo
	samples []nvml.ProcessUtilizationSample
	count   uint32 // how many a call gave
	// sampleCounts are how many samples each of the rows that are being written has.
	sampleCounts []float64
	denials      [len(lib.ProcessListSymbols)]Denials // of each list
}

// initialProcesses are as many as there mostly are.
const initialProcesses = 64

// memoryNotAvailable is what the driver says of a number that it does not tell.
const (
	memoryNotAvailable = 1<<64 - 1
)

// notReported is a number of a device.ProcessUsage that is not told.
const notReported = -1

// ReadProcessUsage lists the processes that have a context on the GPU, and how much of it each
// uses. Of a partitioned GPU a process uses a slice. It takes what calls the flight that
// Read began has left, which are enough; but a list that has outgrown its buffer is read
// by the next flight, and until then nothing is known.
func (g *GPUReader) ReadProcessUsage(buf []device.ProcessUsage) (uses []device.ProcessUsage, known bool) {
	if g.session.HasBrokenProcessInfo() || !g.tryAcquire() {
		return buf, false
	}
	defer g.release()
	if g.groupedState == nil { // no Read has come before
		g.updateInstances()
	}
	g.collection.budget += g.processCallBudget() // as they were kept, whatever the newest listing says
	before := len(buf)
	uses, known = g.listProcesses(buf)
	if !known {
		return buf, false
	}
	if !g.mig.Load().Enabled { // NVML has no shares of slices
		g.fillUtilization(uses[before:])
	}
	return uses, true
}

// listProcesses appends a row for each process and device, without shares.
func (g *GPUReader) listProcesses(buf []device.ProcessUsage) ([]device.ProcessUsage, bool) {
	p := &g.processes
	if p.pointer == nil {
		p.pointer = lib.PointerOf(g.Handle)
		p.infos = make([]nvml.ProcessInfo, initialProcesses)
		p.samples = make([]nvml.ProcessUtilizationSample, initialProcesses)
	}
	before, answered, now := len(buf), false, time.Now()
	for i, list := range g.session.Raw.ProcessLists {
		if list == nil && i == 0 {
			return buf, false
		}
		if list == nil || p.denials[i].shouldSkip(now) {
			continue
		}
		ret := g.readProcessList(list)
		denied := lib.IsUnavailable(ret) && i > 0 // no graphics, say; without the first, it is a vGPU
		p.denials[i].Record(denied, now)
		switch {
		case denied:
			continue
		case ret != nvml.SUCCESS:
			return buf, false
		}
		answered = true
		for _, info := range p.infos[:p.count] {
			of, ok := g.processDevice(info)
			if !ok {
				return buf, false
			}
			if info.Pid != 0 { // of which nothing can be said
				buf = addUse(buf, before, of, info)
			}
		}
	}
	return buf, answered
}

// readProcessList asks for one list, and once more if it was too long for the buffer and there
// is a call left.
func (g *GPUReader) readProcessList(f unsafe.Pointer) nvml.Return {
	p := &g.processes
	for g.spendCall() {
		ret := lib.ListProcesses(f, p.pointer, p.infos, &p.count)
		if ret == nvml.ERROR_INSUFFICIENT_SIZE {
			length := grownLength(p.count, len(p.infos))
			if length == len(p.infos) {
				return ret
			}
			p.infos = make([]nvml.ProcessInfo, length)
			continue
		}
		if ret == nvml.SUCCESS && int(p.count) > len(p.infos) {
			return nvml.ERROR_UNKNOWN
		}
		return ret
	}
	return nvml.ERROR_INSUFFICIENT_SIZE
}

// maxProcesses is more than have ever been on a GPU; a count above it is none.
const maxProcesses = 1 << 16

// grownLength is how long a buffer is to be that was too short for a count. Some of those who
// come until it is used fit as well; but a driver that is never content gets no more than
// could make sense.
func grownLength(count uint32, length int) int {
	return min(2*max(int(min(count, maxProcesses)), length), maxProcesses)
}

// processDevice is what a process uses. Of a partitioned GPU only the privileged are told
// that; who is not cannot know who uses what.
func (g *GPUReader) processDevice(info nvml.ProcessInfo) (device.ID, bool) {
	if !g.mig.Load().Enabled {
		return device.ID(g.ID), true
	}
	if info.GpuInstanceId == NoInstanceID {
		return "", false
	}
	if id := g.mig.Load().DeviceID(info.GpuInstanceId, info.ComputeInstanceId); id != "" {
		return id, true
	}
	return device.ID(g.ID), true
}

// addUse adds a process, which may be on several lists with the same memory.
func addUse(buf []device.ProcessUsage, from int, dev device.ID, info nvml.ProcessInfo) []device.ProcessUsage {
	memory := float64(notReported)
	if info.UsedGpuMemory != memoryNotAvailable {
		memory = float64(info.UsedGpuMemory)
	}
	for i := range buf[from:] {
		if u := &buf[from+i]; u.PID == info.Pid && u.Device == dev {
			u.MemoryBytes = max(u.MemoryBytes, memory)
			return buf
		}
	}
	return append(buf, device.ProcessUsage{
		Device: dev, PID: info.Pid, MemoryBytes: memory,
		SM: notReported, MemoryController: notReported, Encoder: notReported, Decoder: notReported,
	})
}

// utilizationWindow is the time before a collection that shares are of. The driver samples once in
// 1/6 to 1 s (nvml.h, nvmlDeviceGetUtilizationRates), so a process that is busy has a sample
// in twice the longest period, however soon one collection follows another: they do not
// consume each other's samples.
const utilizationWindow = 2 * time.Second

// fillUtilization fills in what each process used in the time of utilizationWindow. The driver tells
// of those that did anything, and says NOT_FOUND where none did.
func (g *GPUReader) fillUtilization(uses []device.ProcessUsage) {
	p, f := &g.processes, g.session.Raw.Utilization
	if f == nil || len(uses) == 0 || !g.spendCall() {
		return
	}
	since := uint64(time.Now().Add(-utilizationWindow).UnixMicro()) // the driver's clock is the node's
	ret := lib.ProcessUtilization(f, p.pointer, p.samples, &p.count, since)
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
	p.averageSamples(uses, p.samples[:p.count], since)
}

// averageSamples gives each process the mean of its samples, and 0 where it has none.
func (p *processBuffers) averageSamples(uses []device.ProcessUsage, samples []nvml.ProcessUtilizationSample, since uint64) {
	p.sampleCounts = p.sampleCounts[:0]
	for i := range uses {
		u := &uses[i]
		u.SM, u.MemoryController, u.Encoder, u.Decoder = 0, 0, 0, 0
		p.sampleCounts = append(p.sampleCounts, 0)
	}
	latest := since + uint64((utilizationWindow + time.Minute).Microseconds()) // what is of a time to come is nonsense
	for _, s := range samples {
		if s.TimeStamp > latest || s.TimeStamp <= since {
			continue
		}
		for i := range uses { // of pids that are on no list nothing is known
			if u := &uses[i]; u.PID == s.Pid {
				u.SM += percentToRatio(s.SmUtil)
				u.MemoryController += percentToRatio(s.MemUtil)
				u.Encoder += percentToRatio(s.EncUtil)
				u.Decoder += percentToRatio(s.DecUtil)
				p.sampleCounts[i]++
			}
		}
	}
	for i, n := range p.sampleCounts {
		if u := &uses[i]; n > 0 {
			u.SM, u.MemoryController, u.Encoder, u.Decoder = u.SM/n, u.MemoryController/n, u.Encoder/n, u.Decoder/n
		}
	}
}

// percentToRatio is a share. Garbage was seen (https://github.com/Syllo/nvtop/issues/110).
func percentToRatio(v uint32) float64 { return float64(min(v, 100)) / 100 }
