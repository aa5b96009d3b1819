// Package collect schedules the readings of a GPU within a number of calls, and checks the GPU's health.
package collect

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// GPUReader reads a GPU as long as it is listed.
type GPUReader struct {
	ID      device.GPU
	session *lib.Session // of Handle
	plan    *metric.ReadPlan
	history *History
	// MIG is the partitioning by the newest successful listing; never nil, set by the backend.
	MIG atomic.Pointer[MIGState]
	// Responsive is false if the newest call returned no answer. The backend does not wait for such a GPU.
	Responsive atomic.Bool
	// ReportsRecovery is set by a check with a recovery action, repairPending by a check with a repair pending until the next reset.
	ReportsRecovery, repairPending atomic.Bool

	// inUse is set while a read or check is under way, possibly for ever: a lock without waiters.
	inUse atomic.Bool
	// The mutex is held during calls about the GPU, so that at most one thread hangs. Reads, checks and listings wait on separate
	// goroutines.
	sync.Mutex

	// The fields below belong to the owner of inUse.

	readTarget                          // the GPU itself
	fastFields, slowFields, checkFields fieldReader
	slowReadAt                          time.Time
	links                               [metric.ScopeC2CLink + 1]uint32 // number of links of each kind, up or not
	collection                          collection
	processCalls                        int       // reserved or left over by the newest collection, for the processes
	seenReasons                         uint64    // for slower clocks: supported, regardless of SupportedClockReasons
	lastCollection                      time.Time // begin of the newest collection
	collected                           bool      // there was a collection
	seenResets                          uint64    // resets of history before the newest values
	hadFault                            bool      // in the newest check
	gpm                                 gpmState
	processes                           processBuffers
	instances                           []*instance // by groupedState
	groupedState                        *MIGState
}

// readTarget is the subject of calls: a GPU or a GPU instance.
type readTarget struct {
	Handle     nvml.Device // valid until the next Init
	kind       metric.Target
	latest     metric.Values
	callStates []callState // by metric.Calls
	sampler    gpmSampler
}

// callState is the newest try of a call.
type callState struct {
	calledAt time.Time
	denials  Denials
}

func newReadTarget(handle nvml.Device, kind metric.Target) readTarget {
	return readTarget{Handle: handle, kind: kind, callStates: make([]callState, len(metric.Calls))}
}

// NewGPUReader returns a reader before Initialize.
func NewGPUReader(id device.GPU, handle nvml.Device, session *lib.Session, plan *metric.ReadPlan, history *History) *GPUReader {
	g := &GPUReader{
		ID: id, session: session, plan: plan, history: history, readTarget: newReadTarget(handle, metric.TargetGPU),
		processCalls: len(lib.ProcessListSymbols) + 1,
	}
	g.Responsive.Store(true)
	g.MIG.Store(&MIGState{})
	return g
}

// tryAcquire begins a read or check, and returns false during another read or check.
func (g *GPUReader) tryAcquire() bool {
	if !g.inUse.CompareAndSwap(false, true) {
		return false
	}
	g.Lock()
	return true
}

func (g *GPUReader) release() {
	g.Unlock()
	g.inUse.Store(false)
}

// ping reads the UUID, supported by every driver. A GPU with an invalid handle is lost.
func (g *GPUReader) ping() error {
	const symbol = "nvmlDeviceGetUUID"
	switch _, ret := g.Handle.GetUUID(); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_INVALID_ARGUMENT:
		return fmt.Errorf("%w: %s: %w", device.ErrLost, symbol, lib.Error(ret))
	default:
		return callError(symbol, ret)
	}
}

// detectReset compares the energy counter with the previous value, in reads and checks: resets show without checks too.
func (g *GPUReader) detectReset(f *fieldReader, at int) {
	if v, ok := f.value(at); ok {
		g.history.recordEnergy(uint64(v))
	}
}
