package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

const (
	// mergeWindow is the longest time between two events of one incident.
	mergeWindow = time.Minute
	// clockTrustDelay is the uptime before incidents expire: a clock that is ahead at boot must not delete them.
	clockTrustDelay = 24 * time.Hour
	// repeatWindow is the longest time between an incident and its repeat. A crash loop takes minutes, a CronJob a day.
	repeatWindow = 24 * time.Hour
	// maxEarlierContainers bounds the containers that only earlier events of an incident affected.
	maxEarlierContainers = 16
	// maxAffectedTotal bounds the affected containers of all incidents, and thereby the size of the file.
	maxAffectedTotal = 8192
	// softwareQuota divides the incidents and their containers: errors of software have one part, all others have the rest.
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

// trackedIncident is an Incident with its private state. Published parts of the Incident (Affected and pointers) are replaced, never written.
type trackedIncident struct {
	Incident
	startedAt          time.Time           // the first event that affected the containers without Last
	software           bool                // as in xid.BySoftware
	merged             bool                // with the incidents that it repeats
	deviceIDs          []device.ID         // of the affected devices
	allocations        []device.Allocation // of each of them at the event
	unnamedAllocations []device.Allocation // those without an owner, until ownerDeadline
	ownerDeadline      time.Time

	recordedAt         time.Time // time of the newest Record; zero: of an earlier process
	fromEarlierProcess bool
}

func newTracker(o Options, now time.Time) *tracker {
	return &tracker{maxIncidents: o.MaxIncidents, maxAge: o.MaxAge, startedAt: now, counters: counterSet{}}
}

// load adds the incidents of an earlier process, newest first, before the first record. Their counters have the times, and start at 0.
func (t *tracker) load(stored []Incident) {
	for _, i := range slices.Backward(stored) {
		e := &trackedIncident{Incident: i, startedAt: i.First, software: xid.BySoftware(i.Reason), deviceIDs: []device.ID{i.Device}, fromEarlierProcess: true}
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
			t.counters.add(e, e.Device, device.Owner{}, 0, e.Last)
			for _, c := range e.Affected {
				t.counters.add(e, e.DeviceOf(c), c.Owner, 0, e.LastOf(c))
			}
		}
	}
	t.changed = true
}

// record records an event: an incident of the GPU if the GPU is affected, with all its MIG devices.
func (t *tracker) record(o *device.HealthEvent, h *device.Allocations, now time.Time) {
	if len(o.Affected) == 0 {
		return
	}
	d := &o.Affected[max(0, slices.IndexFunc(o.Affected, device.Device.WholeGPU))]
	e := t.newest(d.ID, o.Reason)
	if e != nil {
		t.resolveOwners(e, h, now)
	}
	if e == nil || !e.matches(o, h) {
		e = t.newIncident(o, d, h, now)
	}
	t.countReport(e, o, now)
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

// matches reports whether an event repeats the incident. A later owner of the same name, as in a StatefulSet, has an incident of its own.
func (e *trackedIncident) matches(o *device.HealthEvent, h *device.Allocations) bool {
	return !e.fromEarlierProcess && e.Historical == o.Historical && e.Note == o.Note && e.RecoveredAt == nil && o.At.Sub(e.Last) <= mergeWindow &&
		slices.EqualFunc(e.deviceIDs, o.Affected, func(id device.ID, d device.Device) bool { return d.ID == id }) && e.sameAllocations(o, h)
}

// sameAllocations reports whether the affected devices are allocated as before.
func (e *trackedIncident) sameAllocations(o *device.HealthEvent, h *device.Allocations) bool {
	began := func(s device.AllocationRecord) bool {
		return s.EndedAt.IsZero() && s.FirstSeen.After(e.Last) && !s.FirstSeen.After(o.At)
	}
	for _, id := range e.deviceIDs {
		if slices.ContainsFunc(recordsOf(h.Recent, id), began) {
			return false
		}
	}
	return slices.Equal(e.currentAllocations(h), e.allocations)
}

// currentAllocations returns the allocations of each affected device, in the order of deviceIDs.
func (e *trackedIncident) currentAllocations(h *device.Allocations) (rows []device.Allocation) {
	for _, id := range e.deviceIDs {
		rows = append(rows, h.ForDevice(id)...)
	}
	return rows
}

// newIncident adds an incident of a device without events.
func (t *tracker) newIncident(o *device.HealthEvent, d *device.Device, h *device.Allocations, now time.Time) *trackedIncident {
	t.lastID = max(t.lastID+1, uint64(max(now.UnixMilli(), 0)))
	e := &trackedIncident{startedAt: o.At, software: xid.BySoftware(o.Reason), Incident: Incident{
		ID: t.lastID, First: o.At, Last: o.At,
		Device: d.ID, GPU: d.GPU, Index: d.Index, Profile: d.Profile, Model: d.Model, PCI: d.PCI,
		Reason: o.Reason, Note: o.Note, Xid: o.Xid, Class: o.Class, Action: o.Action, Source: o.Source, Historical: o.Historical,
	}}
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
		e.unnamedAllocations = slices.DeleteFunc(slices.Clone(e.allocations), func(r device.Allocation) bool { return r.Owner != (device.Owner{}) })
		t.attribute(e, h)
		e.OwnersIncomplete, e.ownerDeadline = len(e.unnamedAllocations) > 0, now.Add(ownerTimeout)
		e.AffectedUnknown = unallocated && !h.Complete
	}
	t.entries = append(t.entries, e)
	t.evict()
	return e
}

// countReport counts an event.
func (t *tracker) countReport(e *trackedIncident, o *device.HealthEvent, now time.Time) {
	e.Count++
	e.recordedAt = now
	e.First, e.Last = earliest(e.First, o.At), latest(e.Last, o.At)
	e.MarkedUnhealthy = e.MarkedUnhealthy || o.MarkedUnhealthy
	t.urgent = t.urgent || o.MarkedUnhealthy
	t.changed = true
	if !e.isCounted() {
		return
	}
	t.counters.add(e, e.Device, device.Owner{}, 1, o.At)
	for _, c := range e.Affected {
		if c.Last.IsZero() {
			t.counters.add(e, e.DeviceOf(c), c.Owner, 1, o.At)
		}
	}
}

// evict removes incidents beyond the quotas. A container can cause errors of software at will, so their quotas are separate.
func (t *tracker) evict() {
	one := func(*trackedIncident) int { return 1 }
	containers := func(e *trackedIncident) int { return len(e.Affected) }
	softwareIncidents, softwareContainers := max(1, t.maxIncidents/softwareQuota), maxAffectedTotal/softwareQuota
	t.evictBeyond(true, softwareIncidents, one)
	t.evictBeyond(true, softwareContainers, containers)
	t.evictBeyond(false, max(1, t.maxIncidents-softwareIncidents), one)
	t.evictBeyond(false, maxAffectedTotal-softwareContainers, containers)
}

// evictBeyond removes errors of software, or other incidents, until the sum of their sizes is within a limit: the oldest of the largest
// namespace, first of recovered devices, and never the newest incident. So no namespace removes all incidents of another one.
func (t *tracker) evictBeyond(software bool, limit int, size func(*trackedIncident) int) {
	for {
		total, byNamespace, least := 0, map[string]int{}, -1
		for _, e := range t.entries {
			if e.software == software {
				total += size(e)
				byNamespace[e.namespace()] += size(e)
			}
		}
		for i, e := range t.entries {
			if e.software == software && size(e) > 0 && i < len(t.entries)-1 &&
				(least < 0 || e.isNeededLess(t.entries[least], byNamespace)) {
				least = i
			}
		}
		if total <= limit || least < 0 {
			return
		}
		t.entries = slices.Delete(t.entries, least, least+1)
		t.changed = true
	}
}

func (e *trackedIncident) isNeededLess(o *trackedIncident, byNamespace map[string]int) bool {
	if e.isOpen() != o.isOpen() {
		return !e.isOpen()
	}
	return byNamespace[e.namespace()] > byNamespace[o.namespace()]
}

// namespace returns the namespace of the first affected container; empty: none.
func (e *trackedIncident) namespace() string {
	if len(e.Affected) == 0 {
		return ""
	}
	return e.Affected[0].Namespace
}

// isCounted reports whether counters have the events: those since the start, except the operator's decision to retire a device.
func (e *trackedIncident) isCounted() bool { return !e.Historical && e.Reason != device.ReasonRetired }

// isOpen reports whether the device has not recovered yet.
func (e *trackedIncident) isOpen() bool { return e.MarkedUnhealthy && e.RecoveredAt == nil }

// prune removes expired incidents, and counters without an incident.
func (t *tracker) prune(now time.Time) {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *trackedIncident) bool { return t.expired(e.Last, now) })
	t.evict() // the kubelet may have named containers since
	t.changed = t.counters.retain(t.entries) || t.changed || len(t.entries) < before
}

// expired reports whether an event is older than maxAge. A wall clock that is ahead, or is set ahead, expires nothing: the process must have
// run for clockTrustDelay, and the monotonic clock must agree.
func (t *tracker) expired(last, now time.Time) bool {
	uptime := now.Sub(t.startedAt) // monotonic
	return uptime >= min(t.maxAge, clockTrustDelay) && earliest(now.Round(0), t.startedAt.Round(0).Add(uptime)).Sub(last) > t.maxAge
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
		// The status may be older than the event, unless the event is of an earlier process.
		switch since := statuses[i].Since; {
		case since.After(latest(e.Last, e.recordedAt)):
			e.RecoveredAt = &since
		case e.fromEarlierProcess:
			e.RecoveredAt = &now
		default:
			continue
		}
		t.changed = true
	}
}

// snapshot returns an immutable copy of the state.
func (t *tracker) snapshot() Snapshot {
	s := Snapshot{Incidents: make([]Incident, 0, len(t.entries))}
	for _, e := range slices.Backward(t.entries) {
		s.Incidents = append(s.Incidents, e.Incident)
	}
	s.Devices, s.Affected = t.counters.counts()
	return s
}
