package health

import (
	"errors"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// startChecks starts the checks that are due, of GPUs without another call. If a
// call hangs, the checks of all other GPUs are due.
func (e *engine) startChecks() {
	var longest time.Duration
	for _, c := range e.calls {
		longest = max(longest, c.busy)
	}
	for gpu, g := range e.gpus {
		afterHang := longest >= hangSuspectTimeout &&
			(g.checkedAt.Before(e.now.Add(-longest)) || e.now.Sub(g.checkedAt) >= maxCheckSpacing)
		isDue := afterHang || !e.checkDue(g, e.now).After(e.now)
		if isDue && e.calls[gpu].busy == 0 {
			g.checkedAt = e.now
			g.checkNow = false
			g.checksBegun++
			e.emit(checkGPU{gpu, g.checksBegun, e.now})
		}
	}
}

// checkDue returns when to check a GPU: once a period if healthy, every second
// in doubt, and at once after a report. The periods of a healthy GPU begin on
// whole seconds, with an offset, and a clock that was set back begins one.
func (e *engine) checkDue(g *trackedGPU, now time.Time) time.Time {
	inDoubt := e.calls[g.gpu].failed || !g.assessed
	for _, s := range g.levels("") {
		inDoubt = inDoubt || s.state != device.Healthy
	}
	switch {
	case g.checkNow:
		return g.checkedAt.Add(minCheckInterval)
	case inDoubt:
		return g.checkedAt.Add(recheckInterval)
	}
	period := min(checkInterval, time.Duration(len(e.gpus))*maxCheckSpacing)
	offset := time.Duration(g.number) * time.Second
	if now.Add(offset).Truncate(period).Equal(g.checkedAt.Add(offset).Truncate(period)) {
		return now.Add(period) // at most
	}
	return now
}

// handleCheck handles the result of a check.
func (e *engine) handleCheck(c checked) {
	g := e.gpus[c.gpu]
	if g == nil || c.seq > g.checksBegun { // the GPU was removed, and maybe added again
		return
	}
	if errors.Is(c.err, device.ErrStalled) { // the check made no call
		if g.stalledSince.IsZero() {
			g.stalledSince = c.startedAt
		}
		return
	}
	g.stalledSince = time.Time{}
	e.addResetCount(g, c)
	if c.err != nil {
		e.addFailedCheck(g, c)
		return
	}
	g.assessed, g.failingSince = true, time.Time{}
	e.addAnswer(g, c)
	if g.listed {
		e.markAll(g, evidence{
			kind: evidenceCheckPassed, startedAt: c.startedAt,
			repairPending: c.evidence.RepairPending,
		})
	}
}

// addAnswer notes that a GPU has answered a check: the driver works. A listing
// follows a fault of the driver.
func (e *engine) addAnswer(g *trackedGPU, c checked) {
	if e.driverErr != nil {
		e.driverEndedAt = e.now
		e.requestList()
	}
	g.answeredAt, e.driverErr, e.driverFailsChecks = c.startedAt, nil, false
}

// addResetCount applies what a check knows about resets.
func (e *engine) addResetCount(g *trackedGPU, c checked) {
	g.resets = max(g.resets, c.evidence.Resets) // a failed check may not know the count
	if c.evidence.EnergyCounter != 0 {
		g.energyCounter = c.evidence.EnergyCounter
	}
	e.markAll(g, evidence{
		kind: evidenceResetCount, check: c.seq, resets: g.resets, energyCounter: c.evidence.EnergyCounter,
	})
	if e.absent.reset(g.gpu, c.evidence.EnergyCounter, e.now) {
		e.needSave(saveSoon)
	}
	if g.resumedAt.IsZero() || c.err != nil && !errors.As(c.err, new(*device.Fault)) {
		return
	}
	// Without an energy counter a reset between release and resume leaves no
	// trace, so a cause from before the resume counts as reset. The GPU has
	// answered: before its first answer, the counter is only unknown.
	for id, s := range g.levels("") {
		if g.energyCounter == 0 && s.cause.EnergyCounter == 0 && !s.cause.notedAt.After(g.resumedAt) {
			e.mark(g, id, s, evidence{kind: evidenceReset})
		}
	}
	g.resumedAt = time.Time{}
}

// addFailedCheck applies a failed check.
func (e *engine) addFailedCheck(g *trackedGPU, c checked) {
	for _, d := range g.migDevices {
		e.mark(g, d.ID, &d.health, evidence{kind: evidenceGPUCheckFailed})
	}
	cause := Cause{FaultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq}
	var f *device.Fault
	switch {
	case errors.As(c.err, &f):
		e.addAnswer(g, c)
		cause.Reason = f.Reason
		cause.Action = f.Action
		cause.NeedsReset = f.NeedsReset
		cause.noFault = f.External
		if !f.External {
			e.decideSeverity(g)
		}
		if f.NeedsReset { // the GPU answered, so all earlier resets are counted
			cause.resetBaseline = new(g.resets)
		}
	case errors.Is(c.err, device.ErrLost):
		cause.Reason, cause.Action = reasonLost, "reboot"
	default:
		e.addUnexplainedFailure(g, c)
		return
	}
	g.failingSince = time.Time{}
	e.markFault(g, cause)
}

// decideSeverity makes recent Xids of undecided severity severe: the GPU has a fault.
func (e *engine) decideSeverity(g *trackedGPU) {
	for i := range g.eventCounters {
		if c := &g.eventCounters[i]; c.Nonfatal && e.now.Sub(c.undecidedAt) <= sourceMatchWindow {
			c.Nonfatal = false
			e.needSave(saveSoon)
		}
	}
}
