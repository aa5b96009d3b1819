package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

const (
	// clockTrustDelay is the uptime before incidents expire: a clock that is
	// ahead at boot must not delete them.
	clockTrustDelay = 24 * time.Hour
	// maxAffectedTotal bounds the affected containers of all incidents, and
	// thereby memory and the size of the file.
	maxAffectedTotal = 8192
	// softwareQuota divides the incidents and their containers: errors of
	// software have one part, all others have the rest.
	softwareQuota = 4
)

// tracker is the state of a Log. The caller passes the time and holds a lock.
type tracker struct {
	maxIncidents int
	maxAge       time.Duration // since the last event
	startedAt    time.Time

	entries  []*trackedIncident // by ID
	counters counterSet
	lastID   uint64

	changed bool // since the last snapshot
	urgent  bool // a device turned unhealthy since the last snapshot
}

// load adds the incidents of an earlier process, newest first, before the first
// record. Their counters have the times, and start at 0.
func (t *tracker) load(stored []Incident) {
	for _, i := range slices.Backward(stored) {
		e := &trackedIncident{
			Incident: i, startedAt: i.First, software: xid.BySoftware(i.Reason), deviceIDs: []device.ID{i.Device},
			fromEarlierProcess: true, counters: t.counters,
		}
		for _, d := range i.MIGDevices {
			e.deviceIDs = append(e.deviceIDs, d.Device)
		}
		e.Affected = slices.Clone(i.Affected)
		for n, c := range e.Affected {
			e.Affected[n].terminationFinal = !c.Last.IsZero()
		}
		t.entries = append(t.entries, e)
		t.lastID = i.ID
	}
	t.mergeRepeats()
	t.evict()
	for _, e := range t.entries {
		if e.isCounted() {
			t.counters.add(&e.Incident, e.Device, allocation.Owner{}, 0, e.Last)
			for _, c := range e.Affected {
				t.counters.add(&e.Incident, e.DeviceOf(c), c.Owner, 0, e.LastOf(c))
			}
		}
	}
	t.changed = true
}

// record records an event: an incident of the GPU if the GPU is affected, with
// all its MIG devices.
func (t *tracker) record(o *device.HealthEvent, h *allocation.Snapshot, hpcJobs []string, now time.Time) {
	if len(o.Affected) == 0 {
		return
	}
	d := &o.Affected[max(0, slices.IndexFunc(o.Affected, device.Device.WholeGPU))]
	e := t.newest(d.ID, o.Reason)
	if e != nil {
		e.resolveOwners(h, now)
	}
	if e == nil || !e.matches(o, h) || !slices.Equal(e.HPCJobs, hpcJobs) {
		e = t.newIncident(o, d, h, now)
		e.HPCJobs = hpcJobs
	}
	e.count(o, now)
	t.urgent = t.urgent || o.MarkedUnhealthy
}

// newest returns the newest incident of a device with a reason; nil: none.
func (t *tracker) newest(id device.ID, reason string) *trackedIncident {
	for _, e := range slices.Backward(t.entries) {
		if e.Device == id && e.Reason == reason {
			return e
		}
	}
	return nil
}

// newIncident adds an incident of a device without events.
func (t *tracker) newIncident(
	o *device.HealthEvent, d *device.Device, h *allocation.Snapshot, now time.Time,
) *trackedIncident {
	t.lastID = max(t.lastID+1, uint64(max(now.UnixMilli(), 0)))
	e := &trackedIncident{startedAt: o.At, software: xid.BySoftware(o.Reason), counters: t.counters}
	e.Incident = Incident{
		ID: t.lastID, First: o.At, Last: o.At,
		Device: d.ID, GPU: d.GPU, Index: d.Index, Profile: d.Profile, Model: d.Model, PCI: d.PCI,
		Reason: o.Reason, Note: o.Note, Xid: o.Xid, Class: o.Class, Action: o.Action,
		Source: o.Source, Historical: o.Historical,
	}
	unallocated := false
	for _, a := range o.Affected {
		e.deviceIDs = append(e.deviceIDs, a.ID)
		if a.ID != d.ID {
			e.MIGDevices = append(e.MIGDevices, AffectedMIGDevice{a.ID, a.Profile})
		}
		unallocated = unallocated || len(h.ForDevice(a.ID)) == 0 && (!a.MIGEnabled || len(o.Affected) == 1)
	}
	e.allocations = e.currentAllocations(h)
	if e.Historical {
		e.AffectedUnknown = true
	} else {
		isNamed := func(r allocation.Allocation) bool { return r.Owner != (allocation.Owner{}) }
		e.unnamedAllocations = slices.DeleteFunc(slices.Clone(e.allocations), isNamed)
		e.attribute(h)
		e.OwnersIncomplete = len(e.unnamedAllocations) > 0
		e.ownerDeadline = now.Add(ownerTimeout)
		e.AffectedUnknown = unallocated && !h.Complete
	}
	t.entries = append(t.entries, e)
	return e
}

// mergeRepeats merges new incidents with earlier incidents of the same reason,
// device and workload within a day. The newest incident stays.
func (t *tracker) mergeRepeats() {
	for i := 0; i < len(t.entries); i++ {
		e := t.entries[i]
		if e.merged || len(e.unnamedAllocations) > 0 {
			continue
		}
		e.merged = true
		for k := i - 1; k >= 0; k-- {
			if t.entries[k].isRepeatedBy(e) {
				e.absorb(t.entries[k])
				t.entries = slices.Delete(t.entries, k, k+1)
				t.changed = true
				i--
				break // the earlier incident was merged with its own repeats
			}
		}
	}
}

// evict removes incidents beyond the quotas. A container can cause errors of
// software at will, so their quotas are separate.
func (t *tracker) evict() {
	one := func(*trackedIncident) int { return 1 }
	containers := func(e *trackedIncident) int { return len(e.Affected) }
	softwareIncidents := max(1, t.maxIncidents/softwareQuota)
	softwareContainers := maxAffectedTotal / softwareQuota
	t.evictBeyond(true, softwareIncidents, one)
	t.evictBeyond(true, softwareContainers, containers)
	t.evictBeyond(false, max(1, t.maxIncidents-softwareIncidents), one)
	t.evictBeyond(false, maxAffectedTotal-softwareContainers, containers)
}

// evictBeyond removes errors of software, or other incidents, until the sum of
// their sizes is within a limit: the oldest of the largest namespace, first of
// recovered devices, and never the newest incident. So no namespace removes all
// incidents of another one.
func (t *tracker) evictBeyond(software bool, limit int, size func(*trackedIncident) int) {
	total, byNamespace := 0, map[string]int{}
	for _, e := range t.entries {
		if e.software == software {
			total += size(e)
			byNamespace[e.namespace()] += size(e)
		}
	}
	for total > limit {
		least := -1
		for i, e := range t.entries[:len(t.entries)-1] {
			isCandidate := e.software == software && size(e) > 0
			if isCandidate && (least < 0 || e.isNeededLess(t.entries[least], byNamespace)) {
				least = i
			}
		}
		if least < 0 {
			return
		}
		total -= size(t.entries[least])
		byNamespace[t.entries[least].namespace()] -= size(t.entries[least])
		t.entries = slices.Delete(t.entries, least, least+1)
		t.changed = true
	}
}

// prune removes expired incidents, and counters without an incident.
func (t *tracker) prune(now time.Time) {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *trackedIncident) bool { return t.expired(e.Last, now) })
	t.changed = t.counters.retain(t.incidents()) || t.changed || len(t.entries) < before
}

// expired reports whether an event is older than maxAge. A wall clock that is
// ahead, or is set ahead, expires nothing: the process must have run for
// clockTrustDelay, and the monotonic clock must agree.
func (t *tracker) expired(last, now time.Time) bool {
	uptime := now.Sub(t.startedAt) // monotonic
	wallClock := earliest(now.Round(0), t.startedAt.Round(0).Add(uptime))
	return uptime >= min(t.maxAge, clockTrustDelay) && wallClock.Sub(last) > t.maxAge
}

// update applies the state of the sources, and reports whether the termination
// of some container is not final.
func (t *tracker) update(
	statuses []device.Status, h *allocation.Snapshot, lookup TerminationLookup, now time.Time,
) (awaitsTermination bool) {
	t.markRecovered(statuses, now)
	for _, e := range t.entries {
		e.updateAffected(h, now)
	}
	t.mergeRepeats()
	t.evict() // the kubelet may have named containers
	for _, e := range t.entries {
		if lookup != nil {
			e.updateTerminations(lookup, now)
		}
		awaitsTermination = awaitsTermination || e.awaitsTermination()
	}
	return awaitsTermination
}

// markRecovered closes the incidents of devices that are healthy again.
func (t *tracker) markRecovered(statuses []device.Status, now time.Time) {
	for _, e := range t.entries {
		if !e.isOpen() {
			continue
		}
		i := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == e.Device })
		if i < 0 || !statuses[i].Healthy {
			continue
		}
		// The status may be older than the event, unless the event is of an
		// earlier process.
		switch since := statuses[i].Since; {
		case since.After(latest(e.Last, e.recordedAt)):
			e.RecoveredAt = &since
		case e.fromEarlierProcess:
			e.RecoveredAt = &now
		default:
			continue
		}
		e.changed = true
	}
}

// resetChanged reports whether the snapshot has changed since the previous
// call.
func (t *tracker) resetChanged() (changed bool) {
	changed, t.changed = t.changed, false
	for _, e := range t.entries {
		changed, e.changed = changed || e.changed, false
	}
	return changed
}

// incidents returns the incidents, newest first.
func (t *tracker) incidents() []Incident {
	all := make([]Incident, 0, len(t.entries))
	for _, e := range slices.Backward(t.entries) {
		all = append(all, e.Incident)
	}
	return all
}
