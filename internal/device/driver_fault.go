package device

import (
	"errors"
	"fmt"
	"time"
)

// The reasons of a failed check that names none.
const (
	reasonCheckFailed = "check_failed" // a fault of the GPU
	reasonDriver      = "driver"       // of driver or container: no fault of each GPU
)

const (
	verdictTimeout = 3 * time.Second // after the first failed check of a GPU, for the checks of the others and a listing
	alikeWindow    = 5 * time.Second // between the first failed checks of GPUs that fail at once
)

// innermost returns the text of the innermost error: the driver's code, without the name of the call.
func innermost(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

// addUnexplainedFailure applies a failed check without a fault of the GPU: the GPU, the driver or the container may be the cause. The first
// failure makes checks of all GPUs and a listing due, and their results decide about a later failure.
func (t *deviceTracker) addUnexplainedFailure(g *trackedGPU, c gpuCheckResult, now time.Time) {
	if g.failure.code = innermost(c.err); g.failure.since.IsZero() {
		g.failure.since, t.listingDue = now, true
		for _, o := range t.gpus {
			o.checkNow = o.checkNow || o.failure.since.IsZero()
		}
	}
	reason := t.explain(g, c.err, now)
	cause := HealthCause{Reason: reason, noFault: reason == reasonDriver, FaultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq}
	switch {
	case reason == "":
		t.apply(g, "", &g.health, evidence{kind: evidenceReport}, now)
		g.checkDeadline = now.Add(firstCheckTimeout)
		return
	case cause.noFault:
		t.driverErr = fmt.Errorf("calls to all GPUs fail: %w", c.err)
	}
	if t.addGPUFault(g, evidence{cause: cause}, now).newCause && cause.isFault() {
		t.log.Warn("check failed", "gpu", g.gpu, "err", c.err)
	}
}

// explain returns the reason of a failed check, empty: not decided yet. The driver fails if listings fail, or if checks of several GPUs began to fail at once,
// with the same code, and none passes. Without another GPU, a code that is never about a GPU decides.
func (t *deviceTracker) explain(g *trackedGPU, err error, now time.Time) (reason string) {
	since := g.failure.since
	waited, listed := now.Sub(since), !t.listingBegan.Before(since)
	switch {
	case waited < recheckInterval:
		return ""
	case errors.Is(err, ErrNoDriver) || listed && t.listingFailed:
		return reasonDriver
	}
	alike, answered := 1, listed
	for _, o := range t.gpus {
		switch {
		case !o.listed || o == g:
		case !o.answeredAt.Before(since) && g.health.cause.Reason == reasonDriver: // the driver works again: this check may have begun before
			g.failure.since = now
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

// checkRestart returns ErrRestart if the driver of known GPUs has failed for RestartAfter, doubled by each restart since the driver last
// worked. The number of restarts is on disk before: without it, restarts could follow each other closely.
func (m *Monitor) checkRestart(now time.Time) error {
	t, d, lasting := m.tracker, m.Driver(), now.Sub(m.driverSince)
	known := t.driverErr != nil || len(t.gpus) == 0 && len(t.absentRecords) > 0
	switch {
	case d.State == DriverUp && t.restarts > 0 && lasting >= restartResetTime:
		t.restarts, t.historyChanged = 0, true
	case d.State != DriverFailing || m.phase != phaseActive || t.options.RestartAfter == 0 || !known:
		m.restarting = false
	case !m.restarting && lasting >= max(t.options.RestartAfter, min(t.options.RestartAfter<<min(t.restarts, 10), maxRestartPause)):
		t.restarts++
		m.restarting, t.historyChanged, t.historyUrgent = true, true, true
	case m.restarting && (t.options.Store == nil || t.savedHistory != nil && t.savedHistory.DriverRestarts == t.restarts):
		return fmt.Errorf("%w: %w", ErrRestart, d.Err)
	}
	return nil
}
