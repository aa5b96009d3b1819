package device

import (
	"cmp"
	"slices"
	"time"
)

// publish publishes the status of all devices if it has changed. The first
// publication waits until each GPU is assessed: a kubelet whose first list is
// incomplete rejects the pods with the missing devices. Later a GPU that is not
// assessed is left out.
func (t *engine) publish(now time.Time) {
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
			t.scratch = append(t.scratch, d.status(health, cause, now))
		}
	}
	if !t.listed || t.published != nil && slices.EqualFunc(t.published, t.scratch, Status.equal) {
		return
	}
	t.published, t.publishedAt = append(make([]Status, 0, len(t.scratch)), t.scratch...), now
	t.inventory.Set(t.published)
	t.historyChanged, t.historyLost = t.historyChanged || t.historyLost, false
}

// updateXids updates the GPU's published Xids. An Xid known only from before
// podgauge listened is left out: it would look like a new one.
func (t *engine) updateXids(g *trackedGPU) {
	xids := make([]Xid, 0, len(g.eventCounters))
	for _, c := range g.eventCounters {
		if c.Code != 0 && !c.Last.IsZero() {
			xids = append(xids, c.Xid)
		}
	}
	slices.SortFunc(xids, func(a, b Xid) int { return cmp.Compare(a.Code, b.Code) })
	g.xids = xids
}
