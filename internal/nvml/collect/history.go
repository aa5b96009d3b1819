package collect

import (
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
	// untrainedSince is the time of the first check without an active link;
	// guarded by mu.
	untrainedSince time.Time
	node           *Histories
}

// Histories keeps the histories of all GPUs of the process.
type Histories struct {
	mu    sync.Mutex
	byGPU map[device.GPU]*History // guarded by mu
	// trained has the unpartitioned GPUs with an active NVLink, by the newest
	// check with NeedsFabricManager; guarded by mu.
	trained map[device.GPU]bool
}

// Of returns the history of a GPU, beginning with the first call.
func (h *Histories) Of(id device.GPU) *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byGPU == nil {
		h.byGPU = map[device.GPU]*History{}
	}
	if h.byGPU[id] == nil {
		h.byGPU[id] = &History{counters: map[int]*monotonicCounter{}, faults: map[int]*device.Fault{}, node: h}
	}
	return h.byGPU[id]
}

// recordLinks records whether a GPU has an active NVLink, and reports whether no
// GPU has one.
func (h *Histories) recordLinks(id device.GPU, active bool) (none bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trained == nil {
		h.trained = map[device.GPU]bool{}
	}
	delete(h.trained, id)
	if active {
		h.trained[id] = true
	}
	return len(h.trained) == 0
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
