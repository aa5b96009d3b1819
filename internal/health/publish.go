package health

import (
	"cmp"
	"maps"
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
	if !reflect.DeepEqual(missing, e.missing) {
		e.missing = missing
		e.emit(setMissing(missing))
	}
}

const (
	saveInterval        = 250 * time.Millisecond // between saves, and between publications of counts, without a fault
	historySaveInterval = time.Minute            // between saves of the energy counters of devices that need a reset
)

// saveIfDue saves the history if that is due. Then the counts are published as
// well: changes of counts alone are frequent.
func (e *engine) saveIfDue() {
	since := e.now.Sub(e.savedAt)
	if e.unsaved == saveNow || e.unsaved == saveSoon && since >= saveInterval ||
		since >= historySaveInterval && e.awaitsReset() {
		for _, g := range e.gpus {
			g.updateXids()
		}
		e.save()
	}
}

// awaitsReset reports whether a device needs a reset, which a later process
// detects only by the energy counter.
func (e *engine) awaitsReset() bool {
	for _, g := range e.gpus {
		for _, s := range g.levels("") {
			if s.cause.NeedsReset && !s.cause.ResetSeen {
				return true
			}
		}
	}
	return false
}

// save saves the records of all devices, ordered by GPU and device. It is the
// first effect: the file must not have an incident without the fault behind it.
func (e *engine) save() {
	list := slices.Collect(maps.Values(e.absent))
	for _, g := range e.gpus {
		for id, s := range g.levels("") {
			if r, found := g.healthRecord(id, s, e.now); found {
				list = append(list, r)
			}
		}
	}
	slices.SortFunc(list, Record.compare)
	history := History{Records: list, Lost: e.historyLost, DriverRestarts: e.restarts}
	e.effects = slices.Insert(e.effects, 0, effect(save{history, e.unsaved == saveNow}))
	e.unsaved, e.savedAt = saved, e.now
}

// firstPublishTimeout is how long the first publication waits for recovering
// devices.
const firstPublishTimeout = 30 * time.Second

// load keeps the records of an earlier process until a listing has their
// devices.
func (e *engine) load() {
	h := e.options.History
	e.startedAt = e.now
	e.absent = newRecords(h, e.now)
	e.awaitRecovering = h.Rebooted || h.Lost
	e.restarts = h.DriverRestarts
	if e.historyLost = h.Lost; h.Lost { // the file with the history was set aside: only a save keeps Lost
		e.needSave(saveSoon)
	}
}

// restoreRecord restores the health of one level of a GPU that is listed for the
// first time.
func (e *engine) restoreRecord(g *trackedGPU, id device.ID, s *healthState) {
	r, found := e.absent.take(g.gpu, id)
	if found {
		*s = r.healthState(g.checksBegun, e.now)
	}
	if id == "" {
		if r.Reason == "" && e.options.History.Lost { // a known record may be old
			s.state, s.cause = device.Recovering, Cause{Reason: "unproven", noFault: true, Since: e.now}
		}
		for _, x := range r.Xids {
			x.Last = earliest(x.Last, e.now) // the clock may have been set back
			x.LastFatal = earliest(x.LastFatal, e.now)
			g.eventCounter(device.Event{Xid: x.Code}).Xid = x
		}
		g.updateXids()
		g.assessed = g.assessed || s.state == device.Unhealthy
	}
	if r.Reason != "" {
		e.log.Info("health restored", "gpu", g.gpu, "device", id,
			"reason", r.Reason, "since", r.Since, "reset_seen", r.ResetSeen)
	}
	if retired := s.retirement(); retired != nil {
		e.log.Info("device still retired", "gpu", g.gpu, "device", id, "since", retired.At, "note", retired.Note)
	}
}

// awaitsRecovery reports whether the first publication waits for a device: after
// a reboot or a lost history, recovering devices are healthy or unhealthy within
// seconds, and a kubelet rejects the pods of a device that is unhealthy in its
// first list. A device that flapped takes longer and does not delay the
// publication.
func (e *engine) awaitsRecovery(d *trackedDevice) bool {
	if !e.awaitRecovering || e.now.Sub(d.gpu.firstListedAt) >= firstPublishTimeout {
		return false
	}
	s := &d.health
	if d.gpu.health.state != device.Healthy {
		s = &d.gpu.health
	}
	return s.state == device.Recovering && s.recoveryPeriod(e.now) < firstPublishTimeout-5*time.Second
}
