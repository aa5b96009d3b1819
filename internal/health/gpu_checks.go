package health

import (
	"errors"
	"fmt"
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
		e.addUnexplainedFailure(g, c, cause)
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

// ErrRestart is the error of Run if the driver fails for long: a new container
// may have access.
var ErrRestart = errors.New("exiting, so that the kubelet restarts the container: the driver fails")

const (
	verdictTimeout = 3 * time.Second // after a GPU's first failed check, for the others' checks and a listing
	alikeWindow    = 5 * time.Second // between the first failed checks of GPUs that fail at once
)

// addUnexplainedFailure applies a failed check without a fault of the GPU: the
// GPU, the driver or the container may be the cause. The first failure makes
// checks of all GPUs and a listing due, and the results decide about a later
// failure.
func (e *engine) addUnexplainedFailure(g *trackedGPU, c checked, cause Cause) {
	g.failure = c.err
	if g.failingSince.IsZero() {
		g.failingSince = e.now
		e.requestList()
		for _, o := range e.gpus {
			o.checkNow = o.checkNow || o.failingSince.IsZero()
		}
	}
	reason := e.explain(g, c.err)
	if reason == "" {
		e.mark(g, "", &g.health, evidence{kind: evidenceReport})
		g.checkDeadline = e.now.Add(firstCheckTimeout)
		return
	}
	cause.Reason, cause.noFault = reason, reason == reasonDriver
	if cause.noFault && e.driverErr == nil {
		e.driverErr = fmt.Errorf("calls to all GPUs fail: %w", c.err)
		if e.driver.State == device.DriverUp { // otherwise, the next listing decides
			e.setDriver(device.DriverFailing, e.driverErr)
		}
	}
	if e.markFault(g, cause) && cause.isFault() {
		e.log.Warn("check failed", "gpu", g.gpu, "err", c.err)
	}
}

// explain returns the reason of a failed check, empty: not decided yet. The
// driver fails if listings fail, or if no check passes and the GPU began to fail
// at once with others: two with the same code, or one with an error about the
// whole driver. For a single GPU, such an error decides. The driver then fails
// until a GPU answers, also with other codes.
func (e *engine) explain(g *trackedGPU, err error) (reason string) {
	since := g.failingSince
	waited, listed := e.now.Sub(since), !e.listingBegan.Before(since)
	switch {
	case waited < recheckInterval:
		return ""
	case errors.Is(err, device.ErrNoDriver) || listed && e.listingFailed:
		return reasonDriver
	}
	codes, answered := map[string]bool{innermost(err): true}, listed
	isDriver := e.driverFailsChecks || errors.Is(err, device.ErrDriverFault)
	for _, o := range e.gpus {
		switch {
		case !o.listed || o == g:
		case !o.answeredAt.Before(since) && since.Before(e.driverEndedAt) &&
			g.health.cause.Reason == reasonDriver:
			// The driver works again; the check may have begun before. A later
			// failed check decides.
			g.failingSince = e.now
			return ""
		case !o.answeredAt.Before(since):
			return reasonCheckFailed
		case o.failingSince.IsZero():
			answered = answered && o.health.cause.Reason == reasonLost
		case o.failingSince.Sub(since).Abs() <= alikeWindow:
			code := innermost(o.failure)
			isDriver = isDriver || codes[code] || errors.Is(o.failure, device.ErrDriverFault)
			codes[code] = true
		}
	}
	switch {
	case !answered && waited < verdictTimeout:
		return ""
	case isDriver:
		e.driverFailsChecks = true
		return reasonDriver
	}
	return reasonCheckFailed
}

// innermost returns the text of the innermost error: the driver's code, without
// the name of the call.
func innermost(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

const (
	maxRestartPause  = time.Hour
	restartResetTime = 10 * time.Minute // of a working driver, until the pause is RestartAfter again
)

// checkRestart ends Run with ErrRestart if the driver of known GPUs has failed
// for RestartAfter, doubled by each restart since the driver last worked. The
// number of restarts is on disk before: otherwise restarts could follow each
// other closely, and what is only in memory would be lost.
func (e *engine) checkRestart(stored bool) {
	after, lasting := e.options.RestartAfter, e.now.Sub(e.driverSince)
	known := e.driverErr != nil || len(e.gpus) == 0 && len(e.absent) > 0
	switch {
	case e.driver.State == device.DriverUp && e.restarts > 0 && lasting >= restartResetTime:
		e.restarts = 0
		e.needSave(saveSoon)
	case e.driver.State != device.DriverFailing || e.phase != phaseActive || after == 0 || !known:
		e.restarting = false
	case !e.restarting && lasting >= max(after, min(after<<min(e.restarts, 10), maxRestartPause)):
		e.restarts++
		e.restarting = true
		e.needSave(saveNow) // by this tick; the next one looks whether it is stored
	case e.restarting && stored:
		e.emit(end{fmt.Errorf("%w: %w", ErrRestart, e.driver.Err)})
	}
}
