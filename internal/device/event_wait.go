package device

import (
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	waitTimeout       = 10 * time.Second // for a Wait that does not return, or that keeps failing
	waitRetryInterval = time.Second      // after a failed Wait
)

// eventWait waits for the driver's events. Only outage may be used outside the goroutine of Monitor.Run.
type eventWait struct {
	driverCall[Event]
	// failingSince is the start of the first of the Waits that have hung or failed since the newest success; nil: no Wait has begun.
	failingSince atomic.Pointer[time.Time]
	interrupted  bool // and logged
}

// outage returns how long the driver's events have been interrupted. A Wait takes seconds, so less than waitTimeout is 0.
func (w *eventWait) outage() time.Duration {
	since := w.failingSince.Load()
	if since == nil {
		return 0
	}
	if d := time.Since(*since); d > waitTimeout {
		return d
	}
	return 0
}

// handleResult ends a Wait, and logs a new error.
func (w *eventWait) handleResult(r callResult[Event], log *slog.Logger, now time.Time) {
	w.logError(log, "cannot wait for driver events", r.err)
	if r.err != nil {
		w.end(now, waitRetryInterval)
		return
	}
	w.end(now, 0)
	w.failingSince.Store(nil)
}

// update logs the begin and the end of an interruption, and reports whether the events are interrupted.
func (w *eventWait) update(log *slog.Logger) bool {
	interrupted := w.outage() > 0
	switch {
	case interrupted && !w.interrupted:
		log.Warn("driver events interrupted", "err", w.err)
	case !interrupted && w.interrupted:
		log.Info("driver events resumed")
	}
	w.interrupted = interrupted
	return interrupted
}
