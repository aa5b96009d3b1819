package device

import "time"

// Deaf returns for how long the driver's events have not been heard, because a Wait does
// not come back or each one fails; 0 while they are. A Wait takes seconds, so less than
// deafAfter is none. What events would say, checks find out later, and counts of Xids
// stand still meanwhile.
func (m *Monitor) Deaf() time.Duration {
	since := m.deafSince.Load()
	if since == nil {
		return 0
	}
	if d := time.Since(*since); d > deafAfter {
		return d
	}
	return 0
}

func (m *Monitor) reported(r report, now time.Time) {
	m.waiting = false
	if was := m.waitErr; errText(r.err) != was {
		m.waitErr = errText(r.err)
		m.log.Warn("wait for driver events", "was", was, "err", r.err)
	}
	if r.err != nil {
		m.waitNext = now.Add(waitAgainAfter)
		m.checkAll()
		return
	}
	m.deafSince.Store(nil)
	e := r.event
	if e == (Event{}) {
		return
	}
	p := m.patients[e.GPU]
	if p == nil {
		if m.strangers.due("", e.Xid, now) {
			m.log.Warn("driver event names no known GPU, asking each", "gpu", e.GPU, "xid", e.Xid)
		}
		m.checkAll()
		return
	}
	if e.Partitioned {
		m.log.Info("GPU is partitioned", "gpu", e.GPU)
		m.list(now)
	}
	if e.Xid == 0 {
		return
	}
	if m.Fatal != nil {
		if m.Fatal(e.Xid, e.Heals == ByReset) {
			e.Heals = ByReset
		} else {
			e.Heals = ByItself
		}
	}
	count := p.count(e.Xid, now)
	if p.said.due(e.Device, e.Xid, now) {
		m.log.Info("driver event", "gpu", e.GPU, "device", e.Device, "xid", e.Xid, "fatal", e.Heals == ByReset, "action", e.Action, "count", count)
	}
	if e.Heals == ByReset {
		m.condemn(p, e, now)
	}
	p.urgent = true // what the event means may stand elsewhere, and be read by a check
}

// condemn takes a fault to whom it hit: to the slice that the event names, or to the
// GPU with all that it has.
func (m *Monitor) condemn(p *patient, e Event, now time.Time) {
	v := verdict{reason: xidReason(e.Xid), action: e.Action, byReset: true, at: now, checks: p.checks}
	if w := m.ward(e.Device); w != nil && w.patient == p && !w.WholeGPU() {
		w.own.condemn(v)
		return
	}
	p.condemn(v)
}

// checkAll makes every GPU due: something is wrong, and nobody is to blame yet.
func (m *Monitor) checkAll() {
	for _, p := range m.patients {
		p.urgent = true
	}
}

// judgeHearing says once that the driver's events are not heard, and once that they are
// again.
func (m *Monitor) judgeHearing() {
	is := m.Deaf() > 0
	switch {
	case is && !m.deaf:
		m.log.Warn("driver events are not heard: a wait does not come back, or each one fails", "err", m.waitErr)
	case !is && m.deaf:
		m.log.Info("driver events are heard again")
	}
	m.deaf = is
}
