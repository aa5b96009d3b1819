package device

import (
	"context"
	"log/slog"
	"math"
	"time"
)

// The witnesses of a tally.
const (
	first  = iota // the driver
	second        // who calls Report
)

// Deaf returns for how long the driver's events have not been heard, because a Wait does
// not come back or each one fails; 0 while they are. A Wait takes seconds, so less than
// deafAfter is none. What events would say, checks find out later, and counts of Xids
// stand still meanwhile, but for what a second witness tells.
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
	if r.event != (Event{}) {
		m.report(r.event, first, now, now)
	}
}

// report takes a report by a witness, of a time. One of a kind that is known, in a storm of them,
// costs no memory but that of whoever is told (TestAReportCostsNoMemory).
func (m *Monitor) report(e Event, witness int, at, now time.Time) {
	p := m.patients[e.GPU]
	if p == nil {
		if m.strangers.due("", xidReason(e.Xid), now) {
			m.log.Warn("driver event names no known GPU, asking each", "gpu", e.GPU, "xid", e.Xid)
		}
		m.checkAll()
		return
	}
	if e.Partitioned {
		m.log.Info("GPU is partitioned", "gpu", e.GPU)
		m.list(now)
	}
	if e.Xid == 0 && e.Kind == "" {
		return
	}
	t := p.tally(e)
	if t == nil { // nobody counts so many kinds
		t = &tally{reason: e.reason()}
	}
	m.tallied = true
	if e.Past {
		t.Past = latest(t.Past, at)
	} else if !t.tell(witness, at, now, m.deafAt) {
		return
	}
	p.counted = true
	policy := m.policy(e)
	if policy == Ignore {
		return
	}
	byPolicy := false
	if !e.Past {
		byPolicy = policy.apply(&e)
	}
	if p.said.due(e.Device, t.reason, now) {
		level := slog.LevelInfo
		if policy == Warn {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "driver event", "gpu", e.GPU, "device", e.Device, "xid", e.Xid, "kind", e.Kind,
			"fatal", e.Heals == ByReset, "action", e.Action, "count", t.Count)
	}
	o := Occurrence{
		At: at, GPU: e.GPU, Hit: m.hit(p, e.Device), Xid: e.Xid, Reason: t.reason, Class: e.Class, Action: e.Action, Witness: e.Witness, Past: e.Past,
	}
	switch c := m.condition(p, e.Device); e.Heals {
	case ByReset:
		o.Condemned = m.condemn(p, c, verdict{
			reason: t.reason, action: e.Action, class: e.Class, byReset: true, byPolicy: byPolicy, at: now, noted: now, checks: p.checks,
		}, now)
		if c.verdict.reason == t.reason {
			o.Action = c.verdict.action
		}
	case ByCheck:
		c.suspect()
	}
	m.tell(o)
	p.urgent = true // what the event means may stand elsewhere, and be read by a check
}

// condition is whose a fault is: the slice's that is named, or the GPU's with all that it has.
func (m *Monitor) condition(p *patient, id ID) *condition {
	if w := p.slice(id); w != nil {
		return &w.own
	}
	return &p.condition
}

// hit are the devices that a fault concerns. They must not be changed.
func (m *Monitor) hit(p *patient, id ID) []Device {
	if w := p.slice(id); w != nil {
		return w.hit
	}
	return p.hit
}

// tell passes an occurrence on.
func (m *Monitor) tell(o Occurrence) {
	if m.Happened != nil {
		m.Happened(o)
	}
}

// condemn takes evidence to the condition of a GPU or a slice of it, and tells whether the
// verdict is a new one.
func (m *Monitor) condemn(p *patient, c *condition, v verdict, now time.Time) bool {
	if c == &p.condition {
		p.answered = true // it also is an answer to the question how the GPU is
	}
	was := c.verdict.reason
	anew, renewed := c.condemn(v, now)
	if m.phase != working { // the reset that it asks for may come before the next check
		c.baseline(math.MaxUint64, p.resets, now)
	}
	m.changed = m.changed || anew && !v.quiet || renewed
	if !anew {
		return false
	}
	m.log.Info("health", "gpu", p.gpu, "was", was, "is", v.reason, "action", c.verdict.action, "flaps", c.flaps)
	return true
}

// find condemns a GPU for what was found out about it, and not reported.
func (m *Monitor) find(p *patient, v verdict, now time.Time) {
	if m.condemn(p, &p.condition, v, now) && !v.quiet {
		m.tell(Occurrence{At: now, GPU: p.gpu, Hit: p.hit, Reason: v.reason, Action: p.verdict.action, Condemned: true})
	}
}

// checkAll makes every GPU due: something is wrong, and nobody is to blame yet.
func (m *Monitor) checkAll() {
	for _, p := range m.patients {
		p.urgent = true
	}
}

// judgeHearing says once that the driver's events are not heard, and once that they are
// again.
func (m *Monitor) judgeHearing(now time.Time) {
	is := m.Deaf() > 0
	switch {
	case is && !m.deaf:
		m.log.Warn("driver events are not heard: a wait does not come back, or each one fails", "err", m.waitErr)
	case !is && m.deaf:
		m.log.Info("driver events are heard again")
	}
	m.deaf = is
	if is {
		m.deafAt = now
	}
}
