package health

import (
	"cmp"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
)

func newEngine(o Options) *engine {
	o.UnhealthyTimeout = cmp.Or(o.UnhealthyTimeout, defaultUnhealthyTimeout)
	return &engine{
		options: o, log: o.Log, limiter: loglimit.New[[3]string](logInterval),
		gpus: map[device.GPU]*trackedGPU{},
	}
}

// apply applies an event, and returns the effects in order.
func (e *engine) apply(ev event, now time.Time) []effect {
	e.now, e.effects = now, nil
	if e.startedAt.IsZero() {
		e.load()
	}
	switch ev := ev.(type) {
	case tick:
		e.tick(ev)
		return e.effects // a second save would come before the first
	case listed:
		e.handleListing(ev.devices, ev.err)
	case linksRead:
		e.handleLinks(ev.links, ev.err)
	case waited:
		e.handleWait(ev.event, ev.err)
	case reported:
		for range ev.count {
			e.report(ev.event, ev.at)
		}
	case checked:
		e.handleCheck(ev)
		e.decideTrust(ev)
	case request:
		e.handleRequest(ev)
	case closed:
		e.finishRelease()
	case stopped:
		e.stop(ev.cause)
	}
	e.saveIfDue()
	return e.effects
}

// tick derives, saves and publishes the results of the events, and starts the
// calls that are due.
func (e *engine) tick(t tick) {
	e.calls = t.calls
	e.detectStalls()
	e.checkRestart(t.stored)
	e.removeExpired()
	e.applyRetirements()
	e.saveIfDue()
	e.publish()
	e.publishMissing()
	e.answerRequests()
	e.advanceRelease(t.idle)
	if e.phase == phaseActive {
		e.startCalls()
		e.startChecks()
	}
}

// due returns the time of the next tick without an event: a whole second, unless
// a device is in doubt or a call hangs.
func (e *engine) due(now time.Time) time.Time {
	due := now.Add(retry.Aligned(time.Second))
	until := func(at time.Time, needed bool) {
		if needed && at.Before(due) {
			due = at
		}
	}
	for gpu, g := range e.gpus {
		hangs := e.calls[gpu].busy >= hangSuspectTimeout
		until(e.checkDue(g, now), e.phase == phaseActive && !hangs)
		until(now.Add(callPollInterval), hangs)
	}
	until(now.Add(callPollInterval), e.phase == phaseDraining || e.phase == phaseClosing)
	until(e.savedAt.Add(saveInterval), e.unsaved != saved)
	return latest(due, now.Add(minCheckInterval)) // a check that cannot begin stays due
}

// stop ends all requests and saves the history.
func (e *engine) stop(cause error) {
	e.endRelease(cmp.Or(cause, errStopped))
	for _, r := range e.waiting {
		r.err = cmp.Or(r.err, errStopped)
		e.emit(reply{r.replyTo, r.requestEnd})
	}
	e.save()
}
