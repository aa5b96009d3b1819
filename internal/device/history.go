package device

import (
	"cmp"
	"fmt"
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

// HealthHistory is the health of the devices in an earlier process. It is immutable once handed over. The JSON form is that of the
// file: fields are added, and never change.
type HealthHistory struct {
	Records []HealthRecord `json:"records"` // by GPU and device
	// Rebooted is set if the node was rebooted since: all GPUs were reset.
	Rebooted bool `json:"-"`
	// Lost is set if an earlier history cannot be read: then each device is checked before its first publication. Lost is saved until then.
	Lost bool `json:"lost,omitempty"`
	// DriverRestarts counts the processes that ended by ErrRestart since the driver last worked for a while.
	DriverRestarts uint `json:"driver_restarts,omitempty"`
}

// Validate returns an error unless the records are ordered and unique, and each has a GPU, which LastListed is.
func (h *HealthHistory) Validate() error {
	for i, r := range h.Records {
		l := r.LastListed
		if r.GPU == "" || i > 0 && h.Records[i-1].compare(r) >= 0 || l.ID != "" && (r.Device != "" || l.GPU != r.GPU || !l.WholeGPU()) {
			return fmt.Errorf("record %d has no GPU, has another GPU or is out of order", i)
		}
	}
	return nil
}

// HealthRecord is the health of a GPU with all its devices, or of one MIG device.
type HealthRecord struct {
	GPU            GPU                     `json:"gpu"`
	Device         ID                      `json:"device,omitempty"` // of a MIG device; empty: the GPU
	HealthCause    `json:"cause,omitzero"` // of Unhealthy or Recovering
	UnhealthyTimes []time.Time             `json:"unhealthy_times,omitempty"`
	FailedResets   FailedResets            `json:"failed_resets,omitzero"`
	Retired        *Retirement             `json:"retired,omitempty"`
	Xids           []Xid                   `json:"xids,omitempty"`     // of the GPU, without counts
	LastSeen       time.Time               `json:"last_seen,omitzero"` // of a GPU: present; of a MIG device: present and unhealthy
	// GoneSince is when the GPU was first absent from a listing; zero: present.
	GoneSince time.Time `json:"gone_since,omitzero"`
	// LastListed is the GPU in its newest listing; the zero Device if unknown. DeviceNodes and InfoLabels are not saved.
	LastListed Device `json:"last_listed,omitzero"`
	rebooted   bool   // the node, after the record was made
}

type recordKey struct {
	gpu    GPU
	device ID
}

func (r HealthRecord) key() recordKey { return recordKey{r.GPU, r.Device} }

func (r HealthRecord) compare(o HealthRecord) int {
	return cmp.Or(cmp.Compare(r.GPU, o.GPU), cmp.Compare(r.Device, o.Device))
}

// healthState returns the health in a record. Times after now, from before the clock was set back, are corrected.
func (r HealthRecord) healthState(checksBegun uint64, now time.Time) healthState {
	s := healthState{failedResets: r.FailedResets, retired: r.Retired}
	s.unhealthyTimes = slices.DeleteFunc(slices.Clone(r.UnhealthyTimes), func(at time.Time) bool { return at.After(now) })
	if r.Retired != nil && r.Retired.At.After(now) {
		s.retired = &Retirement{r.Retired.Note, now}
	}
	if r.Reason == "" {
		return s
	}
	if r.Since.After(now) {
		r.Since = now
	}
	s.state, s.cause = Unhealthy, r.HealthCause
	if r.rebooted { // without a reboot only a check shows that the fault is over, since a repair may be pending
		s.state = Recovering
	}
	s.cause.rebooted = r.rebooted
	s.cause.needsRepair, s.cause.notedAt, s.cause.checksBegun, s.cause.resetBaseline = false, now, checksBegun, nil
	return s
}

// healthRecord returns the record of one level of the GPU; false if there is nothing to save.
func (g *trackedGPU) healthRecord(id ID, s *healthState, now time.Time) (r HealthRecord, found bool) {
	r = HealthRecord{GPU: g.gpu, Device: id, UnhealthyTimes: s.unhealthyTimes, FailedResets: s.failedResets, Retired: s.retired}
	if s.retired != nil {
		r.LastSeen = now
	}
	if s.cause.isFault() {
		r.HealthCause, r.LastSeen = s.cause, now
		// A value from before the fault may also precede an earlier reset.
		if g.energyCounter != 0 && s.cause.resetBaseline != nil {
			r.EnergyCounter = g.energyCounter
		}
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
	return r, r.LastListed.ID != "" || r.Reason != "" || r.Retired != nil || len(r.UnhealthyTimes) > 0 || r.FailedResets.Reason != "" || len(r.Xids) > 0
}

// loadHistory keeps the records of an earlier process until a listing has their devices.
func (t *engine) loadHistory(now time.Time) {
	h := t.options.History
	t.startedAt = now
	for _, r := range h.Records {
		r.decodeRetirement()
		if r.rebooted = h.Rebooted; r.rebooted {
			r.applyReset(evidence{kind: evidenceReset}, now)
		}
		t.absentRecords[r.key()] = r
	}
	t.awaitRecovering, t.restarts = h.Rebooted || h.Lost, h.DriverRestarts
	t.historyLost, t.historyChanged = h.Lost, h.Lost // the file with the history was set aside: only a save keeps Lost
}

// applyReset applies evidence of a reset to a record, and reports whether the record has changed.
func (r *HealthRecord) applyReset(e evidence, now time.Time) bool {
	s, tr := r.healthState(0, now).apply(e, now)
	if tr.save {
		r.HealthCause, r.FailedResets = s.cause, s.failedResets
	}
	return tr.save
}

// resetAbsentRecords applies an energy counter to the records of a GPU's absent MIG devices. A reset removes all MIG devices, and
// when they are back, the counter may be as high as before.
func (t *engine) resetAbsentRecords(gpu GPU, energyCounter uint64, now time.Time) {
	for key, r := range t.absentRecords {
		if key.gpu == gpu && r.applyReset(evidence{kind: evidenceResetCount, energyCounter: energyCounter}, now) {
			t.absentRecords[key], t.historyChanged = r, true
		}
	}
}

// restoreRecord restores the health of one level of a GPU that is listed for the first time.
func (t *engine) restoreRecord(g *trackedGPU, id ID, s *healthState, now time.Time) {
	key := recordKey{g.gpu, id}
	r, known := t.absentRecords[key]
	if known {
		delete(t.absentRecords, key)
		*s = r.healthState(g.checksBegun, now)
	}
	if id == "" {
		if r.Reason == "" && t.options.History.Lost { // a known record may be old
			s.state, s.cause = Recovering, HealthCause{Reason: "unproven", noFault: true, Since: now}
		}
		for _, x := range r.Xids {
			if x.Last.After(now) { // the clock was set back
				x.Last = now
			}
			if x.LastFatal.After(now) {
				x.LastFatal = now
			}
			g.eventCounter(Event{Xid: x.Code}).Xid = x
		}
		t.updateXids(g)
		g.assessed = g.assessed || s.state == Unhealthy
	}
	if r.Reason != "" {
		t.log.Info("health restored", "gpu", g.gpu, "device", id, "reason", r.Reason, "since", r.Since, "reset_seen", r.ResetSeen)
	}
	if r.Retired != nil {
		t.log.Info("device still retired", "gpu", g.gpu, "device", id, "since", r.Retired.At, "note", r.Retired.Note)
	}
}

// restoreAbsent adds GPUs of an earlier process that the listing lacks, since a kubelet takes an unlisted device for healthy. Such a GPU
// expires like any gone GPU. A GPU gone for longer than goneGPUTTL is added only if allocated, or among the newest of missing GPUs.
func (t *engine) restoreAbsent(now time.Time) {
	goneSince := func(r HealthRecord) time.Time {
		if r.GoneSince.IsZero() || r.GoneSince.After(now) { // the clock was set back
			return now
		}
		return r.GoneSince
	}
	missing := t.missingGPUs()
	for _, g := range t.gpus {
		if !g.listed {
			missing-- // in the Inventory as gone
		}
	}
	newestFirst := func(a, b HealthRecord) int { return cmp.Or(goneSince(b).Compare(goneSince(a)), a.compare(b)) }
	for _, r := range slices.SortedFunc(maps.Values(t.absentRecords), newestFirst) {
		r.GoneSince = goneSince(r)
		id := r.LastListed.ID
		old := now.Sub(r.GoneSince) >= goneGPUTTL
		if r.Device != "" || id == "" || t.gpus[r.GPU] != nil || old && missing <= 0 && !t.isAllocated(id) {
			continue
		}
		missing--
		g := t.addGPU(r.GPU, now)
		g.device, g.affected, g.goneSince = r.LastListed, []Device{r.LastListed}, r.GoneSince
		t.devices = append(t.devices, &trackedDevice{Device: r.LastListed, gpu: g, goneSince: r.GoneSince})
		t.log.Warn("GPU of an earlier process not listed", "gpu", r.GPU, "index", r.LastListed.Index, "pci", r.LastListed.PCI, "gone_since", r.GoneSince)
	}
}

// keepRecord keeps the health of a removed device, which may come back with the same fault. At the limit, the record that was
// last seen first is deleted, of a device that is not retired if there is one.
func (t *engine) keepRecord(g *trackedGPU, id ID, s *healthState, now time.Time) {
	if r, found := g.healthRecord(id, s, now); found {
		t.absentRecords[r.key()] = r
	}
	for len(t.absentRecords) > maxAbsentRecords {
		oldest := slices.MinFunc(slices.Collect(maps.Values(t.absentRecords)), func(a, b HealthRecord) int {
			if (a.Retired == nil) != (b.Retired == nil) {
				return map[bool]int{true: -1, false: 1}[a.Retired == nil]
			}
			return cmp.Or(a.LastSeen.Compare(b.LastSeen), a.compare(b))
		})
		delete(t.absentRecords, oldest.key())
	}
}

// saveHistory saves the history: at once after a new cause, within countsInterval after a count.
func (t *engine) saveHistory(now time.Time) {
	due := t.historyChanged || t.countsChanged && now.Sub(t.historySavedAt) >= countsInterval ||
		now.Sub(t.historySavedAt) >= historySaveInterval && t.awaitsReset()
	if !due {
		return
	}
	if t.options.Store != nil {
		t.options.Store.SaveHealth(t.history(now), t.historyUrgent)
	}
	t.historyChanged, t.historyUrgent, t.countsChanged, t.historySavedAt = false, false, false, now
}

// awaitsReset reports whether a device needs a reset, which a later process detects only by the energy counter.
func (t *engine) awaitsReset() bool {
	for _, g := range t.gpus {
		for _, s := range g.levels() {
			if s.cause.NeedsReset && !s.cause.ResetSeen {
				return true
			}
		}
	}
	return false
}

// history returns the current history, ordered by GPU and device.
func (t *engine) history(now time.Time) HealthHistory {
	records := slices.Collect(maps.Values(t.absentRecords))
	for _, g := range t.gpus {
		for id, s := range g.levels() {
			if r, found := g.healthRecord(id, s, now); found {
				records = append(records, r)
			}
		}
	}
	for i := range records {
		records[i].encodeRetirement()
	}
	slices.SortFunc(records, HealthRecord.compare)
	return HealthHistory{Records: records, Lost: t.historyLost, DriverRestarts: t.restarts}
}

// awaitsRecovery reports whether the first publication waits for a device: after a reboot or a lost history, recovering devices are
// healthy or unhealthy within seconds, and a kubelet rejects the pods of a device that is unhealthy in its first list. A device that
// flapped takes longer and does not delay the publication.
func (t *engine) awaitsRecovery(d *trackedDevice, now time.Time) bool {
	if !t.awaitRecovering || now.Sub(d.gpu.firstListedAt) >= firstPublishTimeout {
		return false
	}
	s := &d.health
	if d.gpu.health.state != Healthy {
		s = &d.gpu.health
	}
	return s.state == Recovering && s.recoveryPeriod(now) < firstPublishTimeout-5*time.Second
}

// IsRetired reports whether the history has the retirement of a GPU or MIG device.
func (h *HealthHistory) IsRetired(id ID) bool {
	return slices.ContainsFunc(h.Records, func(r HealthRecord) bool {
		return r.Retired != nil && (r.Device == id || r.Device == "" && string(r.GPU) == string(id))
	})
}

// encodeRetirement makes the retirement the cause of a record without a fault: an older version, which ignores retirements, then keeps the
// device unhealthy until a reset.
func (r *HealthRecord) encodeRetirement() {
	if r.Retired != nil && r.Reason == "" {
		r.HealthCause = HealthCause{Reason: ReasonRetired, Since: r.Retired.At, FaultAt: r.Retired.At, NeedsReset: true}
	}
}

// decodeRetirement undoes encodeRetirement. A record of an older version has lost the note.
func (r *HealthRecord) decodeRetirement() {
	if r.Reason != ReasonRetired {
		return
	}
	if r.Retired == nil {
		r.Retired = &Retirement{At: r.Since}
	}
	r.HealthCause = HealthCause{}
}
