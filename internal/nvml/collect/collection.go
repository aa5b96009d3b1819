package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// A collection may make so many calls about a GPU, whatever there is to read of it. What
// is fast fits in; what is slow has what is left, in the order in which it is overdue. Only
// slow values that would otherwise be shown for longer than maxAge are read beyond that, each
// call once, which happens where collections are half a minute apart and more.
const (
	maxCallsPerGPU      = 20
	maxCallsPerInstance = 3 // and as many more for each GPU instance of a partitioned GPU
)

// processCallBudget are kept for the processes, which are asked for after the rest: a list of
// each kind, and what they used, of which a partitioned GPU does not tell.
func (g *GPUReader) processCallBudget() int {
	if g.groupedState.Enabled {
		return len(lib.ProcessListSymbols)
	}
	return len(lib.ProcessListSymbols) + 1
}

const (
	// slowInterval is how old a slow value is before it is asked for again.
	slowInterval = 25 * time.Second
	// maxAge is how old a slow value, or the end of a window, may be in a collection: what is
	// shown of it for another second is less than a minute old.
	maxAge = 55 * time.Second
)

// callState is when something was last asked for.
type callState struct {
	calledAt time.Time
	denials  Denials
}

// due is when it is to be asked for again.
func (s *callState) due() time.Time {
	if s.denials.unconfirmed() {
		return s.calledAt.Add(unconfirmedRetryInterval)
	}
	return s.calledAt.Add(slowInterval)
}

// collection is how the flight under way goes.
type collection struct {
	budget   int  // calls that may still be made
	answered bool // something was answered
	failure  callFailure
	aborted  bool // the GPU has said that no other call will succeed
}

// spendCall takes a call from what is left.
func (g *GPUReader) spendCall() bool {
	if g.collection.budget <= 0 {
		return false
	}
	g.collection.budget--
	return true
}

// recordResult notes what a call has answered.
func (g *GPUReader) recordResult(symbol string, ret nvml.Return) {
	f := &g.collection
	switch {
	case ret == nvml.SUCCESS:
		f.answered = true
	case lib.IsFinal(ret): // what was read before it may be as old as the trouble
		f.failure, f.aborted = callFailure{symbol, ret}, true
	case f.failure == (callFailure{}):
		f.failure = callFailure{symbol, ret}
	}
}

// isAborted tells whether there is no use in asking on.
func (g *GPUReader) isAborted() bool { return g.collection.aborted }

// collect reads what is due.
func (g *GPUReader) collect(now time.Time) {
	g.updateInstances()
	g.lastCollection = now
	g.collection = collection{budget: maxCallsPerGPU + maxCallsPerInstance*len(g.instances) - g.processCallBudget()}
	if g.needsGPMProbe(now) && g.spendCall() {
		g.probeGPM(now)
	}
	if g.fastFields.hasRequests() && g.spendCall() {
		g.readFields(&g.fastFields, now)
		g.detectReset(&g.fastFields, g.plan.Fast.Index[metric.FieldKey{ID: metric.EnergyField}])
	}
	if g.isAborted() {
		return
	}
	g.dropBeforeReset()
	g.updateSpared()
	g.gpm.gpuSampler.expire(&g.latest, now)
	g.makeFastCalls(g.Handle, metric.TargetGPU, &g.latest, g.callStates, now)
	for _, in := range g.instances {
		if g.isAborted() {
			return
		}
		in.sampler.expire(&in.latest, now)
		g.readInstance(in, now)
	}
	for !g.isAborted() && g.readOverdue(now) {
	}
	for len(g.unusedSamples) > 0 && g.spendCall() {
		last := len(g.unusedSamples) - 1
		_ = g.session.NVML.GpmSampleFree(g.unusedSamples[last].GpmSample) // what it answers changes nothing for us
		g.unusedSamples = g.unusedSamples[:last]
	}
}

func (g *GPUReader) readFields(f *fieldReader, now time.Time) {
	if ret := f.read(g.Handle, now); ret != nvml.SUCCESS {
		g.recordResult(lib.FieldValuesSymbol, ret)
	} else if f.anyAnswered() { // it is SUCCESS too where each field has failed
		g.collection.answered = true
	}
}

// updateSpared finds out which slots need no call, since fields have all that is wanted of
// them. A field that failed this once is made up for by its call.
func (g *GPUReader) updateSpared() {
	for _, i := range g.plan.SparingRows {
		r := &g.plan.Rows[i]
		_, known := g.fieldsOf(r).rawValue(g.plan.Ranges[i][0].Start)
		g.spared[r.ValueID] = known
	}
}

// makeFastCalls makes the fast calls about a GPU or a slice.
func (g *GPUReader) makeFastCalls(handle nvml.Device, target metric.Target, r *metric.Values, states []callState, now time.Time) {
	for i := range metric.Calls {
		if c := &metric.Calls[i]; c.Pace == device.PaceFast && c.Targets&target != 0 {
			r.Unset(c.Values)
		}
	}
	for i := range metric.Calls {
		if metric.Calls[i].Pace == device.PaceFast && g.shouldCall(i, target, r, states, now) && g.spendCall() {
			if g.makeCall(i, handle, r, states, now); g.isAborted() {
				return
			}
		}
	}
}

// canCall tells whether there is a use in making the i-th call.
func (g *GPUReader) canCall(i int, target metric.Target, states []callState, now time.Time) bool {
	c, t := &metric.Calls[i], &states[i]
	if c.Targets&target == 0 || !g.canFind(i) || t.denials.shouldSkip(now) {
		return false
	}
	if !c.IsFallback || c.Pace == device.PaceFast { // a fast one that fails just once is made up for
		return true
	}
	return !g.canFind(i-1) || states[i-1].denials.Denied()
}

// canFind reports whether the library has the function of the i-th call.
func (g *GPUReader) canFind(i int) bool { return g.session.Symbols[metric.Calls[i].Symbol] }

// shouldCall tells whether the i-th call can be made, and would bring something that is not
// there.
func (g *GPUReader) shouldCall(i int, target metric.Target, r *metric.Values, states []callState, now time.Time) bool {
	return g.canCall(i, target, states, now) && r.MissesAny(&metric.Calls[i], g.sparedFor(target))
}

// sparedFor are the slots that fields make up for. Slices have no fields.
func (g *GPUReader) sparedFor(target metric.Target) *[metric.MaxValues]bool {
	if target == metric.TargetMIG {
		return &nothingSpared
	}
	return &g.spared
}

var nothingSpared [metric.MaxValues]bool

// makeCall makes a call. What it had brought before is gone when it fails; but what is
// there while it is known to be absent, another one has brought.
func (g *GPUReader) makeCall(i int, handle nvml.Device, r *metric.Values, states []callState, now time.Time) {
	c, t := &metric.Calls[i], &states[i]
	if !t.denials.Denied() {
		r.Unset(c.Values)
	}
	ret := c.Get(handle, r)
	t.calledAt = now
	t.denials.Record(lib.IsUnavailable(ret), now)
	g.recordResult(c.Symbol, ret)
}

// overdueRead is something slow that is to be asked for.
type overdueRead struct {
	callIndex int // a call, or len(calls): the slow fields
	instance  *instance
	due       time.Time
	// expired says that what it brought is shown and would be too old.
	expired bool
}

// readOverdue asks for what is most overdue of the slow values, if any is and there is a
// call left for it. What would be shown for too long is asked for in any case.
func (g *GPUReader) readOverdue(now time.Time) bool {
	next := g.mostOverdue(now, !g.spendCall())
	switch {
	case next.callIndex < 0:
		return false
	case next.callIndex == len(metric.Calls):
		g.readSlowFields(now)
	case next.instance != nil:
		g.makeCall(next.callIndex, next.instance.handle, &next.instance.latest, next.instance.callStates, now)
	default:
		g.makeCall(next.callIndex, g.Handle, &g.latest, g.callStates, now)
	}
	return true
}

// mostOverdue returns what is to be asked for first, be it of all or only of what would be
// too old; a negative what: nothing is.
func (g *GPUReader) mostOverdue(now time.Time, onlyExpired bool) overdueRead {
	next := overdueRead{callIndex: -1}
	add := func(o overdueRead) {
		if !now.Before(o.due) && (o.expired || !onlyExpired) && (next.callIndex < 0 || o.due.Before(next.due)) {
			next = o
		}
	}
	if g.slowFields.hasRequests() {
		t := callState{calledAt: g.slowReadAt}
		if g.slowFields.unconfirmed {
			t.denials.count = 1
		}
		add(overdueRead{callIndex: len(metric.Calls), due: t.due(), expired: g.slowFields.anyAnswered() && now.Sub(g.slowReadAt) > maxAge})
	}
	for i := range metric.Calls {
		if g.canCallSlow(i, metric.TargetGPU, &g.latest, g.callStates, now) {
			t := g.callStates[i]
			add(overdueRead{callIndex: i, due: t.due(), expired: g.latest.HasAny(&metric.Calls[i]) && now.Sub(t.calledAt) > maxAge})
		}
	}
	for _, in := range g.instances {
		for i := range metric.Calls {
			if in.verified && g.canCallSlow(i, metric.TargetMIG, &in.latest, in.callStates, now) {
				t := in.callStates[i]
				add(overdueRead{callIndex: i, instance: in, due: t.due(), expired: in.latest.HasAny(&metric.Calls[i]) && now.Sub(t.calledAt) > maxAge})
			}
		}
	}
	return next
}

// canCallSlow reports whether the i-th call is not fast and can be made. A static value that
// is there is not asked for again.
func (g *GPUReader) canCallSlow(i int, target metric.Target, r *metric.Values, states []callState, now time.Time) bool {
	switch metric.Calls[i].Pace {
	case device.PaceFast:
		return false
	case device.PaceSlow:
		return g.canCall(i, target, states, now) && !g.sparedFor(target)[metric.Calls[i].Values[0]]
	default:
		return g.shouldCall(i, target, r, states, now)
	}
}

// readSlowFields reports whether there are links to ask for that were not known before. Their
// fields are due soon.
func (g *GPUReader) readSlowFields(now time.Time) (newLinks bool) {
	g.slowReadAt = now
	g.readFields(&g.slowFields, now)
	if newLinks = g.findLinks(); newLinks {
		g.slowReadAt = now.Add(unconfirmedRetryInterval - slowInterval)
	}
	g.updateSpared()
	return newLinks
}

// readInitial reads what is static, and all that is slow for a first time, when a GPU is found:
// so that the first flight has it.
func (g *GPUReader) readInitial(now time.Time) {
	g.collection = collection{budget: 1 << 20}
	g.lastCollection = now
	if g.readSlowFields(now) {
		g.readSlowFields(now)
	}
	if !g.isAborted() && g.needsGPMProbe(now) {
		g.probeGPM(now)
	}
	for i := range metric.Calls {
		if g.isAborted() {
			break
		}
		if metric.Calls[i].Pace != device.PaceFast && g.shouldCall(i, metric.TargetGPU, &g.latest, g.callStates, now) {
			g.makeCall(i, g.Handle, &g.latest, g.callStates, now)
		}
	}
	if !g.isAborted() {
		g.takeSample(&g.gpm.gpuSampler, &g.latest, noGPUInstance, now)
	}
	if g.isAborted() {
		g.forgetAbsences()
	}
}

// dropBeforeReset drops what is of before a reset, which a reading or a check has seen: it was
// so fast that no call failed. One that shows in the first flight was before the GPU was
// listed, and all that is known of it was read then.
func (g *GPUReader) dropBeforeReset() {
	resets, first := g.history.resets.Load(), !g.collected
	reset := resets != g.seenResets
	g.seenResets, g.collected = resets, true
	if !reset || first {
		return
	}
	g.dropSlow()
	g.gpm.gpuSampler.reset(&g.latest)
	for _, in := range g.instances {
		in.sampler.reset(&in.latest)
	}
}

// dropSlow drops all slow values, so that each is asked for again, in the order in
// which they were.
func (g *GPUReader) dropSlow() {
	g.slowFields.requestAll()
	g.slowReadAt = g.slowReadAt.Add(-slowInterval)
	dropSlowValues(&g.latest, g.callStates)
	for _, in := range g.instances {
		dropSlowValues(&in.latest, in.callStates)
	}
}

func dropSlowValues(r *metric.Values, states []callState) {
	for i := range metric.Calls {
		if metric.Calls[i].Pace == device.PaceSlow {
			r.Unset(metric.Calls[i].Values)
			states[i] = callState{calledAt: states[i].calledAt.Add(-slowInterval)}
		}
	}
}

// forgetAbsences forgets what the GPU was said not to have, and all slow values: it is in
// trouble, and what it says meanwhile is no word to go by. Or it is another GPU now, in a
// way: its MIG mode has changed.
func (g *GPUReader) forgetAbsences() {
	g.fastFields.requestAll()
	g.checkFields.requestAll()
	g.dropSlow()
	for i := range g.callStates {
		g.callStates[i].denials = Denials{}
	}
	g.gpm.gpuSampler.reset(&g.latest)
	g.gpm.denials, g.gpm.gpuSampler.denials = Denials{}, Denials{}
	clear(g.processes.denials[:])
	for _, in := range g.instances {
		in.reset()
	}
}
