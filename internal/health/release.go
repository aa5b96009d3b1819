package health

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func (e *engine) handleRelease(r request) {
	var err error
	switch {
	case e.release != nil:
		err = errors.New("a release is in progress")
	case e.replacedErr != nil:
		err = e.replacedErr
	case e.phase == phaseClosing: // left by a release that timed out
		err = errors.New("the driver's library is still being unloaded")
	case (r.action == actionRelease) == (e.phase == phaseReleased): // already so
	case r.action == actionRelease:
		e.log.Info("releasing driver")
		e.release = &r
		e.stopCalls("released")
		return
	default:
		for _, g := range e.gpus {
			if g.energyCounter == 0 {
				g.resumedAt = e.now
			}
		}
		e.resume()
	}
	e.emit(reply{r.replyTo, requestEnd{err: err}})
}

// stopCalls prevents new calls, and marks all devices unhealthy until their
// checks pass after resume. The cause is no fault.
func (e *engine) stopCalls(reason string) {
	e.phase = phaseDraining
	e.emit(pause(true))
	e.released = Cause{Reason: reason, noFault: true}
	for _, g := range e.gpus {
		// Resets from now on count.
		e.markAll(g, evidence{kind: evidenceResetCount, check: math.MaxUint64, resets: g.resets})
		e.markFault(g, e.released)
	}
}

// startCallsAgain ends the release.
func (e *engine) startCallsAgain() {
	e.phase, e.released = phaseActive, Cause{}
	e.requestList()
	e.emit(pause(false))
}

// resume calls the driver again after Close.
func (e *engine) resume() {
	e.log.Info("resuming driver")
	e.links.gpus = nil // the links may have changed
	for _, g := range e.gpus {
		// No call hangs or fails after Close.
		g.stalledSince = time.Time{}
		g.failingSince = time.Time{}
		g.xidsOverAt = e.now
	}
	e.startCallsAgain()
}

// advanceRelease moves a release to the next phase. Idle: no call about a GPU
// runs.
func (e *engine) advanceRelease(idle bool) {
	drained := idle && !e.list.running() && !e.links.running() && !e.wait.running()
	timedOut := e.release != nil && e.release.ctx.Err() != nil
	switch {
	case e.phase == phaseDraining && drained && e.replacedErr != nil:
		e.emit(end{e.replacedErr})
	case e.phase == phaseDraining && drained:
		e.phase = phaseClosing
		e.emit(closeBackend{})
	case e.phase == phaseDraining && timedOut:
		e.startCallsAgain()
		e.endRelease(fmt.Errorf("wait for driver calls: %w", e.release.ctx.Err()))
	case e.phase == phaseClosing && timedOut:
		e.endRelease(fmt.Errorf("unload the driver's library: %w", e.release.ctx.Err()))
	}
}

// finishRelease ends the release after Close. If the release has timed out, the
// driver is resumed.
func (e *engine) finishRelease() {
	if e.release == nil {
		e.resume()
		return
	}
	e.phase = phaseReleased
	e.setDriver(device.DriverReleased, errors.New("released"))
	e.endRelease(nil)
}

// endRelease answers the release in progress, if there is one.
func (e *engine) endRelease(err error) {
	if e.release != nil {
		e.emit(reply{e.release.replyTo, requestEnd{err: err}})
		e.release = nil
	}
}
