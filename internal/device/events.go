package device

import (
	"context"
	"log/slog"
	"math"
	"time"
)

// The witnesses of a tally.
const (
	sourceDriver = iota // the driver
	sourceKernel        // who calls Report
)

// EventOutage returns for how long the driver's events have not been heard, because a Wait does
// not come back or each one fails; 0 while they are. A Wait takes seconds, so less than
// waitTimeout is none. What events would say, checks find out later, and counts of Xids
// stand still meanwhile, but for what a second witness tells.
func (m *Monitor) EventOutage() time.Duration {
	since := m.waitFailingSince.Load()
	if since == nil {
		return 0
	}
	if d := time.Since(*since); d > waitTimeout {
		return d
	}
	return 0
}

func (m *Monitor) handleWaitResult(r eventWaitResult, now time.Time) {
	m.waitRunning = false
	if was := m.waitErr; errorText(r.err) != was {
		m.waitErr = errorText(r.err)
		m.log.Warn("wait for driver events", "was", was, "err", r.err)
	}
	if r.err != nil {
		m.nextWaitAt = now.Add(waitRetryInterval)
		m.requestChecks()
		return
	}
	m.waitFailingSince.Store(nil)
	if r.event != (Event{}) {
		m.handleEvent(r.event, sourceDriver, now, now)
	}
}

// handleEvent takes a report by a witness, of a time. One of a kind that is known, in a storm of them,
// costs no memory but that of whoever is told (TestAReportCostsNoMemory).
func (m *Monitor) handleEvent(e Event, source int, at, now time.Time) {
	g := m.gpus[e.GPU]
	if g == nil {
		if m.unknownGPULimiter.allow("", xidReason(e.Xid), now) {
			m.log.Warn("driver event names no known GPU, asking each", "gpu", e.GPU, "xid", e.Xid)
		}
		m.requestChecks()
		return
	}
	if e.PartitionChanged {
		m.log.Info("GPU is partitioned", "gpu", e.GPU)
		m.requestList(now)
	}
	if e.Xid == 0 && e.Kind == "" {
		return
	}
	counter := g.eventCounter(e)
	if counter == nil { // nobody counts so many kinds
		counter = &eventCounter{reason: e.reason()}
	}
	m.countsChanged = true
	if e.Historical {
		counter.LastHistorical = latest(counter.LastHistorical, at)
	} else if !counter.record(source, at, now, m.lastOutageAt) {
		return
	}
	g.countsChanged = true
	policy := m.policyFor(e)
	if policy == PolicyIgnore {
		return
	}
	byPolicy := false
	if !e.Historical {
		byPolicy = policy.apply(&e)
	}
	if g.limiter.allow(e.Device, counter.reason, now) {
		level := slog.LevelInfo
		if policy == PolicyWarn {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "driver event", "gpu", e.GPU, "device", e.Device, "xid", e.Xid, "kind", e.Kind,
			"fatal", e.Recovery == RecoveryAfterReset, "action", e.Action, "count", counter.Count)
	}
	o := HealthEvent{
		At: at, GPU: e.GPU, Affected: m.affected(g, e.Device), Xid: e.Xid, Reason: counter.reason, Class: e.Class, Action: e.Action, Source: e.Source, Historical: e.Historical,
	}
	switch s := m.healthStateOf(g, e.Device); e.Recovery {
	case RecoveryAfterReset:
		o.MarkedUnhealthy = m.markUnhealthy(g, s, healthCause{
			reason: counter.reason, action: e.Action, class: e.Class, needsReset: true, byPolicy: byPolicy, faultAt: now, notedAt: now, checksBegun: g.checksBegun,
		}, now)
		if s.cause.reason == counter.reason {
			o.Action = s.cause.action
		}
	case RecoveryChecksPass:
		s.markSuspect()
	}
	m.notifyHealthEvent(o)
	g.checkNow = true // what the event means may stand elsewhere, and be read by a check
}

// healthStateOf is whose a fault is: the slice's that is named, or the GPU's with all that it has.
func (m *Monitor) healthStateOf(g *trackedGPU, id ID) *healthState {
	if d := g.migDevice(id); d != nil {
		return &d.state
	}
	return &g.healthState
}

// affected are the devices that a fault concerns. They must not be changed.
func (m *Monitor) affected(g *trackedGPU, id ID) []Device {
	if d := g.migDevice(id); d != nil {
		return d.affected
	}
	return g.affected
}

// notifyHealthEvent passes an occurrence on.
func (m *Monitor) notifyHealthEvent(o HealthEvent) {
	if m.options.OnHealthEvent != nil {
		m.options.OnHealthEvent(o)
	}
}

// markUnhealthy takes evidence to the condition of a GPU or a slice of it, and tells whether the
// verdict is a new one.
func (m *Monitor) markUnhealthy(g *trackedGPU, s *healthState, v healthCause, now time.Time) bool {
	if s == &g.healthState {
		g.assessed = true // it also is an answer to the question how the GPU is
	}
	previous := s.cause.reason
	isNew, updated := s.markUnhealthy(v, now)
	if m.phase != phaseActive { // the reset that it asks for may come before the next check
		s.setResetBaseline(math.MaxUint64, g.resets, now)
	}
	m.historyChanged = m.historyChanged || isNew && !v.noFault || updated
	if !isNew {
		return false
	}
	m.log.Info("health", "gpu", g.gpu, "was", previous, "is", v.reason, "action", s.cause.action, "flaps", s.flaps)
	return true
}

// markGPUUnhealthy condemns a GPU for what was found out about it, and not reported.
func (m *Monitor) markGPUUnhealthy(g *trackedGPU, v healthCause, now time.Time) {
	if m.markUnhealthy(g, &g.healthState, v, now) && !v.noFault {
		m.notifyHealthEvent(HealthEvent{At: now, GPU: g.gpu, Affected: g.affected, Reason: v.reason, Action: g.cause.action, MarkedUnhealthy: true})
	}
}

// requestChecks makes every GPU due: something is wrong, and nobody is to blame yet.
func (m *Monitor) requestChecks() {
	for _, g := range m.gpus {
		g.checkNow = true
	}
}

// updateEventOutage says once that the driver's events are not heard, and once that they are
// again.
func (m *Monitor) updateEventOutage(now time.Time) {
	outage := m.EventOutage() > 0
	switch {
	case outage && !m.inEventOutage:
		m.log.Warn("driver events are not heard: a wait does not come back, or each one fails", "err", m.waitErr)
	case !outage && m.inEventOutage:
		m.log.Info("driver events are heard again")
	}
	m.inEventOutage = outage
	if outage {
		m.lastOutageAt = now
	}
}
