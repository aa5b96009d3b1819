package collect

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// A collection makes at most this number of calls about a GPU for fast values and processes. Slow values are read beyond, each call once.
const (
	maxCallsPerGPU      = 20
	maxCallsPerInstance = 3 // additionally, for each GPU instance
	unlimitedCalls      = 1 << 20
)

const (
	// slowInterval is the age of a due slow value: less than half a minute, so that scrapes every 30 s read all.
	slowInterval = 25 * time.Second
	// maxAge is the maximum age of a GPM window in a collection: below a minute, even if shown for another second.
	maxAge = 55 * time.Second
)

// collection is the state of the collection under way.
type collection struct {
	budget   int   // remaining calls
	answered bool  // a call succeeded
	failure  error // of the first failed call
	aborted  bool  // no further call can succeed, by the GPU
}

func callError(symbol string, ret nvml.Return) error {
	return fmt.Errorf("%s: %w", symbol, lib.Error(ret))
}

// spendCall takes a call from the budget.
func (g *GPUReader) spendCall() bool {
	if g.collection.budget <= 0 {
		return false
	}
	g.collection.budget--
	return true
}

func (g *GPUReader) recordResult(symbol string, ret nvml.Return) {
	c := &g.collection
	switch {
	case ret == nvml.SUCCESS:
		c.answered = true
	case lib.IsFinal(ret): // earlier values may be as old as the trouble
		c.failure, c.aborted = callError(symbol, ret), true
	case c.failure == nil:
		c.failure = callError(symbol, ret)
	}
}

// processCallBudget is reserved for the processes, read last: a call for each list, and on unpartitioned GPUs a call for the utilization.
func (g *GPUReader) processCallBudget() int {
	if g.groupedState.Enabled {
		return len(lib.ProcessListSymbols)
	}
	return len(lib.ProcessListSymbols) + 1
}

// collect reads the fast values and the due slow values.
func (g *GPUReader) collect(now time.Time) {
	g.updateInstances()
	g.lastCollection = now
	g.collection = collection{budget: maxCallsPerGPU + maxCallsPerInstance*len(g.instances) - g.processCallBudget()}
	if g.fastFields.hasKeys() && g.spendCall() {
		g.readFields(&g.fastFields, now)
		g.detectReset(&g.fastFields, g.fastFields.Index[metric.FieldKey{ID: metric.EnergyField}])
	}
	if g.collection.aborted {
		return
	}
	g.dropBeforeReset()
	g.sampler.expire(&g.latest, now)
	g.makeFastCalls(&g.readTarget, now)
	for _, in := range g.instances {
		if g.collection.aborted {
			return
		}
		in.sampler.expire(&in.latest, now)
		g.readInstance(in, now)
	}
	g.readSlow(now)
}

func (g *GPUReader) readFields(f *fieldReader, now time.Time) {
	if ret := f.read(g.Handle, now); ret != nvml.SUCCESS {
		g.recordResult(lib.FieldValuesSymbol, ret)
	} else if f.anyAnswered() { // the call succeeds even if each field has failed
		g.collection.answered = true
	}
}

// isSpared reports whether a field has the value of a call. If the field failed once, the call replaces it.
func (g *GPUReader) isSpared(c *metric.Call) bool {
	if c.SparedBy == nil {
		return false
	}
	f := g.fieldsOf(c.Pace == device.PaceSlow)
	_, known := f.rawValue(f.Index[*c.SparedBy])
	return known
}

func (g *GPUReader) fieldsOf(slow bool) *fieldReader {
	if slow {
		return &g.slowFields
	}
	return &g.fastFields
}

func (g *GPUReader) makeFastCalls(t *readTarget, now time.Time) {
	for i := range metric.Calls {
		if c := &metric.Calls[i]; c.Pace == device.PaceFast && c.Targets&t.kind != 0 {
			t.latest.Unset(c.Values)
		}
	}
	for i := range metric.Calls {
		if metric.Calls[i].Pace == device.PaceFast && g.shouldCall(i, t, now) && g.spendCall() {
			if g.makeCall(i, t, now); g.collection.aborted {
				return
			}
		}
	}
}

// canFind reports whether the library has the function of the i-th call.
func (g *GPUReader) canFind(i int) bool { return g.session.Symbols[metric.Calls[i].Symbol] }

// canCall reports whether the i-th call could succeed.
func (g *GPUReader) canCall(i int, t *readTarget, now time.Time) bool {
	c := &metric.Calls[i]
	if c.Targets&t.kind == 0 || !g.canFind(i) || t.callStates[i].denials.shouldSkip(now) {
		return false
	}
	if c.PartCount != metric.NoValue && (!t.latest.Present[c.PartCount] || t.latest.Values[c.PartCount] <= float64(c.Part)) {
		return false
	}
	// A fast fallback also replaces a call after a single failure.
	return !c.IsFallback || c.Pace == device.PaceFast || !g.canFind(i-1) || t.callStates[i-1].denials.Denied()
}

// shouldCall reports whether the i-th call could read a missing value of a row or of a check.
func (g *GPUReader) shouldCall(i int, t *readTarget, now time.Time) bool {
	c := &metric.Calls[i]
	return (g.plan.NeedsCall[i] || checkCalls[i] != nil) && g.canCall(i, t, now) && t.latest.MissesAny(c) && !g.isSpared(c)
}

// makeCall makes the i-th call. A failure drops the earlier values, unless the call was denied before: then a fallback has read them.
func (g *GPUReader) makeCall(i int, t *readTarget, now time.Time) {
	c, state := &metric.Calls[i], &t.callStates[i]
	if !state.denials.Denied() {
		t.latest.Unset(c.Values)
	}
	ret := c.Get(t.Handle, &t.latest)
	state.calledAt = now
	state.denials.Record(lib.IsUnavailable(ret), now)
	g.recordResult(c.Symbol, ret)
}

// readSlow reads all due slow values: none of a collection is older than slowInterval, however rare collections are.
func (g *GPUReader) readSlow(now time.Time) {
	f, age := &g.slowFields, now.Sub(g.slowReadAt)
	if f.hasKeys() && (age >= slowInterval || f.unconfirmed && age >= unconfirmedRetryInterval) {
		g.readSlowFields(now)
	}
	g.makeSlowCalls(&g.readTarget, now)
	for _, in := range g.instances {
		if in.verified {
			g.makeSlowCalls(&in.readTarget, now)
		}
	}
}

// makeSlowCalls makes the due calls of a target. Denials have intervals of their own; static calls with values are never due.
func (g *GPUReader) makeSlowCalls(t *readTarget, now time.Time) {
	for i := range metric.Calls {
		c, state := &metric.Calls[i], &t.callStates[i]
		isDue := state.denials.Denied() || now.Sub(state.calledAt) >= slowInterval
		if c.Pace == device.PaceFast || c.Pace == device.PaceStatic && !t.latest.MissesAny(c) || !isDue || g.collection.aborted {
			continue
		}
		if g.plan.NeedsCall[i] && g.canCall(i, t, now) && !g.isSpared(c) {
			g.makeCall(i, t, now)
		}
	}
}

// readSlowFields reports whether the GPU has new links. The fields of new links are due soon.
func (g *GPUReader) readSlowFields(now time.Time) (newLinks bool) {
	g.slowReadAt = now
	g.readFields(&g.slowFields, now)
	if newLinks = g.findLinks(); newLinks {
		g.slowReadAt = now.Add(unconfirmedRetryInterval - slowInterval)
	}
	return newLinks
}

// linkCounts are the slow fields with the number of links of each kind.
var linkCounts = [...]uint32{metric.ScopeNVLink: nvml.FI_DEV_NVLINK_LINK_COUNT, metric.ScopeC2CLink: nvml.FI_DEV_C2C_LINK_COUNT}

// findLinks enables the fields of new links, and reports whether there are any.
func (g *GPUReader) findLinks() (found bool) {
	for _, s := range [...]metric.FieldScope{metric.ScopeNVLink, metric.ScopeC2CLink} {
		n, ok := g.slowFields.value(g.slowFields.Index[metric.FieldKey{ID: linkCounts[s]}])
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

// mayHaveField reports whether the GPU could have a field, by links and driver.
func (g *GPUReader) mayHaveField(k metric.FieldKey) bool {
	// The fields of clock reasons had different numbers up to driver 580.65 (docs.nvidia.com/deploy/nvml-api/known-issues.html).
	isClockReason := k.ID >= nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN && k.ID <= nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
	if isClockReason && !g.session.AtLeast58082() {
		return false
	}
	return k.Scope == metric.ScopeGPU || k.N < g.links[k.Scope]
}

// Initialize reads all static and slow values for the first collection. The caller holds the lock.
func (g *GPUReader) Initialize() {
	has, now := g.session.Symbols, time.Now()
	g.checkFields = newFieldReader(has, metric.NewFieldBatch(checkedFields[:]...), g.mayHaveField)
	g.fastFields = newFieldReader(has, g.plan.Fast, g.mayHaveField)
	g.slowFields = newFieldReader(has, g.plan.Slow, g.mayHaveField)
	g.collection, g.lastCollection = collection{budget: unlimitedCalls}, now.Add(time.Minute-gpmIdleTimeout) // the first collection may come within a minute
	if g.readSlowFields(now) {
		g.readSlowFields(now)
	}
	for i := range metric.Calls {
		if !g.collection.aborted && metric.Calls[i].Pace != device.PaceFast && g.shouldCall(i, &g.readTarget, now) {
			g.makeCall(i, &g.readTarget, now)
		}
	}
	if !g.collection.aborted {
		g.takeSample(&g.readTarget, noGPUInstance, now)
	}
	if g.collection.aborted {
		g.forgetAbsences()
	}
}

// dropBeforeReset drops values from before a reset without a failed call. A reset seen in the first collection was
// before the GPU was listed, so all values are newer.
func (g *GPUReader) dropBeforeReset() {
	resets, first := g.history.resets.Load(), !g.collected
	reset := resets != g.seenResets
	g.seenResets, g.collected = resets, true
	if !reset || first {
		return
	}
	g.dropSlow()
	g.sampler.reset(&g.latest)
	for _, in := range g.instances {
		in.sampler.reset(&in.latest)
	}
}

// dropSlow drops all slow values and makes them due.
func (g *GPUReader) dropSlow() {
	g.slowFields.forget()
	g.slowReadAt = g.slowReadAt.Add(-slowInterval)
	g.readTarget.dropSlow()
	for _, in := range g.instances {
		in.dropSlow()
	}
}

func (t *readTarget) dropSlow() {
	for i := range metric.Calls {
		if metric.Calls[i].Pace == device.PaceSlow {
			t.latest.Unset(metric.Calls[i].Values)
			t.callStates[i] = callState{calledAt: t.callStates[i].calledAt.Add(-slowInterval)}
		}
	}
}

// forgetAbsences forgets all denials and slow values: denials during trouble prove nothing, and a change of the MIG mode changes the GPU's
// features.
func (g *GPUReader) forgetAbsences() {
	g.fastFields.forget()
	g.checkFields.forget()
	g.dropSlow()
	for i := range g.callStates {
		g.callStates[i].denials = Denials{}
	}
	g.sampler.reset(&g.latest)
	g.sampler.denials = Denials{}
	clear(g.processes.denials[:])
	for _, in := range g.instances {
		in.reset()
	}
}
