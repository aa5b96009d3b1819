package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

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
func (e *engine) addUnexplainedFailure(g *trackedGPU, c checked) {
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
	cause := Cause{
		Reason: reason, noFault: reason == reasonDriver,
		FaultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq,
	}
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
