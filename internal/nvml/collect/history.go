package collect

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// gpuHistory is what outlives a listing and an Init.
type gpuHistory struct {
	resets atomic.Uint64
	// energyMillijoules is the newest reading of the counter, in mJ.
	energyMillijoules atomic.Uint64

	mu sync.Mutex
	// All below are guarded by mu.
	counters map[int]*monotonicCounter // those of the rows that have one, by their number
	// faults are what checks find wrong, by their names, and apartSince is since when the
	// GPU is seen not to have joined the fabric that it belongs to.
	faults         map[string]*device.Fault
	notJoinedSince time.Time
}

// Histories keeps the histories of all GPUs of the process.
type Histories struct {
	mu    sync.Mutex
	byGPU map[device.GPU]*gpuHistory // guarded by mu
}

// Of returns the history of a GPU, which begins with the first call.
func (h *Histories) Of(id device.GPU) *gpuHistory {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byGPU == nil {
		h.byGPU = map[device.GPU]*gpuHistory{}
	}
	if h.byGPU[id] == nil {
		h.byGPU[id] = &gpuHistory{counters: map[int]*monotonicCounter{}, faults: map[string]*device.Fault{}}
	}
	return h.byGPU[id]
}

// AddReset counts a reset of every GPU.
func (h *Histories) AddReset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, history := range h.byGPU {
		history.resets.Add(1)
	}
}
