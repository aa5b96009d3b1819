// Package collect reads a GPU: what, when and within which number of calls; and checks it.
package collect

import (
	"errors"
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
	Handle  nvml.Device // valid until the next Init
	history *gpuHistory
	// mig is how the GPU is partitioned, by the newest listing that could tell; never nil.
	mig atomic.Pointer[MIGState]
	// responsive tells whether the newest Read or Check got an answer. Wait does not
	// turn to a GPU that gives none.
	responsive atomic.Bool

	// reportsRecovery tells whether the newest Check was given a recovery action.
	reportsRecovery atomic.Bool
	// repairPending tells whether the newest Check was told of a repair that the next reset makes.
	repairPending atomic.Bool

	// inUse is true while a Read or a Check is under way, which may be for ever. It
	// is a lock that nobody waits for.
	inUse atomic.Bool
	// callMu is held by whoever calls the driver about the GPU: never more than one thread
	// is to hang in it. Reads, checks and listings wait for it, on goroutines of their
	// own.
	callMu sync.Mutex
	// session is the library that handle is of, and plan what is read of the GPU.
	session *lib.Session
	plan    *metric.ReadPlan

	// All below belong to the Read, Check or Uses that has set calling.
	fastFields, slowFields, checkFields fieldReader
	latest                              metric.Values
	callStates                          []callState
	links                               [metric.ScopeC2CLink + 1]uint32 // of each kind that it has, up or not
	slowReadAt                          time.Time
	spared                              [metric.MaxValues]bool // by fields
	collection                          collection
	lastCollection                      time.Time // when the newest collection began
	collected                           bool      // there was one
	hadFault                            bool      // the newest Check found something
	seenResets                          uint64    // those of history that what was read has come after
	gpm                                 gpmState
	processes                           processBuffers
	// supportedReasons are the reasons that the GPU can give for slower clocks.
	supportedReasons uint64
	// instances are those of grouped, and unused are samples of some that are gone.
	instances     []*instance
	groupedState  *MIGState
	unusedSamples []gpmSample
	// samplesFreed says that the GPU is no longer listed: a call that began before has no more
	// samples made for it. It goes with turn.
	samplesFreed bool
}

// NewGPUReader returns a reader of a GPU, which is still to be initialized.
func NewGPUReader(id device.GPU, handle nvml.Device, session *lib.Session, plan *metric.ReadPlan, history *gpuHistory) *GPUReader {
	g := &GPUReader{ID: id, Handle: handle, session: session, plan: plan, history: history, callStates: make([]callState, len(metric.Calls))}
	g.responsive.Store(true)
	g.mig.Store(&MIGState{})
	g.supportedReasons = supportedClockReasons(handle, session.Symbols)
	return g
}

// Initialize asks for what is static, and for all that is slow. What the GPU does not have drops
// out with the first answer. It goes with turn.
func (g *GPUReader) Initialize() {
	sess := g.session
	g.checkFields = newFieldReader(sess.Symbols, checkBatch, func(metric.FieldKey) bool { return true })
	g.fastFields = newFieldReader(sess.Symbols, g.plan.Fast, g.mayHaveField)
	g.slowFields = newFieldReader(sess.Symbols, g.plan.Slow, g.mayHaveField)
	g.readInitial(time.Now())
}

// mayHaveField reports whether the GPU could have a field, by the links that it is known to have.
func (g *GPUReader) mayHaveField(k metric.FieldKey) bool {
	switch {
	case isClockReason(k.ID) && !g.session.AtLeast58082():
		return false
	case k.Scope == metric.ScopeGPU:
		return true
	}
	return k.N < g.links[k.Scope]
}

// linkCounts are the slow fields that count the links of each kind.
var linkCounts = [metric.ScopeC2CLink + 1]uint32{metric.ScopeNVLink: nvml.FI_DEV_NVLINK_LINK_COUNT, metric.ScopeC2CLink: nvml.FI_DEV_C2C_LINK_COUNT}

// findLinks has the fields of links be asked for that the newest counts are the first to
// have, and reports whether there are any.
func (g *GPUReader) findLinks() (found bool) {
	for _, s := range [...]metric.FieldScope{metric.ScopeNVLink, metric.ScopeC2CLink} {
		n, ok := g.slowFields.value(g.plan.Slow.Index[metric.FieldKey{ID: linkCounts[s]}])
		if links := uint32(min(n, metric.MaxNVLinks)); ok && links > g.links[s] {
			g.links[s], found = links, true
		}
	}
	if found {
		g.fastFields.enable(g.mayHaveField)
		g.slowFields.enable(g.mayHaveField)
	}
	return found
}

// isClockReason tells the fields that had other numbers up to driver 580.65
// (docs.nvidia.com/deploy/nvml-api/known-issues.html), which have others there.
func isClockReason(id uint32) bool {
	return id >= nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN && id <= nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}

// supportedClockReasons are the reasons that a GPU can give; all where it cannot say.
func supportedClockReasons(handle nvml.Device, has lib.Symbols) uint64 {
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
func (g *GPUReader) Read(buf []device.Sample) ([]device.Sample, error) {
	if !g.tryAcquire() {
		return buf, device.ErrStalled
	}
	defer g.release()
	now := time.Now()
	g.collect(now)
	before := len(buf)
	if g.collection.answered && !g.collection.aborted {
		buf = g.appendSamples(buf, now)
	}
	g.responsive.Store(len(buf) > before)
	if len(buf) == before {
		g.forgetAbsences()
		return buf, g.readError()
	}
	return buf, nil
}

// readError returns why a GPU has given nothing. INVALID_ARGUMENT may be about the handle, or
// about ids that the driver is too old for: the UUID, which any driver has, tells which.
func (g *GPUReader) readError() error {
	if g.collection.failure.ret == nvml.ERROR_INVALID_ARGUMENT {
		if err := g.ping(); err != nil {
			return err
		}
	}
	return g.collection.failure.err()
}

// ping asks the GPU for its UUID, and returns an error where it does not answer. A handle
// that is invalid is that of a GPU that is lost.
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

// MIGState returns how the GPU is partitioned.
func (g *GPUReader) MIGState() *MIGState { return g.mig.Load() }

// SetMIGState takes the result of a new listing.
func (g *GPUReader) SetMIGState(s *MIGState) { g.mig.Store(s) }

// tryAcquire begins a Read or a Check, and tells whether another one is under way.
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

// callFailure is the first call of several that failed; the zero failure is none.
type callFailure struct {
	symbol string
	ret    nvml.Return
}

// err is for a GPU that has given nothing.
func (f callFailure) err() error {
	switch f.ret {
	case nvml.SUCCESS:
		return errors.New("the GPU has nothing that can be read")
	default:
		return fmt.Errorf("%s: %w", f.symbol, lib.Error(f.ret))
	}
}

// appendSamples appends what was read, in the order of the rows.
func (g *GPUReader) appendSamples(buf []device.Sample, now time.Time) []device.Sample {
	if g.latest.Present[metric.ClockEventReasons] { // seen is supported, whatever the mask says
		g.supportedReasons |= uint64(g.latest.Values[metric.ClockEventReasons])
	}
	g.fillFeatures()
	for i := range g.plan.Rows {
		if v, ok := g.rowValue(i, now); ok {
			buf = append(buf, device.Sample{Device: device.ID(g.ID), Metric: i, Value: v})
		}
	}
	for _, in := range g.instances {
		buf = g.instanceSamples(in, buf)
	}
	return buf
}

// rowValue is what is known of a row; false where nothing is.
func (g *GPUReader) rowValue(i int, now time.Time) (float64, bool) {
	r := &g.plan.Rows[i]
	if r.UnlessValue != metric.NoValue && g.latest.Present[r.UnlessValue] {
		return 0, false
	}
	for n, ref := range g.plan.Ranges[i] {
		if r.Monotonic {
			if !g.fieldsOf(r).allDropped(ref) {
				return g.counterValue(i, n, ref, now)
			}
		} else if v, ok := g.sumSource(r, ref, r.Sources[n].Conversion); ok {
			return r.ToValue(v), true
		}
	}
	switch v := g.latest.Values[r.ValueID]; {
	case !g.latest.Present[r.ValueID]:
		return 0, false
	case r.Bit == 0:
		v, ok := r.Conversion.Convert(v)
		if !ok {
			return 0, false
		}
		return r.ToValue(v), true
	case uint64(v)&r.Bit != 0:
		return 1, true
	default:
		return 0, g.supportedReasons&r.Bit != 0
	}
}

// sumSource is what the newest call gave for a source.
func (g *GPUReader) sumSource(r *metric.Row, ref metric.FieldRange, u metric.Conversion) (sum float64, ok bool) {
	f := g.fieldsOf(r)
	for k := range ref.N {
		raw, known := f.rawValue(ref.Start + k)
		if v, valid := u.Convert(raw); known && valid {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// detectReset looks whether the counter went down since it was last seen. Reads and
// checks both do, so that a reset shows also while nobody checks.
func (g *GPUReader) detectReset(f *fieldReader, at int) {
	now, ok := f.value(at)
	if !ok {
		return
	}
	if before := g.history.energyMillijoules.Swap(uint64(now)); uint64(now) < before {
		g.history.resets.Add(1)
	}
}

// fieldsOf are the fields of a row's pace.
func (g *GPUReader) fieldsOf(r *metric.Row) *fieldReader {
	if r.Slow {
		return &g.slowFields
	}
	return &g.fastFields
}
