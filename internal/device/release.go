package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// driverPhase says whether the Monitor calls the driver.
type driverPhase uint8

const (
	phaseActive   driverPhase = iota
	phaseDraining             // no call is begun any more, and those under way are waited for
	phaseClosing              // the Backend lets go of the driver
	phaseReleased
)

// releaseRequest is what somebody wants of Run.
type releaseRequest struct {
	ctx     context.Context
	release bool
	done    chan<- error // has room for the answer
}

// Release lets go of the driver, so that a GPU can be reset, partitioned or given to
// another driver: all devices turn unhealthy ("released"), no call is begun any more,
// and when none is under way a Backend that is a Closer is closed. It returns when
// that is done. Where calls do not come back before ctx is done, the devices are taken
// up again, and the error says so; where it is the library that does not let go, as soon
// as it has. To be called while Run runs.
func (m *Monitor) Release(ctx context.Context) error { return m.sendReleaseRequest(ctx, true) }

// Resume takes the devices up again after a Release. They turn healthy as after any
// fault, when their checks have passed; a reset that has happened meanwhile counts.
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

// handleReleaseRequest takes an order.
func (m *Monitor) handleReleaseRequest(o releaseRequest, now time.Time) {
	switch {
	case m.pendingRelease.done != nil:
		o.done <- errors.New("the driver is just being released")
	case m.replacedErr != nil:
		o.done <- m.replacedErr
	case m.phase == phaseClosing: // an earlier release was given up, and this is what it left behind
		o.done <- errors.New("the driver has not let go yet")
	case o.release == (m.phase == phaseReleased):
		o.done <- nil
	case o.release:
		m.log.Info("release the driver")
		m.pendingRelease = o
		m.stopCalls("released", now)
	default:
		for _, g := range m.gpus {
			if g.energyCounter == 0 {
				g.resumedAt = now
			}
		}
		m.resume(now)
		o.done <- nil
	}
}

// resume begins anew with what was let go of.
func (m *Monitor) resume(now time.Time) {
	m.log.Info("take the driver up again")
	m.phase, m.nextListAt = phaseActive, now
	m.topology.gpus = nil // they may be connected otherwise now
	for _, g := range m.gpus {
		g.stalledSince = time.Time{} // what hung has come back, or nothing would have been let go of
	}
	m.readers.Resume()
}

// stopCalls has no call begin. What the GPUs' verdicts are afterwards, their checks say.
func (m *Monitor) stopCalls(reason string, now time.Time) {
	m.phase, m.releaseCause = phaseDraining, healthCause{reason: reason, noFault: true}
	m.readers.Pause()
	for _, g := range m.gpus {
		g.setResetBaselines(math.MaxUint64, now) // what comes from now on may be the reset that this is for
		m.markGPUUnhealthy(g, m.releaseCause, now)
	}
}

// isDrained tells whether no call to the driver is under way.
func (m *Monitor) isDrained() bool {
	c, closable := m.backend.(Closer)
	return m.listStartedAt.IsZero() && m.topology.readStartedAt.IsZero() && !m.waitRunning && m.readers.Idle() && (!closable || c.Idle())
}

// advanceRelease takes a release further. It returns an error when Run has to end.
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
			m.backendClosed <- struct{}{}
		})
	case m.pendingRelease.done == nil || m.pendingRelease.ctx.Err() == nil:
	case m.phase == phaseDraining:
		m.phase, m.nextListAt = phaseActive, now
		m.readers.Resume()
		m.replyPendingRelease(fmt.Errorf("release: a call to the driver has not come back: %w", m.pendingRelease.ctx.Err()))
	case m.phase == phaseClosing:
		m.replyPendingRelease(fmt.Errorf("release: the driver's library does not let go: %w", m.pendingRelease.ctx.Err()))
	}
	return nil
}

// finishRelease is called when the Backend was closed. A release that was given up meanwhile
// has nobody who would end it.
func (m *Monitor) finishRelease(now time.Time) {
	if m.pendingRelease.done == nil {
		m.resume(now)
		return
	}
	m.phase = phaseReleased
	m.setDriver(Driver{DriverReleased, errors.New("released")})
	m.replyPendingRelease(nil)
}

func (m *Monitor) replyPendingRelease(err error) {
	if m.pendingRelease.done != nil {
		m.pendingRelease.done <- err
		m.pendingRelease = releaseRequest{}
	}
}
