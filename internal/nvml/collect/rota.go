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
		if due, expired := g.isDue(turn, now); due && expired && !g.collection.aborted {
			g.spendCall()
			g.takeTurn(turn, now)
		}
	}
	for range turns {
		if g.collection.aborted {
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

// isDue reports whether a turn is due, and whether values of the turn are shown and too old. Fast calls are never due, nor are static
// calls with values. Denials have intervals of their own.
func (g *GPUReader) isDue(turn int, now time.Time) (due, expired bool) {
	t, i := g.turnTarget(turn)
	if i < 0 {
		f, age := &g.slowFields, now.Sub(g.slowReadAt)
		due = age >= slowInterval || f.unconfirmed && age >= unconfirmedRetryInterval
		return due && f.hasKeys(), f.anyAnswered() && age > maxAge
	}
	c := &metric.Calls[i]
	if t == nil || !g.plan.NeedsCall[i] || c.Pace == device.PaceFast || c.Pace == device.PaceStatic && !t.latest.MissesAny(c) || !g.canCall(i, t, now) || g.isSpared(c) {
		return false, false
	}
	age := now.Sub(t.callStates[i].calledAt)
	return age >= slowInterval || t.callStates[i].denials.Denied(), t.latest.HasAny(c) && age > maxAge
}

func (g *GPUReader) takeTurn(turn int, now time.Time) {
	if t, i := g.turnTarget(turn); i < 0 {
		g.readSlowFields(now)
	} else {
		g.makeCall(i, t, now)
	}
}
