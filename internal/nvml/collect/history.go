package collect

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// History is the state of a GPU beyond a listing and an Init.
type History struct {
	resets            atomic.Uint64
	energyMillijoules atomic.Uint64 // newest value of the counter

	mu sync.Mutex
	// counters of monotonic rows, by row; guarded by mu.
	counters map[int]*monotonicCounter
	// faults by check; guarded by mu.
	faults map[int]*device.Fault
	// notJoinedSince is the time of the first check before joining the fabric;
	// guarded by mu.
	notJoinedSince time.Time
	node           *Histories
}

// Histories keeps the histories of all GPUs of the process.
type Histories struct {
	mu    sync.Mutex
	byGPU map[device.GPU]*History // guarded by mu
	// links of the GPUs with a known state, by the newest check with
	// CheckFabricManager; guarded by mu.
	links map[device.GPU]linkState
}

// unknownLinks replaces an unknown number of active NVLinks.
const unknownLinks = -1

// linkState is the state of a GPU's NVLinks.
type linkState struct {
	active        bool      // at least one link is
	inactiveSince time.Time // the first check without an active link
	resets        uint64    // of the GPU, at that check
}

// Of returns the history of a GPU, beginning with the first call.
func (h *Histories) Of(id device.GPU) *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byGPU == nil {
		h.byGPU, h.links = map[device.GPU]*History{}, map[device.GPU]linkState{}
	}
	if h.byGPU[id] == nil {
		h.byGPU[id] = &History{counters: map[int]*monotonicCounter{}, faults: map[int]*device.Fault{}, node: h}
	}
	return h.byGPU[id]
}

// recordLinks records the number of a GPU's active NVLinks, or unknownLinks. It
// returns the time without an active link since the first check or the newest
// reset; 0 if any GPU of the node has one, or no other GPU lacks one.
func (h *History) recordLinks(id device.GPU, active float64, now time.Time) (inactive time.Duration) {
	node, resets := h.node, h.resets.Load()
	node.mu.Lock()
	defer node.mu.Unlock()
	before, known := node.links[id]
	delete(node.links, id)
	if active == unknownLinks {
		return 0
	}
	if !known || before.active || before.resets != resets {
		before = linkState{inactiveSince: now, resets: resets}
	}
	before.active = active > 0
	node.links[id] = before
	for _, other := range node.links {
		if other.active {
			return 0
		}
	}
	if len(node.links) < 2 {
		return 0
	}
	return now.Sub(before.inactiveSince)
}

// KeepLinks forgets the NVLinks of GPUs that are not listed.
func (h *Histories) KeepLinks(listed func(device.GPU) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.links, func(id device.GPU, _ linkState) bool { return !listed(id) })
}

// AddReset counts a reset of every GPU.
func (h *Histories) AddReset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, history := range h.byGPU {
		history.resets.Add(1)
	}
}

// recordEnergy counts a reset if the energy counter went down.
func (h *History) recordEnergy(millijoules uint64) {
	if before := h.energyMillijoules.Swap(millijoules); millijoules < before {
		h.resets.Add(1)
	}
}

// monotonicCounter sums counters with wraps, restarts and gaps, such as
// counters of single links. With a lifetime as long as the process's, a new
// listing does not look like a reset.
type monotonicCounter struct {
	sourceIndex int // source of the row
	counters    []counterState
	resets      uint64 // of the GPU, at the newest reading
	updatedAt   time.Time
	started     bool
	total       float64
}

// counterState is a source's counter, in base units.
type counterState struct {
	last float64
	seen bool
}

// begin starts a reading of n counters. After the first reading, a new counter
// counts from the present value on. After a reset all counters, present or not,
// begin again at 0.
func (mc *monotonicCounter) begin(source, n int, resets uint64) {
	if mc.sourceIndex != source || len(mc.counters) != n {
		mc.sourceIndex, mc.counters = source, make([]counterState, n)
	}
	for i := range mc.counters {
		if mc.resets != resets {
			mc.counters[i].last = 0
		}
	}
}

// add adds the increase of the i-th counter. A decrease is a wrap if plausible
// within maxRise; otherwise the counter was set to 0, as an administrator can
// do with errors of links.
func (mc *monotonicCounter) add(i int, value, wraps, maxRise float64) {
	counter := &mc.counters[i]
	rose := value - counter.last
	switch {
	case !counter.seen && mc.started:
		rose = 0
	case rose < 0 && rose+wraps >= 0 && rose+wraps <= maxRise:
		rose += wraps
	case rose < 0:
		rose = value
	}
	mc.total += rose
	counter.last, counter.seen = value, true
}
