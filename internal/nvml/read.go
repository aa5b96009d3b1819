package nvml

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
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
	// pending tells whether the newest Check was told of a repair that the next reset makes.
	pending atomic.Bool

	// calling is true while a Read or a Check is under way, which may be for ever. It
	// is a lock that nobody waits for.
	calling atomic.Bool
	// turn is held by whoever calls the driver about the GPU: never more than one thread
	// is to hang in it. Reads, checks and listings wait for it, on goroutines of their
	// own.
	turn sync.Mutex
	// driver is the library that handle is of, and catalogue what is read of the GPU.
	driver    *driver
	catalogue *catalogue

	// All below belong to the Read, Check or Uses that has set calling.
	fast, slow, check fields
	reading           reading
	turns             [len(calls)]turn
	links             [ofC2CLink + 1]uint32 // of each kind that it has, up or not
	slowAsked         time.Time
	spared            [slotCount]bool // by fields
	flight            flight
	wantedAt          time.Time // when the newest collection began
	flew              bool      // there was one
	ailing            bool      // the newest Check found something
	resets            uint64    // those of history that what was read has come after
	gpm               gpm
	people            people
	// throttles are the reasons that the GPU can give for slower clocks.
	throttles uint64
	// instances are those of grouped, and unused are samples of some that are gone.
	instances []*instance
	grouped   *parts
	unused    []sample
	// freed says that the GPU is no longer listed: a call that began before has no more
	// samples made for it. It goes with turn.
	freed bool
}

// history is what outlives a listing and an Init.
type history struct {
	resets atomic.Uint64
	// energy is the newest reading of the counter, in mJ.
	energy atomic.Uint64

	mu sync.Mutex
	// All below are guarded by mu.
	meters map[int]*meter // those of the rows that have one, by their number
	// found are what checks find wrong, by their names, and apartSince is since when the
	// GPU is seen not to have joined the fabric that it belongs to.
	found      map[string]*device.Fault
	apartSince time.Time
}

// energyField counts mJ since the driver was loaded or the GPU was reset. That it
// went down is the cheapest proof of either.
const energyField = nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION

// newGPU is a GPU that is still to be asked what there is to ask it for: see meet.
func newGPU(id device.GPU, handle nvml.Device, d *driver) *gpu {
	g := &gpu{id: id, handle: handle, driver: d, catalogue: d.catalogue}
	g.answering.Store(true)
	g.parts.Store(&parts{})
	g.throttles = supportedThrottles(handle, d.has)
	return g
}

// meet asks for what is static, and for all that is slow. What the GPU does not have drops
// out with the first answer. It goes with turn.
func (g *gpu) meet() {
	d := g.driver
	g.check = newFields(d.has, checked, func(key) bool { return true })
	g.fast = newFields(d.has, d.catalogue.fast, g.exists)
	g.slow = newFields(d.has, d.catalogue.slow, g.exists)
	g.seed(time.Now())
}

// exists reports whether the GPU could have a field, by the links that it is known to have.
func (g *gpu) exists(k key) bool {
	switch {
	case g.driver.renumbered && isClockReason(k.id):
		return false
	case k.scope == ofGPU:
		return true
	}
	return k.n < g.links[k.scope]
}

// linkCounts are the slow fields that count the links of each kind.
var linkCounts = [ofC2CLink + 1]uint32{ofLink: nvml.FI_DEV_NVLINK_LINK_COUNT, ofC2CLink: nvml.FI_DEV_C2C_LINK_COUNT}

// findLinks has the fields of links be asked for that the newest counts are the first to
// have, and reports whether there are any.
func (g *gpu) findLinks() (found bool) {
	for _, s := range [...]scope{ofLink, ofC2CLink} {
		n, ok := g.slow.value(g.catalogue.slow.at[key{id: linkCounts[s]}])
		if links := uint32(min(n, mostLinks)); ok && links > g.links[s] {
			g.links[s], found = links, true
		}
	}
	if found {
		g.fast.admit(g.exists)
		g.slow.admit(g.exists)
	}
	return found
}

// isClockReason tells the fields that had other numbers up to driver 580.65
// (docs.nvidia.com/deploy/nvml-api/known-issues.html), which have others there.
func isClockReason(id uint32) bool {
	return id >= nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN && id <= nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
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

// Read asks for the fast fields in one call, and makes one more for each thing that no
// field has, and for some of what is slow. One that fails costs its own rows, unless it
// says that the GPU is lost: then, and when nothing is answered, there is no value of any
// pace.
func (b *Backend) Read(id device.GPU, buf []device.Sample) ([]device.Sample, error) {
	_, g, err := b.gpu(id)
	if err != nil {
		return buf, err
	}
	if !g.enter() {
		return buf, device.ErrStalled
	}
	defer g.leave()
	now := time.Now()
	g.ask(now)
	before := len(buf)
	if g.flight.fresh && !g.flight.stopped {
		buf = g.samples(buf, now)
	}
	g.answering.Store(len(buf) > before)
	if len(buf) == before {
		g.askAll()
		return buf, g.unread()
	}
	return buf, nil
}

// unread returns why a GPU has given nothing. INVALID_ARGUMENT may be about the handle, or
// about ids that the driver is too old for: the UUID, which any driver has, tells which.
func (g *gpu) unread() error {
	if g.flight.failed.ret == nvml.ERROR_INVALID_ARGUMENT {
		if err := g.probe(); err != nil {
			return err
		}
	}
	return g.flight.failed.err()
}

// probe asks the GPU for its UUID, and returns an error where it does not answer. A handle
// that is invalid is that of a GPU that is lost.
func (g *gpu) probe() error {
	const symbol = "nvmlDeviceGetUUID"
	switch _, ret := g.handle.GetUUID(); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_INVALID_ARGUMENT:
		return fmt.Errorf("%w: %s: %w", device.ErrLost, symbol, answer(ret))
	default:
		return failure{symbol, ret}.err()
	}
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
	default:
		return fmt.Errorf("%s: %w", f.symbol, answer(f.ret))
	}
}

// samples appends what was read, in the order of the rows.
func (g *gpu) samples(buf []device.Sample, now time.Time) []device.Sample {
	if g.reading.filled[reasons] { // seen is supported, whatever the mask says
		g.throttles |= uint64(g.reading.values[reasons])
	}
	g.features()
	for i := range g.catalogue.rows {
		if v, ok := g.value(i, now); ok {
			buf = append(buf, device.Sample{Device: g.device.ID, Metric: i, Value: v})
		}
	}
	for _, in := range g.instances {
		buf = g.samplesOf(in, buf)
	}
	return buf
}

// value is what is known of a row; false where nothing is.
func (g *gpu) value(i int, now time.Time) (float64, bool) {
	r := &g.catalogue.rows[i]
	if r.unless != noSlot && g.reading.filled[r.unless] {
		return 0, false
	}
	for n, ref := range g.catalogue.refs[i] {
		if r.metered {
			if !g.fieldsOf(r).lacksAll(ref) {
				return g.metered(i, n, ref, now)
			}
		} else if v, ok := g.sum(r, ref, r.sources[n].unit); ok {
			return r.show(v)
		}
	}
	switch v := g.reading.values[r.slot]; {
	case !g.reading.filled[r.slot]:
		return 0, false
	case r.bit == 0:
		v, ok := r.unit.convert(v)
		if !ok {
			return 0, false
		}
		return r.show(v)
	case uint64(v)&r.bit != 0:
		return 1, true
	default:
		return 0, g.throttles&r.bit != 0
	}
}

// sum is what the newest call gave for a source.
func (g *gpu) sum(r *row, ref ref, u unit) (sum float64, ok bool) {
	f := g.fieldsOf(r)
	for k := range ref.n {
		raw, given := f.signed(ref.at + k)
		if v, sound := u.convert(raw); given && sound {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// show makes a row's value of a sound number.
func (r *row) show(v float64) (float64, bool) {
	switch {
	case !r.is.set():
		return v, true
	case r.is.holds(v):
		return 1, true
	default:
		return 0, true
	}
}

// noteEnergy looks whether the counter went down since it was last seen. Reads and
// checks both do, so that a reset shows also while nobody checks.
func (g *gpu) noteEnergy(f *fields, at int) {
	now, ok := f.value(at)
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
	for i := range calls {
		if c := &calls[i]; has[c.symbol] && c.fills(memoryTotal) && !r.filled[memoryTotal] {
			_ = c.ask(handle, &r) // without it the slot stays empty
		}
	}
	v, ok := inBytes.convert(r.values[memoryTotal])
	if !ok {
		return 0
	}
	return uint64(v)
}
