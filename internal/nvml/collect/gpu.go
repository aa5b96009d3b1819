// Package collect reads the values and processes of a GPU, and checks its
// health.
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
	// MIG is the partitioning by the newest successful listing; never nil, set
	// by the backend.
	MIG atomic.Pointer[MIGState]
	// Responsive is false if the newest call returned no answer. The backend
	// does not wait for such a GPU.
	Responsive atomic.Bool
	// ReportsRecovery is set by a check with a recovery action.
	ReportsRecovery atomic.Bool

	// CheckFabricManager is set for a check of the NVLinks: the GPU has no state
	// of the fabric, on a node with NVSwitches. Set before Initialize.
	CheckFabricManager bool

	// FabricDomain are the labels of the NVLink domain by the newest call; nil:
	// none yet. They stay if the GPU leaves the domain, as a fault makes it do.
	FabricDomain atomic.Pointer[[2]string]

	// Mu is held during all calls about the GPU, so that at most one thread
	// hangs. It guards the fields below.
	Mu sync.Mutex
	target
	fields, checkFields fieldReader
	links               [metric.ScopeC2CLink + 1]uint32 // number of links of each kind, up or not
	results             callResults
	seenReasons         uint64    // for slower clocks: supported, regardless of SupportedClockReasons
	collectedAt         time.Time // begin of the newest collection
	seenResets          uint64    // resets of history before the newest values
	repairPending       bool      // until the next reset
	// freed is set when the GPU is no longer listed: no further samples are
	// allocated.
	freed        bool
	processes    processBuffers
	instances    []*instance // by groupedState
	groupedState *MIGState
}

// callResults sum up the calls of a reading or check.
type callResults struct {
	answered bool  // a call succeeded
	failure  error // of the first failed call
	aborted  bool  // no further call can succeed, by the GPU
}

// processBuffers are kept from reading to reading, and grow on demand.
type processBuffers struct {
	infos   []nvml.ProcessInfo
	samples []nvml.ProcessUtilizationSample
	count   uint32 // results of the newest call
	lists   [len(lib.ProcessListSymbols)]attempt
	lengths [len(lib.ProcessListSymbols)]uint32 // of the newest lists
}

// NewGPUReader returns a reader before Initialize.
func NewGPUReader(
	id device.GPU, handle nvml.Device, session *lib.Session, plan *metric.ReadPlan, history *History,
) *GPUReader {
	g := &GPUReader{
		ID: id, session: session, plan: plan, history: history,
		target: newTarget(handle, metric.TargetGPU), seenResets: history.resets.Load(),
	}
	g.Responsive.Store(true)
	g.MIG.Store(&MIGState{})
	return g
}

func callError(symbol string, ret nvml.Return) error {
	return fmt.Errorf("%s: %w", symbol, lib.Error(ret))
}

func (g *GPUReader) recordResult(symbol string, ret nvml.Return) {
	r := &g.results
	switch {
	case ret == nvml.SUCCESS:
		r.answered = true
	case lib.IsFinal(ret): // earlier values may be as old as the trouble
		r.failure, r.aborted = callError(symbol, ret), true
	case r.failure == nil:
		r.failure = callError(symbol, ret)
	}
}

// ping reads the UUID, supported by every driver. A GPU with an invalid handle
// is lost.
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

// detectReset compares the energy counter with the previous value, in readings
// and checks: resets show without checks too.
func (g *GPUReader) detectReset(f *fieldReader) {
	if v, ok := f.value(f.Index[metric.FieldKey{ID: metric.EnergyField}]); ok {
		g.history.recordEnergy(uint64(v))
	}
}

// makeCalls makes the due calls about a target among the needed ones.
func (g *GPUReader) makeCalls(t *target, needed func(call int) bool, now time.Time) {
	for i := range metric.Calls {
		if g.results.aborted {
			return
		}
		if needed(i) && g.isDue(i, t, now) {
			g.makeCall(i, t, now)
		}
	}
}

// canFind reports whether the library has the function of the i-th call.
func (g *GPUReader) canFind(i int) bool { return g.session.Symbols[metric.Calls[i].Symbol] }

// isDue reports whether the i-th call could read a value that is missing or
// old.
func (g *GPUReader) isDue(i int, t *target, now time.Time) bool {
	c := &metric.Calls[i]
	interval := slowInterval
	if c.Pace == device.PaceFast {
		interval = 0
	}
	switch {
	case c.Targets&t.kind == 0 || !g.canFind(i) || !t.attempts[i].due(interval, now):
		return false
	case c.Pace == device.PaceStatic && !t.latest.MissesAny(c):
		return false
	case c.PartCount != metric.NoValue &&
		(!t.latest.Present[c.PartCount] || t.latest.Values[c.PartCount] <= float64(c.Part)):
		return false
	case c.IsFallback && g.canFind(i-1) && !t.attempts[i-1].failed:
		return false
	}
	return !g.isSpared(c)
}

// isSpared reports whether a field has the value of a call. If the field
// failed once, the call replaces it.
func (g *GPUReader) isSpared(c *metric.Call) bool {
	if c.SparedBy == nil {
		return false
	}
	_, known := g.fields.rawValue(g.fields.Index[*c.SparedBy])
	return known
}

// makeCall makes the i-th call. A failure drops the earlier values, unless the
// call failed before: then a fallback has read them.
func (g *GPUReader) makeCall(i int, t *target, now time.Time) {
	c, newest := &metric.Calls[i], &t.attempts[i]
	if !newest.failed {
		t.latest.Unset(c.Values)
	}
	ret := c.Get(t.Handle, &t.latest)
	newest.record(ret, now)
	g.recordResult(c.Symbol, ret)
	if !c.Provides(metric.HasFabric) {
		return
	}
	if uuid, clique := t.latest.FabricDomain(); uuid != "" {
		g.FabricDomain.Store(&[2]string{uuid, clique})
	}
}

// forget forgets all denials and values: denials during trouble prove nothing,
// a reset changes all, and a change of the MIG mode changes the GPU's features.
func (g *GPUReader) forget() {
	g.fields.forget()
	g.checkFields.forget()
	g.target.forget()
	clear(g.processes.lists[:])
	for _, in := range g.instances {
		in.forget()
	}
}
