package device

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// maxAbsentRecords bounds the records of absent devices. Age does not: a clock that is
	// ahead must not erase them.
	maxAbsentRecords = 256
	// historySaveInterval is how often the odometers of those that wait for a reset are noted.
	historySaveInterval = time.Minute
	// firstPublishTimeout is how long the first post waits for those on probation.
	firstPublishTimeout = 30 * time.Second
)

// HealthHistory is what one process tells the next of the devices' health. It is never written
// after it was handed over.
type HealthHistory struct {
	Records []HealthRecord
	// Rebooted says that the node was booted since: a reset of all that is in it.
	Rebooted bool
	// Lost says that something was remembered and cannot be told: then no device is trusted
	// before it has passed its checks. It is handed on until they have.
	Lost bool
}

// HealthRecord is what is remembered of a GPU with all that it has, or of a slice by itself.
type HealthRecord struct {
	GPU    GPU
	Device ID // the slice; empty: the GPU
	// Reason is why it cannot be used; empty where it can, and the next ones are, too.
	Reason, Action, Class string
	Since                 time.Time // when it turned so
	FaultAt               time.Time // when the newest fault of that kind came
	LastSeen              time.Time // when it was last there, or, of a slice, there and so
	NeedsReset            bool      // only a reset mends it
	ByPolicy              bool      // since the operator wants it so
	ResetSeen             bool      // and one was seen since
	EnergyCounter         uint64    // the GPU's, of Vitals, since then; 0 where it is not known
	Flaps                 uint64    // as in Status
	UnhealthyTimes        []time.Time
	// FailedResets is the last fault that asked for a reset, and how many have followed it.
	FailedResets FailedResets
	// LastListed is what the newest listing had of a GPU, without its Nodes and Facts; the zero
	// Device if that is not known. Gone is since when no listing has had it; zero: it was
	// there when the record was made.
	LastListed Device
	GoneSince  time.Time
	// rebooted says that the node was since it was written.
	rebooted bool
	// Xids are the GPU's counts. They, and Flaps, continue from the process before: none may be
	// less than a scrape has shown, unless it is 0, since Prometheus takes all of a counter that
	// fell for an increase.
	Xids []Xid
}

type recordKey struct {
	gpu    GPU
	device ID
}

// loadHistory takes what was remembered, until a listing shows whom it is about.
func (m *Monitor) loadHistory() {
	for _, r := range m.options.History.Records {
		if r.rebooted = m.options.History.Rebooted; r.rebooted {
			r.recordReset()
		}
		m.absentRecords[recordKey{r.GPU, r.Device}] = r
	}
	m.refreshSavedHistory()
	m.awaitRecovering = m.options.History.Rebooted || m.options.History.Lost
	m.historyLost = m.options.History.Lost
	m.historyChanged = m.historyLost // who set it aside has told nobody else
}

// recordReset notes a reset.
func (r *HealthRecord) recordReset() {
	if !r.NeedsReset || r.ResetSeen {
		return
	}
	r.ResetSeen = true
	if r.FailedResets.Reason == r.Reason {
		r.FailedResets.Count++
	}
}

// recordAbsentReset notes a reset of a GPU, which its odometer shows, on what is remembered of its
// slices that are not there. It tells whether there is any: a reset takes them all away, and
// when one is back the odometer may be as far as before.
func (m *Monitor) recordAbsentReset(gpu GPU, energyCounter uint64) (found bool) {
	for key, r := range m.absentRecords {
		if key.gpu == gpu && energyCounter != 0 && energyCounter < r.EnergyCounter && r.NeedsReset && !r.ResetSeen {
			r.recordReset()
			m.absentRecords[key], found = r, true
		}
	}
	return found
}

// restoreRecord has a GPU or a slice that is listed for the first time go on where it was.
func (m *Monitor) restoreRecord(g *trackedGPU, s *healthState, id ID, now time.Time) {
	key := recordKey{g.gpu, id}
	r, known := m.absentRecords[key]
	if r.Reason == "" && m.options.History.Lost && s == &g.healthState { // a known record may be old
		s.health, s.cause = Recovering, healthCause{reason: "unproven", noFault: true, since: now}
	}
	if !known {
		return
	}
	delete(m.absentRecords, key)
	s.flaps = r.Flaps
	s.unhealthyTimes = slices.DeleteFunc(slices.Clone(r.UnhealthyTimes), func(at time.Time) bool { return at.After(now) })
	if r.Since.After(now) { // the clock was set
		r.Since = now
	}
	s.failedResets = r.FailedResets
	if s == &g.healthState {
		for _, x := range r.Xids {
			if x.Last.After(now) { // the clock was set
				x.Last = now
			}
			if t := g.eventCounter(Event{Xid: x.Code}); t != nil {
				t.Xid = x
			}
		}
		m.updateXids(g)
	}
	if r.Reason == "" {
		return
	}
	s.health, s.resetSeen = Unhealthy, r.NeedsReset && r.ResetSeen
	s.cause = healthCause{
		reason: r.Reason, action: r.Action, class: r.Class, needsReset: r.NeedsReset, byPolicy: r.ByPolicy,
		since: r.Since, faultAt: r.FaultAt, notedAt: now, checksBegun: g.checksBegun, energyCounter: r.EnergyCounter,
	}
	if r.rebooted { // else it is for a check to say that it is over: a repair may still wait
		s.health = Recovering
	}
	if s == &g.healthState && s.health == Unhealthy {
		g.assessed = true
	}
	m.log.Info("health is remembered", "gpu", g.gpu, "device", id, "is", r.Reason, "since", r.Since, "reset", r.ResetSeen)
}

// restoreAbsent puts on the Board each GPU that is remembered and that the listing lacks: an
// earlier process had it, and a kubelet that is not told of it takes it for healthy. It is
// forgotten as any that is gone; one that was gone for long before comes if it is held.
func (m *Monitor) restoreAbsent(now time.Time) {
	for key, r := range m.absentRecords {
		if r.GoneSince.IsZero() || r.GoneSince.After(now) { // the clock was set
			r.GoneSince = now
		}
		id := r.LastListed.ID
		old := now.Sub(r.GoneSince) >= goneGPUTTL
		if key.device != "" || id == "" || m.gpus[r.GPU] != nil || old && !m.isAllocated(id) {
			continue
		}
		g := &trackedGPU{gpu: r.GPU, number: len(m.gpus), firstListedAt: now, device: r.LastListed, affected: []Device{r.LastListed}, goneSince: r.GoneSince}
		m.gpus[r.GPU] = g
		m.restoreRecord(g, &g.healthState, "", now)
		m.devices = append(m.devices, &trackedDevice{Device: r.LastListed, gpu: g, goneSince: r.GoneSince})
		m.log.Warn("GPU is not listed, and was there before", "gpu", r.GPU, "index", r.LastListed.Index, "pci", r.LastListed.PCI, "gone", r.GoneSince)
	}
}

// healthRecord is what is to be remembered of a GPU or a slice; false where nothing is.
func (g *trackedGPU) healthRecord(s *healthState, id ID, now time.Time) (r HealthRecord, found bool) {
	r = HealthRecord{GPU: g.gpu, Device: id, Flaps: s.flaps, UnhealthyTimes: slices.Clone(s.unhealthyTimes), FailedResets: s.failedResets}
	if v := s.cause; v.reason != "" && !v.noFault {
		r.Reason, r.Action, r.Class, r.Since, r.FaultAt, r.LastSeen = v.reason, v.action, v.class, v.since, v.faultAt, now
		r.NeedsReset, r.ByPolicy, r.ResetSeen, r.EnergyCounter = v.needsReset, v.byPolicy, s.resetSeen, v.energyCounter
		// What was read before the fault may be from before a reset that came before it, too.
		if g.energyCounter != 0 && v.resetBaseline != nil {
			r.EnergyCounter = g.energyCounter
		}
	}
	if s == &g.healthState {
		for _, t := range g.eventCounters {
			if t.Code != 0 {
				r.Xids = append(r.Xids, t.Xid)
			}
		}
		r.LastListed, r.GoneSince, r.LastSeen = g.device, g.goneSince, now
		if !g.goneSince.IsZero() {
			r.LastSeen = g.goneSince
		}
	}
	return r, r.LastListed.ID != "" || r.Reason != "" || r.Flaps > 0 || len(r.UnhealthyTimes) > 0 || r.FailedResets.Reason != "" || len(r.Xids) > 0
}

// lastActivity is when anything was last heard of it. How old a verdict is says nothing of that.
func (r HealthRecord) lastActivity() time.Time {
	newest := r.FaultAt
	for _, at := range append(slices.Clone(r.UnhealthyTimes), r.FailedResets.LastFaultAt, r.LastSeen) {
		newest = latest(newest, at)
	}
	for _, x := range r.Xids {
		newest = latest(newest, latest(x.Last, x.LastHistorical))
	}
	return newest
}

// keepRecord keeps what is remembered of a device that is forgotten: it may come back, and what
// was wrong with it has not gone by that.
func (m *Monitor) keepRecord(g *trackedGPU, s *healthState, id ID, now time.Time) {
	if r, found := g.healthRecord(s, id, now); found {
		m.absentRecords[recordKey{g.gpu, id}] = r
	}
	for len(m.absentRecords) > maxAbsentRecords {
		m.deleteOldestRecord()
	}
}

// deleteOldestRecord forgets the absent device of which nothing was heard for the longest time.
func (m *Monitor) deleteOldestRecord() {
	absent := slices.Collect(maps.Values(m.absentRecords))
	r := slices.MinFunc(absent, func(a, b HealthRecord) int { return cmp.Or(a.lastActivity().Compare(b.lastActivity()), a.compare(b)) })
	delete(m.absentRecords, recordKey{r.GPU, r.Device})
}

// saveHistory hands over what the next process has to know: at once where a verdict has
// changed, and a moment later what is but a count, of which there may be many.
func (m *Monitor) saveHistory(now time.Time) {
	due := m.historyChanged || m.countsChanged && now.Sub(m.historySavedAt) >= tickInterval ||
		now.Sub(m.historySavedAt) >= historySaveInterval && m.awaitsReset()
	if m.options.Store == nil || !due {
		return
	}
	m.historyChanged, m.countsChanged, m.historySavedAt = false, false, now
	m.options.Store.Save(m.healthHistory(now))
}

// saveFinalHistory hands over how it all ended, counts included, and with what was told but not
// read: to the next process that is past, and condemns nobody.
func (m *Monitor) saveFinalHistory() {
	now := time.Now()
	select {
	case r := <-m.waitResults:
		m.handleWaitResult(r, now)
	default:
	}
	m.handleKernelEventsBefore(now, now)
	m.historyChanged = true
	m.saveHistory(now)
}

// awaitsReset tells whether a verdict would be lifted by a reset that only the odometer
// shows to a later process.
func (m *Monitor) awaitsReset() bool {
	for _, d := range m.devices {
		for _, s := range []*healthState{&d.state, &d.gpu.healthState} {
			if s.cause.needsReset && !s.resetSeen {
				return true
			}
		}
	}
	return false
}

// healthHistory is what is remembered now, ordered by GPU and device.
func (m *Monitor) healthHistory(now time.Time) HealthHistory {
	records := slices.Collect(maps.Values(m.absentRecords))
	for _, g := range m.gpus {
		if r, found := g.healthRecord(&g.healthState, "", now); found {
			records = append(records, r)
		}
		for _, d := range g.migDevices {
			if r, found := g.healthRecord(&d.state, d.ID, now); found {
				records = append(records, r)
			}
		}
	}
	slices.SortFunc(records, HealthRecord.compare)
	return HealthHistory{Records: records, Lost: m.historyLost}
}

// record finds a device's; the zero Record if there is none. Records are in order.
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

// xidCount finds an Xid's.
func (r HealthRecord) xidCount(code uint64) uint64 {
	i := slices.IndexFunc(r.Xids, func(x Xid) bool { return x.Code == code })
	if i < 0 {
		return 0
	}
	return r.Xids[i].Count
}

func (r HealthRecord) compare(o HealthRecord) int {
	return cmp.Or(cmp.Compare(r.GPU, o.GPU), cmp.Compare(r.Device, o.Device))
}

// awaitsRecovery tells whether the first post is to wait for a device: after a boot, and where
// nobody knows what was wrong before, those on probation are soon known to be well or not.
// A kubelet that is told of one as unhealthy in its first list turns the pods away that
// hold it. One that has flapped takes longer, and is not waited for.
func (m *Monitor) awaitsRecovery(d *trackedDevice, now time.Time) bool {
	if !m.awaitRecovering || now.Sub(d.gpu.firstListedAt) >= firstPublishTimeout {
		return false
	}
	s := &d.state
	if d.gpu.health != Healthy {
		s = &d.gpu.healthState
	}
	return s.health == Recovering && s.recoveryPeriod(now) < firstPublishTimeout-5*time.Second
}
