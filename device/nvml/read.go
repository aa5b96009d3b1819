package nvml

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
)

// gpu is a GPU as long as it is listed.
type gpu struct {
	id      device.GPU
	handle  nvml.Device   // valid until the next Init
	device  device.Device // its Index and Nodes are those of no listing: see at
	history *history
	// parts is how the GPU is partitioned, as the newest listing that could tell found;
	// never nil, and written by Devices.
	parts atomic.Pointer[parts]
	// answering tells whether the newest Read or Check got an answer. Wait does not
	// turn to a GPU that gives none.
	answering atomic.Bool

	// saysRecovery tells whether the newest Check was given a recovery action.
	saysRecovery atomic.Bool

	// calling is true while a Read or a Check is under way, which may be for ever. It
	// is a lock that nobody waits for.
	calling atomic.Bool
	// turn is held by whoever calls the driver about the GPU: never more than one thread
	// is to hang in it. Reads, checks and listings wait for it, on goroutines of their
	// own.
	turn sync.Mutex
	// All below belong to the Read or Check that has set calling.
	read, check fields
	reading     reading
	// throttles are the reasons that the GPU can give for slower clocks.
	throttles uint64
}

// history is what outlives a listing and an Init.
type history struct {
	resets atomic.Uint64
	// energy is the newest reading of the counter, in mJ.
	energy atomic.Uint64
}

// energyField counts mJ since the driver was loaded or the GPU was reset. That it
// went down is the cheapest proof of either.
const energyField = nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION

// newGPU asks for everything that rows and checks want. What the GPU does not have
// drops out with the first answer.
func newGPU(id device.GPU, handle nvml.Device, has symbols) *gpu {
	var read, check []uint32
	for _, r := range rows {
		read = append(read, r.field)
	}
	for _, c := range checks {
		check = append(check, c.field)
	}
	g := &gpu{id: id, handle: handle, read: newFields(has, read...), check: newFields(has, check...)}
	g.answering.Store(true)
	g.parts.Store(&parts{})
	g.throttles = supportedThrottles(handle, has)
	return g
}

// supportedThrottles are the reasons that a GPU can give; all where it cannot say.
func supportedThrottles(handle nvml.Device, has symbols) uint64 {
	if has["nvmlDeviceGetSupportedClocksEventReasons"] {
		if mask, ret := handle.GetSupportedClocksEventReasons(); ret == nvml.SUCCESS {
			return mask
		}
	} else if has["nvmlDeviceGetSupportedClocksThrottleReasons"] {
		if mask, ret := handle.GetSupportedClocksThrottleReasons(); ret == nvml.SUCCESS {
			return mask
		}
	}
	return ^uint64(0)
}

// Read asks for all fields in one call, and makes one more for each thing that no
// field has. One that fails costs its own rows, unless it says that the GPU is lost.
func (b *Backend) Read(id device.GPU, buf []device.Sample) ([]device.Sample, error) {
	t, g, err := b.gpu(id)
	if err != nil {
		return buf, err
	}
	if !g.enter() {
		return buf, device.ErrStalled
	}
	defer g.leave()
	failed := g.ask(t.has)
	before := len(buf)
	if !isFinal(failed.ret) {
		buf = g.samples(buf)
	}
	g.answering.Store(len(buf) > before)
	if len(buf) == before {
		g.askAll()
		return buf, failed.err()
	}
	return buf, nil
}

// enter begins a Read or a Check, and tells whether another one is under way.
func (g *gpu) enter() bool {
	if !g.calling.CompareAndSwap(false, true) {
		return false
	}
	g.turn.Lock()
	return true
}

func (g *gpu) leave() {
	g.turn.Unlock()
	g.calling.Store(false)
}

// askAll forgets what the GPU was said not to have: it is in trouble, and what it
// says meanwhile is no word to go by.
func (g *gpu) askAll() {
	g.read.askAll()
	g.check.askAll()
}

// failure is the first call of several that failed; the zero failure is none.
type failure struct {
	symbol string
	ret    nvml.Return
}

// err is for a GPU that has given nothing.
func (f failure) err() error {
	switch f.ret {
	case nvml.SUCCESS:
		return errors.New("the GPU has nothing that can be read")
	case nvml.ERROR_INVALID_ARGUMENT: // the handle: the other arguments are always the same
		return fmt.Errorf("%w: %s: %w", device.ErrLost, f.symbol, answer(f.ret))
	default:
		return fmt.Errorf("%s: %w", f.symbol, answer(f.ret))
	}
}

// ask fills the reading. It stops at a call that says that no other will succeed.
func (g *gpu) ask(has symbols) (failed failure) {
	g.reading = reading{}
	if ret := g.read.ask(g.handle); ret != nvml.SUCCESS {
		failed = failure{fieldValues, ret}
		if isFinal(ret) {
			return failed
		}
	}
	g.noteEnergy(&g.read)
	// A field that failed this once is made up for by its call, where it has one.
	for _, r := range rows {
		_, known := g.read.value(r.field)
		g.reading.wanted[r.slot] = g.reading.wanted[r.slot] || !known
	}
	for i := range calls {
		c := &calls[i]
		if !has[c.symbol] || !g.reading.wants(c) {
			continue
		}
		ret := c.ask(g.handle, &g.reading)
		if isFinal(ret) { // what was read before it may be as old as the trouble
			return failure{c.symbol, ret}
		}
		if ret != nvml.SUCCESS && failed == (failure{}) {
			failed = failure{c.symbol, ret}
		}
	}
	return failed
}

// samples appends what was read, in the order of the rows.
func (g *gpu) samples(buf []device.Sample) []device.Sample {
	g.throttles |= g.reading.values[reasons] // seen is supported, whatever the mask says
	for i := range rows {
		if v, ok := g.value(&rows[i]); ok {
			buf = append(buf, device.Sample{Device: g.device.ID, Metric: i, Value: v})
		}
	}
	return buf
}

// value is what the newest calls gave for a row; false where they gave none.
func (g *gpu) value(r *row) (float64, bool) {
	if v, ok := g.read.value(r.field); ok {
		return r.unit.convert(v)
	}
	raw := g.reading.values[r.slot]
	switch {
	case !g.reading.filled[r.slot]:
		return 0, false
	case r.bit == 0:
		return r.unit.convert(float64(raw))
	case raw&r.bit != 0:
		return 1, true
	default:
		return 0, g.throttles&r.bit != 0
	}
}

// noteEnergy looks whether the counter went down since it was last seen. Reads and
// checks both do, so that a reset shows also while nobody checks.
func (g *gpu) noteEnergy(f *fields) {
	now, ok := f.value(energyField)
	if !ok {
		return
	}
	if before := g.history.energy.Swap(uint64(now)); uint64(now) < before {
		g.history.resets.Add(1)
	}
}

// totalMemory is the memory of a GPU or of a slice in bytes; 0 when unknown.
func totalMemory(handle nvml.Device, has symbols) uint64 {
	var r reading
	r.wanted[memoryTotal] = true
	for i := range calls {
		if c := &calls[i]; has[c.symbol] && r.wants(c) {
			_ = c.ask(handle, &r) // without it the slot stays empty
		}
	}
	if _, ok := inBytes.convert(float64(r.values[memoryTotal])); !ok {
		return 0
	}
	return r.values[memoryTotal]
}
