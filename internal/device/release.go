package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// phase says whether the Monitor calls the driver.
type phase uint8

const (
	working phase = iota
	leaving       // no call is begun any more, and those under way are waited for
	closing       // the Backend lets go of the driver
	away
)

// order is what somebody wants of Run.
type order struct {
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
func (m *Monitor) Release(ctx context.Context) error { return m.order(ctx, true) }

// Resume takes the devices up again after a Release. They turn healthy as after any
// fault, when their checks have passed; a reset that has happened meanwhile counts.
func (m *Monitor) Resume(ctx context.Context) error { return m.order(ctx, false) }

func (m *Monitor) order(ctx context.Context, release bool) error {
	done := make(chan error, 1)
	select {
	case m.orders <- order{ctx, release, done}:
		return <-done
	case <-ctx.Done():
		return fmt.Errorf("release or resume: %w", ctx.Err())
	}
}

// obey takes an order.
func (m *Monitor) obey(o order, now time.Time) {
	switch {
	case m.pending.done != nil:
		o.done <- errors.New("the driver is just being released")
	case m.replaced != nil:
		o.done <- m.replaced
	case m.phase == closing: // an earlier release was given up, and this is what it left behind
		o.done <- errors.New("the driver has not let go yet")
	case o.release == (m.phase == away):
		o.done <- nil
	case o.release:
		m.log.Info("release the driver")
		m.pending = o
		m.leave("released", now)
	default:
		for _, p := range m.patients {
			if p.odometer == 0 {
				p.resumed = now
			}
		}
		m.takeUp(now)
		o.done <- nil
	}
}

// takeUp begins anew with what was let go of.
func (m *Monitor) takeUp(now time.Time) {
	m.log.Info("take the driver up again")
	m.phase, m.listNext = working, now
	m.wiring.gpus = nil // they may be connected otherwise now
	for _, p := range m.patients {
		p.silent = time.Time{} // what hung has come back, or nothing would have been let go of
	}
	m.readers.Resume()
}

// leave has no call begin. What the GPUs' verdicts are afterwards, their checks say.
func (m *Monitor) leave(reason string, now time.Time) {
	m.phase, m.away = leaving, verdict{reason: reason, quiet: true}
	m.readers.Pause()
	for _, p := range m.patients {
		p.baseline(math.MaxUint64, now) // what comes from now on may be the reset that this is for
		m.find(p, m.away, now)
	}
}

// drained tells whether no call to the driver is under way.
func (m *Monitor) drained() bool {
	idler, lingers := m.backend.(Idler)
	return m.listSince.IsZero() && m.wiring.since.IsZero() && !m.waiting && m.readers.Idle() && (!lingers || idler.Idle())
}

// goOn takes a release further. It returns an error when Run has to end.
func (m *Monitor) goOn(now time.Time) error {
	switch {
	case m.phase == leaving && m.drained() && m.replaced != nil:
		return m.replaced
	case m.phase == leaving && m.drained():
		m.phase = closing
		m.calls.Go(func() {
			if c, ok := m.backend.(Closer); ok {
				c.Close()
			}
			m.closed <- struct{}{}
		})
	case m.pending.done == nil || m.pending.ctx.Err() == nil:
	case m.phase == leaving:
		m.phase, m.listNext = working, now
		m.readers.Resume()
		m.answerPending(fmt.Errorf("release: a call to the driver has not come back: %w", m.pending.ctx.Err()))
	case m.phase == closing:
		m.answerPending(fmt.Errorf("release: the driver's library does not let go: %w", m.pending.ctx.Err()))
	}
	return nil
}

// released is called when the Backend was closed. A release that was given up meanwhile
// has nobody who would end it.
func (m *Monitor) released(now time.Time) {
	if m.pending.done == nil {
		m.takeUp(now)
		return
	}
	m.phase = away
	m.setDriver(Driver{DriverReleased, errors.New("released")})
	m.answerPending(nil)
}

func (m *Monitor) answerPending(err error) {
	if m.pending.done != nil {
		m.pending.done <- err
		m.pending = order{}
	}
}
