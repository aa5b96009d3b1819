package device

import (
	"cmp"
	"slices"
	"time"
)

// post publishes all verdicts, and only when they changed. The first time it waits
// until each GPU of the listing has one: a kubelet that is offered a part of the node
// turns away the pods that hold the rest. Later a GPU that has none yet is left out,
// since it must not hold up what is known of the others.
func (m *Monitor) post(now time.Time) {
	m.recount()
	m.scratch = m.scratch[:0]
	for _, w := range m.wards {
		if m.posted == nil && (!w.patient.answered || m.proving(w, now)) {
			return
		}
		if w.patient.answered {
			health, v := m.judged(w)
			s := w.status(health, v, now)
			s.Flaps = m.flaps(&w.patient.condition, w.GPU, "") + m.flaps(&w.own, w.GPU, w.ID)
			m.scratch = append(m.scratch, s)
		}
	}
	if !m.known {
		return
	}
	if m.posted != nil && slices.EqualFunc(m.posted, m.scratch, Status.equal) {
		// What is but another count can wait for the next tick: there may be many.
		if !m.counted() || now.Sub(m.postedAt) < tickEvery {
			return
		}
	}
	for i := range m.scratch {
		p := m.patients[m.scratch[i].GPU]
		if p.counted {
			m.publish(p)
		}
		m.scratch[i].Xids = p.xids
	}
	m.posted, m.postedAt = append(make([]Status, 0, len(m.scratch)), m.scratch...), now
	m.board.Post(m.posted)
	m.changed, m.lost = m.changed || m.lost, false
}

// judged is where a device stands, and why.
func (m *Monitor) judged(w *ward) (Health, verdict) {
	if m.phase != working {
		return Unhealthy, m.away
	}
	return w.judged()
}

// counted tells whether a count was not posted yet.
func (m *Monitor) counted() bool {
	for _, p := range m.patients {
		if p.counted {
			return true
		}
	}
	return false
}

// recount takes the counts that may be shown now.
func (m *Monitor) recount() {
	if m.Counted == nil {
		return
	}
	counts := m.Counted()
	if counts == m.counts {
		return
	}
	m.counts = counts
	for _, p := range m.patients {
		p.counted = p.counted || len(p.tallies) > 0
	}
}

// flaps returns how many of the flaps of a GPU or a slice may be shown.
func (m *Monitor) flaps(c *condition, gpu GPU, id ID) uint64 {
	if m.Counted == nil {
		return c.flaps
	}
	return m.counts.record(gpu, id).Flaps
}

// publish makes what is posted of a GPU's tallies, as far as they may be shown. The time of
// the last Xid is always shown: it is no count. An Xid that is known from the past alone is left
// out: it would look like a new one.
func (m *Monitor) publish(p *patient) {
	counts := m.counts.record(p.gpu, "")
	xids := make([]Xid, 0, len(p.tallies))
	for _, t := range p.tallies {
		if t.Code == 0 || t.Last.IsZero() {
			continue
		}
		x := t.Xid
		if m.Counted != nil {
			x.Count = counts.count(x.Code)
		}
		xids = append(xids, x)
	}
	slices.SortFunc(xids, func(a, b Xid) int { return cmp.Compare(a.Code, b.Code) })
	p.xids, p.counted = xids, false
}
