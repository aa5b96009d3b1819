package device

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// driverPhase is whether the Monitor calls the driver.
type driverPhase uint8

const (
	phaseActive   driverPhase = iota
	phaseDraining             // no call begins; running calls are awaited
	phaseClosing              // the Backend releases the driver
	phaseReleased
)

// releaseRequest is a call of Release or Resume.
type releaseRequest struct {
	ctx     context.Context
	release bool
	done    chan<- error // buffered
}

// Release releases the driver, for a reset, a new MIG layout or another driver. All devices turn unhealthy ("released"), and after the last
// call a Backend that is a Closer is closed.
//
// Release returns when the driver is released. If calls do not return before ctx is done, the devices are resumed and Release returns
// an error. If Close does not return before ctx is done, Release returns an error, and the devices are resumed after Close.
// Release and Resume require a running Run.
func (m *Monitor) Release(ctx context.Context) error { return m.sendReleaseRequest(ctx, true) }

// Resume ends a Release. Devices recover when their checks pass, and a reset in between counts.
func (m *Monitor) Resume(ctx context.Context) error { return m.sendReleaseRequest(ctx, false) }

func (m *Monitor) sendReleaseRequest(ctx context.Context, release bool) error {
	done := make(chan error, 1)
	select {
	case m.releaseRequests <- releaseRequest{ctx, release, done}:
		return <-done
	case <-ctx.Done():
		return fmt.Errorf("release or resume: %w", ctx.Err())
	}
}

func (m *Monitor) handleReleaseRequest(r releaseRequest, now time.Time) {
	switch {
	case m.pendingRelease.done != nil:
		r.done <- errors.New("a release is in progress")
	case m.replacedErr != nil:
		r.done <- m.replacedErr
	case m.phase == phaseClosing: // left by a release that timed out
		r.done <- errors.New("the driver's library is still being unloaded")
	case r.release == (m.phase == phaseReleased):
		r.done <- nil
	case r.release:
		m.log.Info("releasing driver")
		m.pendingRelease = r
		m.stopCalls("released", now)
	default:
		for _, g := range m.engine.gpus {
			if g.energyCounter == 0 {
				g.resumedAt = now
			}
		}
		m.resume(now)
		r.done <- nil
	}
}

// resume calls the driver again after Close.
func (m *Monitor) resume(now time.Time) {
	m.log.Info("resuming driver")
	m.topology.gpus = nil // the links may have changed
	for _, g := range m.engine.gpus {
		g.stalledSince, g.failure = time.Time{}, checkFailure{} // no call hangs or fails after Close
		g.xidsOverAt = now
	}
	m.startCallsAgain(now)
}

func (m *Monitor) startCallsAgain(now time.Time) {
	m.phase, m.list.nextAt, m.engine.released = phaseActive, now, HealthCause{}
	m.readers.SetPaused(false)
}

// stopCalls prevents new calls and marks all devices unhealthy with a reason.
func (m *Monitor) stopCalls(reason string, now time.Time) {
	m.phase = phaseDraining
	m.readers.SetPaused(true)
	m.engine.release(reason, now)
}

// isDrained reports whether no call to the driver runs.
func (m *Monitor) isDrained() bool {
	c, closable := m.backend.(Closer)
	return !m.list.running() && !m.topology.running() && !m.wait.running() && m.readers.Idle() && (!closable || c.Idle())
}

// advanceRelease moves a release to the next phase. It returns an error if Run must end.
func (m *Monitor) advanceRelease(now time.Time) error {
	switch {
	case m.phase == phaseDraining && m.isDrained() && m.replacedErr != nil:
		return m.replacedErr
	case m.phase == phaseDraining && m.isDrained():
		m.phase = phaseClosing
		m.calls.Go(func() {
			if c, ok := m.backend.(Closer); ok {
				c.Close()
			}
			m.results <- m.finishRelease
		})
	case m.pendingRelease.done == nil || m.pendingRelease.ctx.Err() == nil:
	case m.phase == phaseDraining:
		m.startCallsAgain(now)
		m.endRelease(fmt.Errorf("wait for driver calls: %w", m.pendingRelease.ctx.Err()))
	case m.phase == phaseClosing:
		m.endRelease(fmt.Errorf("unload the driver's library: %w", m.pendingRelease.ctx.Err()))
	}
	return nil
}

// finishRelease ends the release after Close. If the release has timed out, the driver is resumed.
func (m *Monitor) finishRelease(now time.Time) {
	if m.pendingRelease.done == nil {
		m.resume(now)
		return
	}
	m.phase = phaseReleased
	m.setDriver(DriverReleased, errors.New("released"))
	m.endRelease(nil)
}

func (m *Monitor) endRelease(err error) {
	if m.pendingRelease.done != nil {
		m.pendingRelease.done <- err
		m.pendingRelease = releaseRequest{}
	}
}
