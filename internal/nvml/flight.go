package nvml

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// A collection may make so many calls about a GPU, whatever there is to read of it. What
// is fast fits in; what is slow has what is left, in the order in which it is overdue. Only
// slow values that would otherwise be shown for longer than maxAge are read beyond that, each
// call once, which happens where collections are half a minute apart and more.
const (
	callsPerGPU      = 20
	callsPerInstance = 3 // and as many more for each GPU instance of a partitioned GPU
)

// callsOfUses are kept for the processes, which are asked for after the rest: a list of
// each kind, and what they used, of which a partitioned GPU does not tell.
func (g *gpu) callsOfUses() int {
	if g.grouped.mig {
		return len(processLists)
	}
	return len(processLists) + 1
}

const (
	// slowEvery is how old a slow value is before it is asked for again.
	slowEvery = 25 * time.Second
	// maxAge is how old a slow value, or the end of a window, may be in a collection: what is
	// shown of it for another second is less than a minute old.
	maxAge = 55 * time.Second
)

// turn is when something was last asked for.
type turn struct {
	asked  time.Time
	absent absence
}

// due is when it is to be asked for again.
func (t *turn) due() time.Time {
	if t.absent.doubted() {
		return t.asked.Add(doubtedFor)
	}
	return t.asked.Add(slowEvery)
}

// flight is how the flight under way goes.
type flight struct {
	left    int  // calls that may still be made
	fresh   bool // something was answered
	failed  failure
	stopped bool // the GPU has said that no other call will succeed
}

// spend takes a call from what is left.
func (g *gpu) spend() bool {
	if g.flight.left <= 0 {
		return false
	}
	g.flight.left--
	return true
}

// note notes what a call has answered.
func (g *gpu) note(symbol string, ret nvml.Return) {
	f := &g.flight
	switch {
	case ret == nvml.SUCCESS:
		f.fresh = true
	case isFinal(ret): // what was read before it may be as old as the trouble
		f.failed, f.stopped = failure{symbol, ret}, true
	case f.failed == (failure{}):
		f.failed = failure{symbol, ret}
	}
}

// failing tells whether there is no use in asking on.
func (g *gpu) failing() bool { return g.flight.stopped }

// ask reads what is due.
func (g *gpu) ask(now time.Time) {
	g.regroup()
	g.wantedAt = now
	g.flight = flight{left: callsPerGPU + callsPerInstance*len(g.instances) - g.callsOfUses()}
	if g.asksGPM(now) && g.spend() {
		g.askGPM(now)
	}
	if g.fast.asksAny() && g.spend() {
		g.askFields(&g.fast, now)
		g.noteEnergy(&g.fast, g.catalogue.fast.at[key{id: energyField}])
	}
	if g.failing() {
		return
	}
	g.noteReset()
	g.spare()
	g.gpm.own.expire(&g.reading, now)
	g.askCalls(g.handle, gpus, &g.reading, &g.turns, now)
	for _, in := range g.instances {
		if g.failing() {
			return
		}
		in.sampler.expire(&in.reading, now)
		g.readInstance(in, now)
	}
	for !g.failing() && g.askOverdue(now) {
	}
	for len(g.unused) > 0 && g.spend() {
		last := len(g.unused) - 1
		_ = g.driver.lib.GpmSampleFree(g.unused[last].GpmSample) // what it answers changes nothing for us
		g.unused = g.unused[:last]
	}
}

func (g *gpu) askFields(f *fields, now time.Time) {
	if ret := f.ask(g.handle, now); ret != nvml.SUCCESS {
		g.note(fieldValues, ret)
	} else if f.answered() { // it is SUCCESS too where each field has failed
		g.flight.fresh = true
	}
}

// spare finds out which slots need no call, since fields have all that is wanted of
// them. A field that failed this once is made up for by its call.
func (g *gpu) spare() {
	for _, i := range g.catalogue.spare {
		r := &g.catalogue.rows[i]
		_, known := g.fieldsOf(r).signed(g.catalogue.refs[i][0].at)
		g.spared[r.slot] = known
	}
}

// askCalls makes the fast calls about a GPU or a slice.
func (g *gpu) askCalls(handle nvml.Device, about target, r *reading, turns *[len(calls)]turn, now time.Time) {
	for i := range calls {
		if c := &calls[i]; c.pace == device.Fast && c.about&about != 0 {
			r.empty(c.slots)
		}
	}
	for i := range calls {
		if calls[i].pace == device.Fast && g.has(i, about, r, turns, now) && g.spend() {
			if g.askCall(i, handle, r, turns, now); g.failing() {
				return
			}
		}
	}
}

// may tells whether there is a use in making the i-th call.
func (g *gpu) may(i int, about target, turns *[len(calls)]turn, now time.Time) bool {
	c, t := &calls[i], &turns[i]
	if c.about&about == 0 || !g.driver.can[i] || t.absent.hides(now) {
		return false
	}
	if !c.older || c.pace == device.Fast { // a fast one that fails just once is made up for
		return true
	}
	return !g.driver.can[i-1] || turns[i-1].absent.denied()
}

// has tells whether the i-th call can be made, and would bring something that is not
// there.
func (g *gpu) has(i int, about target, r *reading, turns *[len(calls)]turn, now time.Time) bool {
	return g.may(i, about, turns, now) && r.lacks(&calls[i], g.sparing(about))
}

// sparing are the slots that fields make up for. Slices have no fields.
func (g *gpu) sparing(about target) *[slotCount]bool {
	if about == migSlices {
		return &noneSpared
	}
	return &g.spared
}

var noneSpared [slotCount]bool

// askCall makes a call. What it had brought before is gone when it fails; but what is
// there while it is known to be absent, another one has brought.
func (g *gpu) askCall(i int, handle nvml.Device, r *reading, turns *[len(calls)]turn, now time.Time) {
	c, t := &calls[i], &turns[i]
	if !t.absent.denied() {
		r.empty(c.slots)
	}
	ret := c.ask(handle, r)
	t.asked = now
	t.absent.note(lacking(ret), now)
	g.note(c.symbol, ret)
}

// lacking tells whether a code says that the GPU or its driver does not have what it was
// asked for, in the form that it was asked for in.
func lacking(ret nvml.Return) bool {
	return notHere(ret) || ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_DEPRECATED
}

// overdue is something slow that is to be asked for.
type overdue struct {
	what int // a call, or len(calls): the slow fields
	of   *instance
	due  time.Time
	// old says that what it brought is shown and would be too old.
	old bool
}

// askOverdue asks for what is most overdue of the slow values, if any is and there is a
// call left for it. What would be shown for too long is asked for in any case.
func (g *gpu) askOverdue(now time.Time) bool {
	next := g.mostOverdue(now, !g.spend())
	switch {
	case next.what < 0:
		return false
	case next.what == len(calls):
		g.askSlowFields(now)
	case next.of != nil:
		g.askCall(next.what, next.of.handle, &next.of.reading, &next.of.turns, now)
	default:
		g.askCall(next.what, g.handle, &g.reading, &g.turns, now)
	}
	return true
}

// mostOverdue returns what is to be asked for first, be it of all or only of what would be
// too old; a negative what: nothing is.
func (g *gpu) mostOverdue(now time.Time, onlyOld bool) overdue {
	next := overdue{what: -1}
	add := func(o overdue) {
		if !now.Before(o.due) && (o.old || !onlyOld) && (next.what < 0 || o.due.Before(next.due)) {
			next = o
		}
	}
	if g.slow.asksAny() {
		t := turn{asked: g.slowAsked}
		if g.slow.doubted {
			t.absent.times = 1
		}
		add(overdue{what: len(calls), due: t.due(), old: g.slow.answered() && now.Sub(g.slowAsked) > maxAge})
	}
	for i := range calls {
		if g.asksSlowly(i, gpus, &g.reading, &g.turns, now) {
			t := &g.turns[i]
			add(overdue{what: i, due: t.due(), old: g.reading.shows(&calls[i]) && now.Sub(t.asked) > maxAge})
		}
	}
	for _, in := range g.instances {
		for i := range calls {
			if in.sound && g.asksSlowly(i, migSlices, &in.reading, &in.turns, now) {
				t := &in.turns[i]
				add(overdue{what: i, of: in, due: t.due(), old: in.reading.shows(&calls[i]) && now.Sub(t.asked) > maxAge})
			}
		}
	}
	return next
}

// asksSlowly reports whether the i-th call is not fast and can be made. A static value that
// is there is not asked for again.
func (g *gpu) asksSlowly(i int, about target, r *reading, turns *[len(calls)]turn, now time.Time) bool {
	switch calls[i].pace {
	case device.Fast:
		return false
	case device.Slow:
		return g.may(i, about, turns, now) && !g.sparing(about)[calls[i].slots[0]]
	default:
		return g.has(i, about, r, turns, now)
	}
}

// askSlowFields reports whether there are links to ask for that were not known before. Their
// fields are due soon.
func (g *gpu) askSlowFields(now time.Time) (links bool) {
	g.slowAsked = now
	g.askFields(&g.slow, now)
	if links = g.findLinks(); links {
		g.slowAsked = now.Add(doubtedFor - slowEvery)
	}
	g.spare()
	return links
}

// seed reads what is static, and all that is slow for a first time, when a GPU is found:
// so that the first flight has it.
func (g *gpu) seed(now time.Time) {
	g.flight = flight{left: 1 << 20}
	g.wantedAt = now
	if g.askSlowFields(now) {
		g.askSlowFields(now)
	}
	if !g.failing() && g.asksGPM(now) {
		g.askGPM(now)
	}
	for i := range calls {
		if g.failing() {
			break
		}
		if calls[i].pace != device.Fast && g.has(i, gpus, &g.reading, &g.turns, now) {
			g.askCall(i, g.handle, &g.reading, &g.turns, now)
		}
	}
	if !g.failing() {
		g.sampled(&g.gpm.own, &g.reading, wholeGPU, now)
	}
	if g.failing() {
		g.askAll()
	}
}

// noteReset drops what is of before a reset, which a reading or a check has seen: it was
// so fast that no call failed. One that shows in the first flight was before the GPU was
// listed, and all that is known of it was read then.
func (g *gpu) noteReset() {
	resets, first := g.history.resets.Load(), !g.flew
	reset := resets != g.resets
	g.resets, g.flew = resets, true
	if !reset || first {
		return
	}
	g.forgetSlow()
	g.gpm.own.forget(&g.reading)
	for _, in := range g.instances {
		in.sampler.forget(&in.reading)
	}
}

// forgetSlow drops all slow values, so that each is asked for again, in the order in
// which they were.
func (g *gpu) forgetSlow() {
	g.slow.askAll()
	g.slowAsked = g.slowAsked.Add(-slowEvery)
	forget(&g.reading, &g.turns)
	for _, in := range g.instances {
		forget(&in.reading, &in.turns)
	}
}

func forget(r *reading, turns *[len(calls)]turn) {
	for i := range calls {
		if calls[i].pace == device.Slow {
			r.empty(calls[i].slots)
			turns[i] = turn{asked: turns[i].asked.Add(-slowEvery)}
		}
	}
}

// askAll forgets what the GPU was said not to have, and all slow values: it is in
// trouble, and what it says meanwhile is no word to go by. Or it is another GPU now, in a
// way: its MIG mode has changed.
func (g *gpu) askAll() {
	g.fast.askAll()
	g.check.askAll()
	g.forgetSlow()
	for i := range g.turns {
		g.turns[i].absent = absence{}
	}
	g.gpm.own.forget(&g.reading)
	g.gpm.absent, g.gpm.own.absent = absence{}, absence{}
	clear(g.people.absent[:])
	for _, in := range g.instances {
		in.forget()
	}
}
