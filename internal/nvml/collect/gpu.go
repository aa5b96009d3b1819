// Package collect reads a GPU: what, when and within which number of calls; and checks it.
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
	session *lib.Session // the library that Handle belongs to
	plan    *metric.ReadPlan
	history *History
	// mig is the partitioning by the newest successful listing; never nil, set by the backend.
	mig atomic.Pointer[MIGState]
	// responsive is false if the newest call returned no answer. The backend does not wait for such a GPU.
	responsive atomic.Bool
	// reportsRecovery is set by a check that read a recovery action, repairPending by one that found a repair for the next reset.
	reportsRecovery, repairPending atomic.Bool

	// inUse is set while a read or check is under way, possibly for ever. It is a lock without waiters.
	inUse atomic.Bool
	// callMu is held during calls about the GPU, so that at most one thread hangs. Reads, checks and listings wait for it, each on a
	// goroutine of its own.
	callMu sync.Mutex

	// The fields below belong to the call that has set inUse.

	readTarget                          // the GPU itself
	fastFields, slowFields, checkFields fieldReader
	slowReadAt                          time.Time
	links                               [metric.ScopeC2CLink + 1]uint32 // number of links of each kind, up or not
	collection                          collection
	rotaPosition                        int
	lacksPart                           []bool    // by metric.Calls
	lastCollection                      time.Time // begin of the newest collection
	collected                           bool      // there was a collection
	seenResets                          uint64    // resets of history before the newest values
	hadFault                            bool      // in the newest check
	gpm                                 gpmState
	processes                           processBuffers
	supportedReasons                    uint64 // for slower clocks
	// instances follow groupedState, and unusedSamples belonged to instances that are gone.
	instances     []*instance
	groupedState  *MIGState
	unusedSamples []gpmSample
	// samplesFreed is set when the GPU is no longer listed: a call that began before allocates no more samples. Guarded by callMu.
	samplesFreed bool
}

// readTarget is what calls are made about: a GPU or a GPU instance.
type readTarget struct {
	Handle     nvml.Device // valid until the next Init
	kind       metric.Target
	latest     metric.Values
	callStates []callState            // by metric.Calls
	spared     [metric.MaxValues]bool // values that fields provide
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

// NewGPUReader returns a reader, which needs Initialize.
func NewGPUReader(id device.GPU, handle nvml.Device, session *lib.Session, plan *metric.ReadPlan, history *History) *GPUReader {
	g := &GPUReader{ID: id, session: session, plan: plan, history: history, readTarget: newReadTarget(handle, metric.TargetGPU)}
	g.responsive.Store(true)
	g.mig.Store(&MIGState{})
	g.supportedReasons = supportedClockReasons(handle, session.Symbols)
	return g
}

// supportedClockReasons returns the reasons that a GPU can give; all if it cannot tell.
func supportedClockReasons(handle nvml.Device, has lib.Symbols) uint64 {
	mask, ret := ^uint64(0), nvml.ERROR_FUNCTION_NOT_FOUND
	if has["nvmlDeviceGetSupportedClocksEventReasons"] {
		mask, ret = handle.GetSupportedClocksEventReasons()
	} else if has["nvmlDeviceGetSupportedClocksThrottleReasons"] {
		mask, ret = handle.GetSupportedClocksThrottleReasons()
	}
	if ret != nvml.SUCCESS {
		return ^uint64(0)
	}
	return mask
}

// Lock waits until no other call about the GPU is under way.
func (g *GPUReader) Lock() { g.callMu.Lock() }

// TryLock locks the GPU if no other call about it is under way.
func (g *GPUReader) TryLock() bool { return g.callMu.TryLock() }

// Unlock ends what Lock or TryLock began.
func (g *GPUReader) Unlock() { g.callMu.Unlock() }

// Responsive reports whether the newest call about the GPU returned an answer.
func (g *GPUReader) Responsive() bool { return g.responsive.Load() }

// SetResponsive records whether a call about the GPU returned an answer.
func (g *GPUReader) SetResponsive(responsive bool) { g.responsive.Store(responsive) }

// CanReportRecovery reports whether the newest check read a recovery action.
func (g *GPUReader) CanReportRecovery() bool { return g.reportsRecovery.Load() }

// MIGState returns the partitioning of the GPU.
func (g *GPUReader) MIGState() *MIGState { return g.mig.Load() }

// SetMIGState takes the partitioning that a listing found.
func (g *GPUReader) SetMIGState(s *MIGState) { g.mig.Store(s) }

// tryAcquire begins a read or check, and returns false if another one is under way.
func (g *GPUReader) tryAcquire() bool {
	if !g.inUse.CompareAndSwap(false, true) {
		return false
	}
	g.callMu.Lock()
	return true
}

func (g *GPUReader) release() {
	g.callMu.Unlock()
	g.inUse.Store(false)
}

// ping reads the UUID, which every driver has. A GPU whose handle is invalid is lost.
func (g *GPUReader) ping() error {
	const symbol = "nvmlDeviceGetUUID"
	switch _, ret := g.Handle.GetUUID(); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_INVALID_ARGUMENT:
		return fmt.Errorf("%w: %s: %w", device.ErrLost, symbol, lib.Error(ret))
	default:
		return callFailure{symbol, ret}.err()
	}
}

// detectReset compares the energy counter with its last value. Reads and checks both do, so that a reset shows without checks too.
func (g *GPUReader) detectReset(f *fieldReader, at int) {
	if v, ok := f.value(at); ok {
		g.history.recordEnergy(uint64(v))
	}
}
