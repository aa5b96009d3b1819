package health

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// publish publishes the status of all devices if it has changed. The first
// publication waits until each GPU is assessed: a kubelet whose first list is
// incomplete rejects the pods with the missing devices. Later a GPU that is not
// assessed is left out.
func (e *engine) publish() {
	if e.saveDue() { // changes of counts alone are frequent
		for _, g := range e.gpus {
			g.updateXids()
		}
	}
	statuses := make([]device.Status, 0, len(e.devices))
	for _, d := range e.devices {
		if e.published == nil && (!d.gpu.assessed || e.awaitsRecovery(d)) {
			return
		}
		if d.gpu.assessed {
			health, cause := d.currentHealth()
			if e.released.Reason != "" {
				health, cause = device.Unhealthy, e.released
			}
			statuses = append(statuses, d.status(health, cause, e.now))
		}
	}
	if !e.listed || e.published != nil && reflect.DeepEqual(e.published, statuses) {
		return
	}
	e.published = statuses
	e.emit(publish(statuses))
	if e.historyLost {
		e.historyLost = false
		e.needSave(saveSoon)
	}
}

// knownPeriod is the time after a loss in which a new process still knows the
// GPU: an older loss must not stop a rollout.
const knownPeriod = 24 * time.Hour

// publishMissing publishes the GPUs of Monitor.Missing.
func (e *engine) publishMissing() {
	var missing []device.Device
	add := func(d device.Device, goneSince time.Time, retired *device.Retirement) {
		hasPlace := func(o *trackedDevice) bool {
			return o.goneSince.IsZero() && o.WholeGPU() && o.PCI == d.PCI && d.PCI != ""
		}
		isOld := !goneSince.IsZero() && e.startedAt.Sub(goneSince) >= knownPeriod
		if d.ID != "" && retired == nil && !isOld && !slices.ContainsFunc(e.devices, hasPlace) {
			missing = append(missing, d)
		}
	}
	for _, g := range e.gpus {
		if !g.listed {
			add(g.device, g.goneSince, g.health.retirement())
		}
	}
	for key, r := range e.absent {
		if key.device == "" {
			add(r.LastListed, r.GoneSince, cmp.Or(r.Listed, r.Retired))
		}
	}
	slices.SortFunc(missing, device.Device.Compare)
	if !slices.EqualFunc(missing, e.missing, device.Device.Equal) {
		e.missing = missing
		e.emit(setMissing(missing))
	}
}
