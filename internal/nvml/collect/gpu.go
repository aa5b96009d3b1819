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
	// mig is the partitioning by the newest successful listing; never nil, set by the backend.
	mig atomic.Pointer[MIGState]
	// responsive is false if the newest call returned no answer. The backend does not wait for such a GPU.
	responsive atomic.Bool
	// reportsRecovery is set by a check with a recovery action, repairPending by a check with a repair pending until the next reset.
	reportsRecovery, repairPending atomic.Bool

	// inUse is set while a read or check is under way, possibly for ever: a lock without waiters.
	inUse atomic.Bool
	// callMu is held during calls about the GPU, so that at most one thread hangs. Reads, checks and listings wait on separate
	// goroutines.
	callMu sync.Mutex

	// The fields below belong to the owner of inUse.

	readTarget                          // the GPU itself
	fastFields, slowFields, checkFields fieldReader
	slowReadAt                          time.Time
	links                               [metric.ScopeC2CLink + 1]uint32 // number of links of each kind, up or not
	collection                          collection
	rotaPosition                        int
	lacksPart                           []bool    // by metric.Calls
	partsKnown                          bool      // the numbers of parts were read
	lastCollection                      time.Time // begin of the newest collection
	collected                           bool      // there was a collection
	seenResets                          uint64    // resets of history before the newest values
	hadFault                            bool      // in the newest check
	gpm                                 gpmState
	processes                           processBuffers
	supportedReasons                    uint64 // for slower clocks
	// instances follow groupedState, and unusedSamples belonged to lost instances.
	instances     []*instance
	groupedState  *MIGState
	unusedSamples []gpmSample
	// samplesFreed is set when the GPU is no longer listed: calls under way allocate no further samples. Guarded by callMu.
	samplesFreed bool
}

// readTarget is the subject of calls: a GPU or a GPU instance.
type readTarget struct {
	Handle     nvml.Device // valid until the next Init
	kind       metric.Target
	latest     metric.Values
	callStates []callState            // by metric.Calls
	spared     [metric.MaxValues]bool // values provided by fields
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
	g := &GPUReader{ID: id, session: session, plan: plan, history: history, readTarget: newReadTarget(handle, metric.TargetGPU)}
	g.responsive.Store(true)
	g.mig.Store(&MIGState{})
	g.supportedReasons = supportedClockReasons(handle, session.Symbols)
	return g
}

// supportedClockReasons returns the reasons supported by a GPU; all if unknown.
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

// Lock waits for the end of calls about the GPU.
func (g *GPUReader) Lock() { g.callMu.Lock() }

// TryLock locks the GPU unless a call is under way.
func (g *GPUReader) TryLock() bool { return g.callMu.TryLock() }

// Unlock unlocks the GPU.
func (g *GPUReader) Unlock() { g.callMu.Unlock() }

// Responsive reports whether the newest call about the GPU returned an answer.
func (g *GPUReader) Responsive() bool { return g.responsive.Load() }

// SetResponsive records whether a call about the GPU returned an answer.
func (g *GPUReader) SetResponsive(responsive bool) { g.responsive.Store(responsive) }

// CanReportRecovery reports whether the newest check read a recovery action.
func (g *GPUReader) CanReportRecovery() bool { return g.reportsRecovery.Load() }

// MIGState returns the partitioning of the GPU.
func (g *GPUReader) MIGState() *MIGState { return g.mig.Load() }

// SetMIGState takes the partitioning of a listing.
func (g *GPUReader) SetMIGState(s *MIGState) { g.mig.Store(s) }

// tryAcquire begins a read or check, and returns false during another read or check.
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

// ping reads the UUID, supported by every driver. A GPU with an invalid handle is lost.
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

// detectReset compares the energy counter with the previous value, in reads and checks: resets show without checks too.
func (g *GPUReader) detectReset(f *fieldReader, at int) {
	if v, ok := f.value(at); ok {
		g.history.recordEnergy(uint64(v))
	}
}
