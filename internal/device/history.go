package device

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// maxAbsentRecords bounds the records of absent devices. Records do not expire by age: a clock that is ahead must not erase any.
	maxAbsentRecords = 256
	// historySaveInterval is between saves of the energy counters of devices that need a reset.
	historySaveInterval = time.Minute
	// firstPublishTimeout is how long the first publication waits for recovering devices.
	firstPublishTimeout = 30 * time.Second
)

// HealthHistory is the health of the devices in an earlier process. It is immutable once handed over.
type HealthHistory struct {
	Records []HealthRecord
	// Rebooted is set if the node was rebooted since: all GPUs were reset.
	Rebooted bool
	// Lost is set if an earlier history cannot be read: then each device is checked before its first publication. Lost is saved until then.
	Lost bool
}

// HealthRecord is the health of a GPU with all its devices, or of one MIG device.
type HealthRecord struct {
	GPU    GPU
	Device ID // of a MIG device; empty: the GPU
	// Reason is the cause of Unhealthy or Recovering; if empty, so are the fields up to EnergyCounter, except LastSeen.
	Reason, Action, Class string
	Since                 time.Time
	FaultAt               time.Time // of the newest fault of this cause
	LastSeen              time.Time // of a GPU: present; of a MIG device: present and unhealthy
	NeedsReset            bool      // the cause lasts until a reset
	ByPolicy              bool      // only the operator's policy marks the device unhealthy
	ResetSeen             bool      // since the cause
	EnergyCounter         uint64    // as in ResetEvidence, after the fault; 0: unknown
	Flaps                 uint64    // as in Status
	UnhealthyTimes        []time.Time
	FailedResets          FailedResets
	// LastListed is the GPU in its newest listing, without DeviceNodes and InfoLabels; the zero Device if unknown. GoneSince is when the
	// GPU was first absent from a listing; zero: present.
	LastListed Device
	GoneSince  time.Time
	rebooted   bool // the node, after the record was made
	// Xids are the GPU's counts. They and Flaps must not fall below an exported value, except to 0: Prometheus takes the whole value of a
	// counter that fell for an increase.
	Xids []Xid
}

type recordKey struct {
	gpu    GPU
	device ID
}

func (r HealthRecord) key() recordKey { return recordKey{r.GPU, r.Device} }

func (r HealthRecord) compare(o HealthRecord) int {
	return cmp.Or(cmp.Compare(r.GPU, o.GPU), cmp.Compare(r.Device, o.Device))
}

// lastActivity returns the newest time in the record.
func (r HealthRecord) lastActivity() time.Time {
	newest := latest(latest(r.FaultAt, r.LastSeen), r.FailedResets.LastFaultAt)
	for _, at := range r.UnhealthyTimes {
		newest = latest(newest, at)
	}
	for _, x := range r.Xids {
		newest = latest(newest, latest(x.Last, x.LastHistorical))
	}
	return newest
}

// healthState returns the health in a record. Times after now, from before the clock was set back, are corrected.
func (r HealthRecord) healthState(checksBegun uint64, now time.Time) healthState {
	s := healthState{flaps: r.Flaps, failedResets: r.FailedResets}
	s.unhealthyTimes = slices.DeleteFunc(slices.Clone(r.UnhealthyTimes), func(at time.Time) bool { return at.After(now) })
	if r.Reason == "" {
		return s
	}
	if r.Since.After(now) {
		r.Since = now
	}
	s.state, s.resetSeen = Unhealthy, r.NeedsReset && r.ResetSeen
	if r.rebooted { // without a reboot only a check shows that the fault is over, since a repair may be pending
		s.state = Recovering
	}
	s.cause = healthCause{
		reason: r.Reason, action: r.Action, class: r.Class, needsReset: r.NeedsReset, byPolicy: r.ByPolicy,
		since: r.Since, faultAt: r.FaultAt, notedAt: now, checksBegun: checksBegun, energyCounter: r.EnergyCounter,
	}
	return s
}

// setHealth writes the health of a device on a GPU to the record.
func (r *HealthRecord) setHealth(s healthState, energyCounter uint64) {
	r.Flaps, r.UnhealthyTimes, r.FailedResets = s.flaps, s.unhealthyTimes, s.failedResets
	if c := s.cause; c.isFault() {
		r.Reason, r.Action, r.Class, r.Since, r.FaultAt = c.reason, c.action, c.class, c.since, c.faultAt
		r.NeedsReset, r.ByPolicy, r.ResetSeen, r.EnergyCounter = c.needsReset, c.byPolicy, s.resetSeen, c.energyCounter
		// A value from before the fault may also precede an earlier reset.
		if energyCounter != 0 && c.resetBaseline != nil {
			r.EnergyCounter = energyCounter
		}
	}
}

// record returns a device's record, or the zero HealthRecord. The records are ordered.
func (h *HealthHistory) record(gpu GPU, id ID) HealthRecord {
	if h == nil {
		return HealthRecord{}
	}
	i, found := slices.BinarySearchFunc(h.Records, HealthRecord{GPU: gpu, Device: id}, HealthRecord.compare)
	if !found {
		return HealthRecord{}
	}
	return h.Records[i]
}

// healthRecord returns the record of one level of the GPU; false if there is nothing to save.
func (g *trackedGPU) healthRecord(id ID, s *healthState, now time.Time) (r HealthRecord, found bool) {
	r = HealthRecord{GPU: g.gpu, Device: id}
	r.setHealth(*s, g.energyCounter)
	if r.Reason != "" {
		r.LastSeen = now
	}
	if id == "" {
		for _, c := range g.eventCounters {
			if c.Code != 0 {
				r.Xids = append(r.Xids, c.Xid)
			}
		}
		r.LastListed, r.GoneSince, r.LastSeen = g.device, g.goneSince, now
		if !g.goneSince.IsZero() {
			r.LastSeen = g.goneSince
		}
	}
	return r, r.LastListed.ID != "" || r.Reason != "" || r.Flaps > 0 || len(r.UnhealthyTimes) > 0 || r.FailedResets.Reason != "" || len(r.Xids) > 0
}

// loadHistory keeps the records of an earlier process until a listing has their devices.
func (t *deviceTracker) loadHistory(now time.Time) {
	h := t.options.History
	for _, r := range h.Records {
		if r.rebooted = h.Rebooted; r.rebooted {
			r.applyReset(evidence{kind: evidenceReset}, now)
		}
		t.absentRecords[r.key()] = r
	}
	t.refreshSavedHistory()
	t.awaitRecovering = h.Rebooted || h.Lost
	t.historyLost, t.historyChanged = h.Lost, h.Lost // the file with the history was set aside: only a save keeps Lost
}

// applyReset applies evidence of a reset to a record, and reports whether the record has changed.
func (r *HealthRecord) applyReset(e evidence, now time.Time) bool {
	s, tr := r.healthState(0, now).apply(e, now)
	if tr.save {
		r.ResetSeen, r.FailedResets = s.resetSeen, s.failedResets
	}
	return tr.save
}

// resetAbsentRecords applies an energy counter to the records of a GPU's absent MIG devices. A reset removes all MIG devices, and
// when they are back, the counter may be as high as before.
func (t *deviceTracker) resetAbsentRecords(gpu GPU, energyCounter uint64, now time.Time) {
	for key, r := range t.absentRecords {
		if key.gpu == gpu && r.applyReset(evidence{kind: evidenceResetCount, energyCounter: energyCounter}, now) {
			t.absentRecords[key], t.historyChanged = r, true
		}
	}
}

// restoreRecord restores the health of one level of a GPU that is listed for the first time.
func (t *deviceTracker) restoreRecord(g *trackedGPU, id ID, s *healthState, now time.Time) {
	key := recordKey{g.gpu, id}
	r, known := t.absentRecords[key]
	if known {
		delete(t.absentRecords, key)
		*s = r.healthState(g.checksBegun, now)
	}
	if id == "" {
		if r.Reason == "" && t.options.History.Lost { // a known record may be old
			s.state, s.cause = Recovering, healthCause{reason: "unproven", noFault: true, since: now}
		}
		for _, x := range r.Xids {
			if x.Last.After(now) { // the clock was set back
				x.Last = now
			}
			if c := g.eventCounters.find(Event{Xid: x.Code}); c != nil {
				c.Xid = x
			}
		}
		t.updateXids(g)
		g.assessed = g.assessed || s.state == Unhealthy
	}
	if r.Reason != "" {
		t.log.Info("health restored", "gpu", g.gpu, "device", id, "reason", r.Reason, "since", r.Since, "reset_seen", r.ResetSeen)
	}
}

// restoreAbsent adds GPUs of an earlier process that the listing lacks, since a kubelet takes an unlisted device for healthy. Such a GPU
// expires like any gone GPU; a GPU gone for longer than goneGPUTTL is added only if allocated.
func (t *deviceTracker) restoreAbsent(now time.Time) {
	for key, r := range t.absentRecords {
		if r.GoneSince.IsZero() || r.GoneSince.After(now) { // the clock was set back
			r.GoneSince = now
		}
		id := r.LastListed.ID
		old := now.Sub(r.GoneSince) >= goneGPUTTL
		if key.device != "" || id == "" || t.gpus[r.GPU] != nil || old && !t.isAllocated(id) {
			continue
		}
		g := &trackedGPU{
			gpu: r.GPU, number: len(t.gpus), firstListedAt: now, device: r.LastListed, affected: []Device{r.LastListed}, goneSince: r.GoneSince,
		}
		t.gpus[r.GPU] = g
		t.restoreRecord(g, "", &g.health, now)
		t.devices = append(t.devices, &trackedDevice{Device: r.LastListed, gpu: g, goneSince: r.GoneSince})
		t.log.Warn("GPU of the previous process not listed", "gpu", r.GPU, "index", r.LastListed.Index, "pci", r.LastListed.PCI, "gone_since", r.GoneSince)
	}
}

// keepRecord keeps the health of a removed device, which may come back with the same fault. At the limit, the record with the oldest
// activity is deleted.
func (t *deviceTracker) keepRecord(g *trackedGPU, id ID, s *healthState, now time.Time) {
	if r, found := g.healthRecord(id, s, now); found {
		t.absentRecords[r.key()] = r
	}
	for len(t.absentRecords) > maxAbsentRecords {
		oldest := slices.MinFunc(slices.Collect(maps.Values(t.absentRecords)), func(a, b HealthRecord) int {
			return cmp.Or(a.lastActivity().Compare(b.lastActivity()), a.compare(b))
		})
		delete(t.absentRecords, oldest.key())
	}
}

// saveHistory saves the history: at once after a new cause, at most once per tick after a count.
func (t *deviceTracker) saveHistory(now time.Time) {
	due := t.historyChanged || t.countsChanged && now.Sub(t.historySavedAt) >= tickInterval ||
		now.Sub(t.historySavedAt) >= historySaveInterval && t.awaitsReset()
	if t.options.Store == nil || !due {
		return
	}
	t.historyChanged, t.countsChanged, t.historySavedAt = false, false, now
	t.options.Store.Save(t.history(now))
}

// awaitsReset reports whether a device needs a reset, which a later process detects only by the energy counter.
func (t *deviceTracker) awaitsReset() bool {
	for _, g := range t.gpus {
		for _, s := range g.levels() {
			if s.cause.needsReset && !s.resetSeen {
				return true
			}
		}
	}
	return false
}

// history returns the current history, ordered by GPU and device.
func (t *deviceTracker) history(now time.Time) HealthHistory {
	records := slices.Collect(maps.Values(t.absentRecords))
	for _, g := range t.gpus {
		for id, s := range g.levels() {
			if r, found := g.healthRecord(id, s, now); found {
				records = append(records, r)
			}
		}
	}
	slices.SortFunc(records, HealthRecord.compare)
	return HealthHistory{Records: records, Lost: t.historyLost}
}

// awaitsRecovery reports whether the first publication waits for a device: after a reboot or a lost history, recovering devices are
// healthy or unhealthy within seconds, and a kubelet rejects the pods of a device that is unhealthy in its first list. A device that
// flapped takes longer and does not delay the publication.
func (t *deviceTracker) awaitsRecovery(d *trackedDevice, now time.Time) bool {
	if !t.awaitRecovering || now.Sub(d.gpu.firstListedAt) >= firstPublishTimeout {
		return false
	}
	s := &d.health
	if d.gpu.health.state != Healthy {
		s = &d.gpu.health
	}
	return s.state == Recovering && s.recoveryPeriod(now) < firstPublishTimeout-5*time.Second
}
