package collect

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// The rota has a turn for the slow fields, then a turn for each call and target. A collection continues at the end of the previous collection, and takes
// due turns until the budget is used up.

// readSlow reads values older than maxAge, within the budget or not, then takes due turns of the rota.
func (g *GPUReader) readSlow(now time.Time) {
	turns := 1 + len(metric.Calls)*(1+len(g.instances))
	for turn := range turns {
		if due, expired := g.isDue(turn, now); due && expired && !g.isAborted() {
			g.spendCall()
			g.takeTurn(turn, now)
		}
	}
	for range turns {
		if g.isAborted() {
			return
		}
		turn := g.rotaPosition % turns
		if due, _ := g.isDue(turn, now); due {
			if !g.spendCall() {
				break
			}
			g.takeTurn(turn, now)
		}
		g.rotaPosition = turn + 1
	}
}

// turnTarget returns the target and the call of a turn; i is negative for the slow fields. Unverified instances have no turn.
func (g *GPUReader) turnTarget(turn int) (t *readTarget, i int) {
	if turn == 0 {
		return nil, -1
	}
	n := (turn - 1) / len(metric.Calls)
	i = (turn - 1) % len(metric.Calls)
	switch {
	case n == 0:
		return &g.readTarget, i
	case g.instances[n-1].verified:
		return &g.instances[n-1].readTarget, i
	default:
		return nil, i
	}
}

// isDue reports whether a turn is due, and whether values of the turn are shown and too old.
func (g *GPUReader) isDue(turn int, now time.Time) (due, expired bool) {
	t, i := g.turnTarget(turn)
	var calledAt time.Time
	interval, shown := slowInterval, false
	switch {
	case i < 0:
		if !g.slowFields.hasRequests() {
			return false, false
		}
		calledAt, shown = g.slowReadAt, g.slowFields.anyAnswered()
		if g.slowFields.unconfirmed {
			interval = unconfirmedRetryInterval
		}
	case t == nil || !g.canCallSlow(i, t, now):
		return false, false
	default:
		calledAt, shown = t.callStates[i].calledAt, t.latest.HasAny(&metric.Calls[i])
		if d := t.callStates[i].denials; d.Denied() && !d.Confirmed() {
			interval = unconfirmedRetryInterval
		}
	}
	age := now.Sub(calledAt)
	return age >= interval, shown && age > maxAge
}

func (g *GPUReader) takeTurn(turn int, now time.Time) {
	if t, i := g.turnTarget(turn); i < 0 {
		g.readSlowFields(now)
	} else {
		g.makeCall(i, t, now)
	}
}

// canCallSlow reports whether the i-th call is not fast and can be made. A present static value is not read again.
func (g *GPUReader) canCallSlow(i int, t *readTarget, now time.Time) bool {
	switch c := &metric.Calls[i]; c.Pace {
	case device.PaceFast:
		return false
	case device.PaceSlow:
		return g.canCall(i, t, now) && !t.spared[c.Values[0]]
	default:
		return g.shouldCall(i, t, now)
	}
}
