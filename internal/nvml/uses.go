package nvml

import (
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// people is what a GPU has for those who use it. The buffers stay from flight to flight,
// and grow where they were too small.
type people struct {
	pointer unsafe.Pointer // of the GPU's handle
	infos   []nvml.ProcessInfo
	samples []nvml.ProcessUtilizationSample
	count   uint32 // how many a call gave
	// counts are how many samples each of the rows that are being written has.
	counts []float64
	absent [len(processLists)]absence // of each list
}

// somePeople are as many as there mostly are.
const somePeople = 64

// notAvailable is what the driver says of a number that it does not tell.
const (
	notAvailable = 1<<64 - 1
	noInstance   = 1<<32 - 1
)

// notTold is a number of a device.Use that is not told.
const notTold = -1

// Uses lists the processes that have a context on the GPU, and how much of it each
// uses. Of a partitioned GPU a process uses a slice. It takes what calls the flight that
// Read began has left, which are enough; but a list that has outgrown its buffer is read
// by the next flight, and until then nothing is known.
func (b *Backend) Uses(id device.GPU, buf []device.Use) (uses []device.Use, known bool) {
	t, g, err := b.gpu(id)
	if err != nil || t.muddles() || !g.enter() {
		return buf, false
	}
	defer g.leave()
	if g.grouped == nil { // no Read has come before
		g.regroup()
	}
	g.flight.left += g.callsOfUses() // as they were kept, whatever the newest listing says
	before := len(buf)
	uses, known = g.listPeople(t, buf)
	if !known {
		return buf, false
	}
	if !g.parts.Load().mig { // NVML has no shares of slices
		g.shares(uses[before:])
	}
	return uses, true
}

// listPeople appends a row for each process and device, without shares.
func (g *gpu) listPeople(t *table, buf []device.Use) ([]device.Use, bool) {
	p := &g.people
	if p.pointer == nil {
		p.pointer = pointerOf(g.handle)
		p.infos = make([]nvml.ProcessInfo, somePeople)
		p.samples = make([]nvml.ProcessUtilizationSample, somePeople)
	}
	before, told, now := len(buf), false, time.Now()
	for i, list := range g.driver.direct.lists {
		if list == nil && i == 0 {
			return buf, false
		}
		if list == nil || p.absent[i].hides(now) {
			continue
		}
		ret := g.listKind(list)
		denied := lacking(ret) && i > 0 // no graphics, say; without the first, it is a vGPU
		p.absent[i].note(denied, now)
		switch {
		case denied:
			continue
		case ret != nvml.SUCCESS:
			return buf, false
		}
		told = true
		for _, info := range p.infos[:p.count] {
			of, ok := g.deviceOf(t, info)
			if !ok {
				return buf, false
			}
			if info.Pid != 0 { // of which nothing can be said
				buf = put(buf, before, of, info)
			}
		}
	}
	return buf, told
}

// listKind asks for one list, and once more if it was too long for the buffer and there
// is a call left.
func (g *gpu) listKind(f unsafe.Pointer) nvml.Return {
	p := &g.people
	for g.spend() {
		ret := list(f, p.pointer, p.infos, &p.count)
		if ret == nvml.ERROR_INSUFFICIENT_SIZE {
			room := roomFor(p.count, len(p.infos))
			if room == len(p.infos) {
				return ret
			}
			p.infos = make([]nvml.ProcessInfo, room)
			continue
		}
		if ret == nvml.SUCCESS && int(p.count) > len(p.infos) {
			return nvml.ERROR_UNKNOWN
		}
		return ret
	}
	return nvml.ERROR_INSUFFICIENT_SIZE
}

// mostPeople is more than have ever been on a GPU; a count above it is none.
const mostPeople = 1 << 16

// roomFor is how long a buffer is to be that was too short for a count. Some of those who
// come until it is used fit as well; but a driver that is never content gets no more than
// could make sense.
func roomFor(count uint32, short int) int {
	return min(2*max(int(min(count, mostPeople)), short), mostPeople)
}

// deviceOf is what a process uses. Of a partitioned GPU only the privileged are told
// that; who is not cannot know who uses what.
func (g *gpu) deviceOf(t *table, info nvml.ProcessInfo) (device.ID, bool) {
	if !g.parts.Load().mig {
		return g.device.ID, true
	}
	if info.GpuInstanceId == noInstance {
		return "", false
	}
	if id := t.sliceOf(g, info.GpuInstanceId, info.ComputeInstanceId); id != "" {
		return id, true
	}
	return g.device.ID, true
}

// put adds a process, which may be on several lists with the same memory.
func put(buf []device.Use, from int, of device.ID, info nvml.ProcessInfo) []device.Use {
	memory := float64(notTold)
	if info.UsedGpuMemory != notAvailable {
		memory = float64(info.UsedGpuMemory)
	}
	for i := range buf[from:] {
		if u := &buf[from+i]; u.PID == info.Pid && u.Device == of {
			u.MemoryBytes = max(u.MemoryBytes, memory)
			return buf
		}
	}
	return append(buf, device.Use{
		Device: of, PID: info.Pid, MemoryBytes: memory,
		SM: notTold, MemoryController: notTold, Encoder: notTold, Decoder: notTold,
	})
}

// sharesOf is the time before a collection that shares are of. The driver samples once in
// 1/6 to 1 s (nvml.h, nvmlDeviceGetUtilizationRates), so a process that is busy has a sample
// in twice the longest period, however soon one collection follows another: they do not
// consume each other's samples.
const sharesOf = 2 * time.Second

// shares fills in what each process used in the time of sharesOf. The driver tells
// of those that did anything, and says NOT_FOUND where none did.
func (g *gpu) shares(uses []device.Use) {
	p, f := &g.people, g.driver.direct.utilization
	if f == nil || len(uses) == 0 || !g.spend() {
		return
	}
	since := uint64(time.Now().Add(-sharesOf).UnixMicro()) // the driver's clock is the node's
	ret := utilization(f, p.pointer, p.samples, &p.count, since)
	switch {
	case ret == nvml.ERROR_NOT_FOUND:
		p.count = 0
	case ret == nvml.ERROR_INSUFFICIENT_SIZE:
		if room := roomFor(p.count, len(p.samples)); room > len(p.samples) {
			p.samples = make([]nvml.ProcessUtilizationSample, room)
		}
		return
	case ret != nvml.SUCCESS || int(p.count) > len(p.samples):
		return
	}
	p.share(uses, p.samples[:p.count], since)
}

// share gives each process the mean of its samples, and 0 where it has none.
func (p *people) share(uses []device.Use, samples []nvml.ProcessUtilizationSample, since uint64) {
	p.counts = p.counts[:0]
	for i := range uses {
		u := &uses[i]
		u.SM, u.MemoryController, u.Encoder, u.Decoder = 0, 0, 0, 0
		p.counts = append(p.counts, 0)
	}
	latest := since + uint64((sharesOf + time.Minute).Microseconds()) // what is of a time to come is nonsense
	for _, s := range samples {
		if s.TimeStamp > latest || s.TimeStamp <= since {
			continue
		}
		for i := range uses { // of pids that are on no list nothing is known
			if u := &uses[i]; u.PID == s.Pid {
				u.SM += percent(s.SmUtil)
				u.MemoryController += percent(s.MemUtil)
				u.Encoder += percent(s.EncUtil)
				u.Decoder += percent(s.DecUtil)
				p.counts[i]++
			}
		}
	}
	for i, n := range p.counts {
		if u := &uses[i]; n > 0 {
			u.SM, u.MemoryController, u.Encoder, u.Decoder = u.SM/n, u.MemoryController/n, u.Encoder/n, u.Decoder/n
		}
	}
}

// percent is a share. Garbage was seen (https://github.com/Syllo/nvtop/issues/110).
func percent(v uint32) float64 { return float64(min(v, 100)) / 100 }
