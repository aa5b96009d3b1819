package device

import (
	"cmp"
	"slices"
	"time"
)

// publish publishes all verdicts, and only when they changed. The first time it waits
// until each GPU of the listing has one: a kubelet that is offered a part of the node
// turns away the pods that hold the rest. Later a GPU that has none yet is left out,
// since it must not hold up what is known of the others.
func (m *Monitor) publish(now time.Time) {
	m.refreshSavedHistory()
	m.scratch = m.scratch[:0]
	for _, d := range m.devices {
		if m.published == nil && (!d.gpu.assessed || m.awaitsRecovery(d, now)) {
			return
		}
		if d.gpu.assessed {
			health, v := m.deviceHealth(d)
			s := d.status(health, v, now)
			s.Flaps = m.publishedFlaps(&d.gpu.healthState, d.GPU, "") + m.publishedFlaps(&d.state, d.GPU, d.ID)
			m.scratch = append(m.scratch, s)
		}
	}
	if !m.listedOnce {
		return
	}
	if m.published != nil && slices.EqualFunc(m.published, m.scratch, Status.equal) {
		// What is but another count can wait for the next tick: there may be many.
		if !m.hasUnpublishedCounts() || now.Sub(m.publishedAt) < tickInterval {
			return
		}
	}
	for i := range m.scratch {
		g := m.gpus[m.scratch[i].GPU]
		if g.countsChanged {
			m.updateXids(g)
		}
		m.scratch[i].Xids = g.xids
	}
	m.published, m.publishedAt = append(make([]Status, 0, len(m.scratch)), m.scratch...), now
	m.inventory.Set(m.published)
	m.historyChanged, m.historyLost = m.historyChanged || m.historyLost, false
}

// deviceHealth is where a device stands, and why.
func (m *Monitor) deviceHealth(d *trackedDevice) (Health, healthCause) {
	if m.phase != phaseActive {
		return Unhealthy, m.releaseCause
	}
	return d.currentHealth()
}

// hasUnpublishedCounts tells whether a count was not posted yet.
func (m *Monitor) hasUnpublishedCounts() bool {
	for _, g := range m.gpus {
		if g.countsChanged {
			return true
		}
	}
	return false
}

// refreshSavedHistory takes the counts that may be shown now.
func (m *Monitor) refreshSavedHistory() {
	if m.options.Store == nil {
		return
	}
	counts := m.options.Store.ExportedCounts()
	if counts == m.savedHistory {
		return
	}
	m.savedHistory = counts
	for _, g := range m.gpus {
		g.countsChanged = g.countsChanged || len(g.eventCounters) > 0
	}
}

// publishedFlaps returns how many of the flaps of a GPU or a slice may be shown.
func (m *Monitor) publishedFlaps(s *healthState, gpu GPU, id ID) uint64 {
	if m.options.Store == nil {
		return s.flaps
	}
	return m.savedHistory.record(gpu, id).Flaps
}

// updateXids makes what is posted of a GPU's tallies, as far as they may be shown. The time of
// the last Xid is always shown: it is no count. An Xid that is known from the past alone is left
// out: it would look like a new one.
func (m *Monitor) updateXids(g *trackedGPU) {
	counts := m.savedHistory.record(g.gpu, "")
	xids := make([]Xid, 0, len(g.eventCounters))
	for _, t := range g.eventCounters {
		if t.Code == 0 || t.Last.IsZero() {
			continue
		}
		x := t.Xid
		if m.options.Store != nil {
			x.Count = counts.xidCount(x.Code)
		}
		xids = append(xids, x)
	}
	slices.SortFunc(xids, func(a, b Xid) int { return cmp.Compare(a.Code, b.Code) })
	g.xids, g.countsChanged = xids, false
}
