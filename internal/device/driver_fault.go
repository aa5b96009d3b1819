package device

import (
	"errors"
	"fmt"
	"time"
)

// The reasons of a failed check without an own reason.
const (
	reasonCheckFailed = "check_failed" // a fault of the GPU
	reasonDriver      = "driver"       // of driver or container: no fault of each GPU
)

const (
	verdictTimeout = 3 * time.Second // after a GPU's first failed check, for the others' checks and a listing
	alikeWindow    = 5 * time.Second // between the first failed checks of GPUs that fail at once
)

// innermost returns the text of the innermost error: the driver's code, without
// the name of the call.
func innermost(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

// addUnexplainedFailure applies a failed check without a fault of the GPU: the
// GPU, the driver or the container may be the cause. The first failure makes
// checks of all GPUs and a listing due, and the results decide about a later
// failure.
func (e *engine) addUnexplainedFailure(g *trackedGPU, c checked) {
	if g.failure.code = innermost(c.err); g.failure.since.IsZero() {
		g.failure.since = e.now
		e.requestList()
		for _, o := range e.gpus {
			o.checkNow = o.checkNow || o.failure.since.IsZero()
		}
	}
	reason := e.explain(g, c.err)
	if reason == "" {
		e.mark(g, "", &g.health, evidence{kind: evidenceReport})
		g.checkDeadline = e.now.Add(firstCheckTimeout)
		return
	}
	cause := HealthCause{
		Reason: reason, noFault: reason == reasonDriver,
		FaultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq,
	}
	if cause.noFault && e.driverErr == nil {
		e.driverErr = fmt.Errorf("calls to all GPUs fail: %w", c.err)
		if e.driver.State == DriverUp { // otherwise, the next listing decides
			e.setDriver(DriverFailing, e.driverErr)
		}
	}
	if e.markFault(g, cause) && cause.isFault() {
		e.log.Warn("check failed", "gpu", g.gpu, "err", c.err)
	}
}

// explain returns the reason of a failed check, empty: not decided yet. The
// driver fails if listings fail, or if checks of several GPUs began to fail at
// once with the same code and none passes. For a single GPU, a code about the
// whole driver decides.
func (e *engine) explain(g *trackedGPU, err error) (reason string) {
	since := g.failure.since
	waited, listed := e.now.Sub(since), !e.listingBegan.Before(since)
	switch {
	case waited < recheckInterval:
		return ""
	case errors.Is(err, ErrNoDriver) || listed && e.listingFailed:
		return reasonDriver
	}
	alike, answered := 1, listed
	for _, o := range e.gpus {
		switch {
		case !o.listed || o == g:
		case !o.answeredAt.Before(since) && since.Before(e.driverEndedAt) &&
			g.health.cause.Reason == reasonDriver:
			// The driver works again; the check may have begun before. A later
			// failed check decides.
			g.failure.since = e.now
			return ""
		case !o.answeredAt.Before(since):
			return reasonCheckFailed
		case o.failure.code == g.failure.code && o.failure.since.Sub(since).Abs() <= alikeWindow:
			alike++
		case o.failure.since.IsZero() && o.health.cause.Reason != reasonLost:
			answered = false
		}
	}
	switch {
	case !answered && waited < verdictTimeout:
		return ""
	case alike > 1 || errors.Is(err, ErrDriverFault):
		return reasonDriver
	}
	return reasonCheckFailed
}

const (
	maxRestartPause  = time.Hour
	restartResetTime = 10 * time.Minute // of a working driver, until the pause is RestartAfter again
)

// checkRestart ends Run with ErrRestart if the driver of known GPUs has failed
// for RestartAfter, doubled by each restart since the driver last worked. The
// number of restarts is on disk before; otherwise restarts could follow each
// other closely.
func (e *engine) checkRestart(stored bool) {
	after, lasting := e.options.RestartAfter, e.now.Sub(e.driverSince)
	known := e.driverErr != nil || len(e.gpus) == 0 && len(e.absent) > 0
	switch {
	case e.driver.State == DriverUp && e.restarts > 0 && lasting >= restartResetTime:
		e.restarts = 0
		e.needSave(saveSoon)
	case e.driver.State != DriverFailing || e.phase != phaseActive || after == 0 || !known:
		e.restarting = false
	case !e.restarting && lasting >= max(after, min(after<<min(e.restarts, 10), maxRestartPause)):
		e.restarts++
		e.restarting = true
		e.needSave(saveNow) // the tick saves this, and the next one looks whether it is stored
	case e.restarting && stored:
		e.emit(end{fmt.Errorf("%w: %w", ErrRestart, e.driver.Err)})
	}
}
