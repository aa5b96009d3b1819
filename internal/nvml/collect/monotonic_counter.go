package collect

import (
	"time"

	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// monotonicCounter makes one number that only rises of counters that may wrap, begin again with
// the driver, or be missing for a while, as those of single links are. It lives as long
// as the process: that a GPU is listed anew must not look as if it had been reset.
type monotonicCounter struct {
	sourceIndex int // which of its row's sources it follows
	counters    []counterState
	resets      uint64    // of the GPU, when it was last looked at
	updatedAt   time.Time // when what was taken last was read
	started     bool
	total       float64
}

// counterState is one of its counters, in base units.
type counterState struct {
	last float64
	seen bool
}

// selectSource begins a look at n counters. A counter that was not there before counts for
// what it rises by from now on; only the first time do all count in full.
func (mc *monotonicCounter) selectSource(source, n int) {
	if mc.sourceIndex != source || len(mc.counters) != n {
		mc.sourceIndex, mc.counters = source, make([]counterState, n)
	}
}

// restart has all counters begin again at 0, also those that are missing just now.
func (mc *monotonicCounter) restart() {
	for i := range mc.counters {
		mc.counters[i].last = 0
	}
}

// add adds what the i-th counter rose by. That it went down is a wrap, unless it would
// have had to rise by more than most for that: then it has begun again at 0, as the
// errors of links do when somebody sets them to 0.
func (mc *monotonicCounter) add(i int, value, wraps, maxRise float64) {
	counter := &mc.counters[i]
	rose := value - counter.last
	switch {
	case !counter.seen && mc.started:
		rose = 0
	case rose < 0 && wraps > 0 && rose+wraps <= maxRise:
		rose += wraps
	case rose < 0:
		rose = value
	}
	mc.total += rose
	counter.last, counter.seen = value, true
}

// counterValue is the row's counter, read off its meter. ok is false where none of its
// counters gave a value.
func (g *GPUReader) counterValue(i int, source int, ref metric.FieldRange, now time.Time) (total float64, ok bool) {
	r, f := &g.plan.Rows[i], g.fieldsOf(&g.plan.Rows[i])
	if r.Slow { // a value is as old as its reading
		now = g.slowReadAt
	}
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	counter := g.history.counters[i]
	if counter == nil {
		counter = &monotonicCounter{}
		g.history.counters[i] = counter
	}
	maxRise := r.MaxRate * max(now.Sub(counter.updatedAt).Seconds()+1, 0)
	u := r.Sources[source].Conversion
	for k := range ref.N {
		raw, known := f.value(ref.Start + k)
		v, valid := u.Convert(raw)
		if !known || !valid {
			continue
		}
		if !ok { // a source that gives nothing this once is not followed
			counter.selectSource(source, ref.N)
			if counter.resets != g.seenResets {
				counter.restart()
			}
			ok = true
		}
		counter.add(k, v, f.wrapsAt(ref.Start+k)*u.Multiplier/u.Divisor, maxRise)
	}
	if ok {
		counter.started, counter.updatedAt, counter.resets = true, now, g.seenResets
	}
	return counter.total, ok
}
