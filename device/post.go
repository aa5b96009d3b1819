package device

import (
	"slices"
	"time"
)

// post publishes all verdicts, and only when they changed. The first time it waits
// until each GPU of the listing has one: a kubelet that is offered a part of the node
// turns away the pods that hold the rest. Later a GPU that has none yet is left out,
// since it must not hold up what is known of the others.
func (m *Monitor) post(now time.Time) {
	m.scratch = m.scratch[:0]
	for _, w := range m.wards {
		if m.posted == nil && (!w.patient.answered || m.proving(w, now)) {
			return
		}
		if w.patient.answered {
			health, v := m.judged(w)
			m.scratch = append(m.scratch, w.status(health, v, now))
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
			p.publish()
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
