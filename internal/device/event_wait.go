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

// eventWait is the state of waiting for the driver's events. All fields but failingSince belong to the goroutine of Monitor.Run.
type eventWait struct {
	// failingSince is the start of the first of the Waits that have hung or failed since the newest success; nil: no Wait has begun.
	failingSince atomic.Pointer[time.Time]
	results      chan eventWaitResult
	running      bool
	nextAt       time.Time
	err          string // of the newest Wait; logged once
	interrupted  bool   // and logged
}

type eventWaitResult struct {
	event Event
	err   error
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

// begin reports whether to start a Wait, which sends its result to results.
func (w *eventWait) begin(now time.Time) bool {
	if w.running || now.Before(w.nextAt) {
		return false
	}
	w.running = true
	if w.failingSince.Load() == nil {
		w.failingSince.Store(&now)
	}
	return true
}

// end handles the error of a Wait.
func (w *eventWait) end(err error, log *slog.Logger, now time.Time) {
	w.running = false
	if previous := w.err; errorText(err) != previous {
		w.err = errorText(err)
		log.Warn("wait for driver events", "was", previous, "err", err)
	}
	if err != nil {
		w.nextAt = now.Add(waitRetryInterval)
		return
	}
	w.failingSince.Store(nil)
}

// update logs the begin and the end of an interruption, and reports whether the events are interrupted.
func (w *eventWait) update(log *slog.Logger) bool {
	interrupted := w.outage() > 0
	switch {
	case interrupted && !w.interrupted:
		log.Warn("driver events are not heard: a wait does not come back, or each one fails", "err", w.err)
	case !interrupted && w.interrupted:
		log.Info("driver events are heard again")
	}
	w.interrupted = interrupted
	return interrupted
}
