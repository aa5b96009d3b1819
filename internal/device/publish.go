package device

import (
	"cmp"
	"slices"
	"time"
)

// publish publishes the status of all devices if it has changed. The first publication waits until each GPU is assessed: a kubelet
// whose first list is incomplete rejects the pods with the missing devices. Later a GPU that is not assessed is left out.
func (t *deviceTracker) publish(now time.Time) {
	if t.options.Store != nil {
		before := t.savedHistory
		t.savedHistory, t.storeChanged = t.options.Store.ExportedCounts()
		t.countsUnpublished = t.countsUnpublished || t.savedHistory != before
	}
	if t.countsUnpublished && (t.historyUrgent || now.Sub(t.publishedAt) >= countsInterval) { // changes of counts alone are frequent
		for _, g := range t.gpus {
			t.updateXids(g)
		}
		t.countsUnpublished = false
	}
	t.scratch = t.scratch[:0]
	for _, d := range t.devices {
		if t.published == nil && (!d.gpu.assessed || t.awaitsRecovery(d, now)) {
			return
		}
		if d.gpu.assessed {
			health, cause := d.currentHealth()
			if t.released.Reason != "" {
				health, cause = Unhealthy, t.released
			}
			s := d.status(health, cause, now)
			s.Flaps = t.publishedFlaps(d.gpu.gpu, "", &d.gpu.health) + t.publishedFlaps(d.GPU, d.ID, &d.health)
			t.scratch = append(t.scratch, s)
		}
	}
	if !t.listed || t.published != nil && slices.EqualFunc(t.published, t.scratch, Status.equal) {
		return
	}
	t.published, t.publishedAt = append(make([]Status, 0, len(t.scratch)), t.scratch...), now
	t.inventory.Set(t.published)
	t.historyChanged, t.historyLost = t.historyChanged || t.historyLost, false
}

// publishedFlaps returns the flaps of one level that may be published.
func (t *deviceTracker) publishedFlaps(gpu GPU, id ID, s *healthState) uint64 {
	if t.options.Store == nil {
		return s.flaps
	}
	return t.savedHistory.record(gpu, id).Flaps
}

// updateXids updates the GPU's published Xids. Counts are limited to the saved ones; the time of the newest Xid is not. An Xid known
// only from before podgauge listened is left out: it would look like a new one.
func (t *deviceTracker) updateXids(g *trackedGPU) {
	saved := t.savedHistory.record(g.gpu, "")
	xids := make([]Xid, 0, len(g.eventCounters))
	for _, c := range g.eventCounters {
		if c.Code == 0 || c.Last.IsZero() {
			continue
		}
		x := c.Xid
		if t.options.Store != nil {
			x.Count = 0
			if i := slices.IndexFunc(saved.Xids, func(s Xid) bool { return s.Code == x.Code }); i >= 0 {
				x.Count = saved.Xids[i].Count
			}
		}
		xids = append(xids, x)
	}
	slices.SortFunc(xids, func(a, b Xid) int { return cmp.Compare(a.Code, b.Code) })
	g.xids = xids
}
