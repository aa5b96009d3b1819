package incident

import (
	"fmt"
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

// version of the file format. New fields keep the version; existing fields never change.
const version = 1

// storedState is the stored part of a tracker.
type storedState struct {
	Version   int          `json:"version"`
	Incidents []Incident   `json:"incidents"` // newest first
	Counts    []EventCount `json:"counts"`    // of devices, then of affected containers
}

func (s *storedState) validate() error {
	for n, i := range s.Incidents {
		if i.Device == "" || i.ID == 0 || n > 0 && i.ID >= s.Incidents[n-1].ID {
			return fmt.Errorf("incident %d: id %d is not in descending order, or no device", n, i.ID)
		}
	}
	for n := range s.Counts {
		if n > 0 && s.Counts[n-1].compare(&s.Counts[n]) >= 0 {
			return fmt.Errorf("count %d is out of order", n)
		}
	}
	return nil
}

// tracker is the state of a Log. The caller passes the time and holds a lock.
type tracker struct {
	maxIncidents int
	maxAge       time.Duration // since the last event
	startedAt    time.Time

	entries  []*trackedIncident // by ID
	counters counterSet
	lastID   uint64

	version uint64 // counts changes
	urgent  bool   // a device turned unhealthy since the last snapshot
}

// trackedIncident is an Incident with its private state. Published parts of the Incident (Affected and pointers) are replaced, never written.
type trackedIncident struct {
	Incident
	startedAt          time.Time           // of the events that affected the containers with terminationFinal false: the first of them
	software           bool                // as in xid.BySoftware
	merged             bool                // with the incidents that it repeats
	deviceIDs          []device.ID         // of the affected devices
	allocations        []device.Allocation // of each of them at the event
	unnamedAllocations []device.Allocation // those without an owner, until ownerDeadline
	ownerDeadline      time.Time

	recordedAt       time.Time     // time of the newest Record; zero: of an earlier process
	counters         []*EventCount // of the incident's device and of each affected container
	terminationFinal []bool        // of each affected container: nothing more will be known

	fromEarlierProcess bool
}

func newTracker(o Options, now time.Time) *tracker {
	return &tracker{maxIncidents: o.MaxIncidents, maxAge: o.MaxAge, startedAt: now}
}

// load adds the incidents of an earlier process, before the first record.
func (t *tracker) load(s storedState) {
	for _, i := range slices.Backward(s.Incidents) {
		e := &trackedIncident{Incident: i, startedAt: i.First, software: xid.BySoftware(i.Reason), deviceIDs: []device.ID{i.Device}, fromEarlierProcess: true}
		for _, d := range i.MIGDevices {
			e.deviceIDs = append(e.deviceIDs, d.Device)
		}
		for _, c := range i.Affected {
			e.terminationFinal = append(e.terminationFinal, !c.Last.IsZero())
		}
		t.entries = append(t.entries, e)
		t.lastID = i.ID
	}
	for _, c := range s.Counts {
		t.counters = append(t.counters, &c)
	}
	t.mergeRepeats()
	t.evict()
	t.version++
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

// sameAllocations reports whether the affected devices are allocated as before. A repeated event costs no memory.
func (e *trackedIncident) sameAllocations(o *device.HealthEvent, h *device.Allocations) bool {
	before := e.allocations
	for _, id := range e.deviceIDs {
		rows := h.ForDevice(id)
		if len(rows) > len(before) || !slices.Equal(rows, before[:len(rows)]) ||
			slices.ContainsFunc(recordsOf(h.Recent, id), func(s device.AllocationRecord) bool {
				return s.EndedAt.IsZero() && s.FirstSeen.After(e.Last) && !s.FirstSeen.After(o.At)
			}) {
			return false
		}
		before = before[len(rows):]
	}
	return len(before) == 0
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
	if e.Historical { // counters count events since the start
		e.AffectedUnknown = true
	} else {
		if e.isFault() {
			e.counters = append(e.counters, t.counters.get(e, e.Device, device.Owner{}))
		}
		e.unnamedAllocations = slices.DeleteFunc(slices.Clone(e.allocations), func(r device.Allocation) bool { return r.Owner != (device.Owner{}) })
		t.attribute(e, h)
		e.OwnersIncomplete, e.ownerDeadline = len(e.unnamedAllocations) > 0, now.Add(ownerTimeout)
		e.AffectedUnknown = unallocated && !h.Complete
	}
	t.entries = append(t.entries, e)
	t.evict()
	return e
}

// countReport counts an event without allocations: events may be many.
func (t *tracker) countReport(e *trackedIncident, o *device.HealthEvent, now time.Time) {
	e.Count++
	e.recordedAt = now
	e.First, e.Last = earliest(e.First, o.At), latest(e.Last, o.At)
	e.MarkedUnhealthy = e.MarkedUnhealthy || o.MarkedUnhealthy
	t.urgent = t.urgent || o.MarkedUnhealthy
	for _, c := range e.counters {
		c.add(e, 1, o.At)
	}
	t.version++
}

// evict removes incidents beyond the quotas. A container can cause errors of software at will, so their quota is separate.
func (t *tracker) evict() {
	incidents, containers := max(1, t.maxIncidents/softwareQuota), maxAffectedTotal/softwareQuota
	t.evictBeyond(true, incidents, containers)
	t.evictBeyond(false, max(1, t.maxIncidents-incidents), maxAffectedTotal-containers)
}

func (t *tracker) evictBeyond(software bool, maxIncidents, maxContainers int) {
	for {
		incidents, containers := map[string]int{}, map[string]int{} // by namespace
		excess, excessContainers := -maxIncidents, -maxContainers
		for _, e := range t.entries {
			if e.software == software {
				incidents[e.namespace()]++
				containers[e.namespace()] += len(e.Affected)
				excess, excessContainers = excess+1, excessContainers+len(e.Affected)
			}
		}
		sizes := incidents
		if excess <= 0 {
			sizes = containers
		}
		i := t.leastNeeded(software, sizes)
		if excess <= 0 && excessContainers <= 0 || i < 0 {
			return
		}
		t.entries = slices.Delete(t.entries, i, i+1)
	}
}

// leastNeeded returns the oldest incident of the largest namespace: first of recovered devices, never the newest incident, negative: none.
// So no namespace removes all incidents of another one.
func (t *tracker) leastNeeded(software bool, sizes map[string]int) int {
	least := -1
	for i := 0; i < len(t.entries)-1; i++ {
		e := t.entries[i]
		if e.software != software || sizes[e.namespace()] == 0 {
			continue
		}
		if least < 0 || t.entries[least].isOpen() && !e.isOpen() ||
			t.entries[least].isOpen() == e.isOpen() && sizes[e.namespace()] > sizes[t.entries[least].namespace()] {
			least = i
		}
	}
	return least
}

// namespace returns the namespace of the first affected container; empty: none.
func (e *trackedIncident) namespace() string {
	if len(e.Affected) == 0 {
		return ""
	}
	return e.Affected[0].Namespace
}

// isFault reports whether the incident is counted: a retirement is the operator's decision.
func (e *trackedIncident) isFault() bool { return e.Reason != device.ReasonRetired }

// isOpen reports whether the device has not recovered yet.
func (e *trackedIncident) isOpen() bool { return e.MarkedUnhealthy && e.RecoveredAt == nil }

// prune removes expired incidents and counters. Counters of present devices stay.
func (t *tracker) prune(present func(device.ID) bool, now time.Time) {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *trackedIncident) bool { return t.expired(e.Last, now) })
	t.evict() // the kubelet may have named containers since
	countersPruned := t.counters.prune(func(c *EventCount) bool {
		return t.expired(c.Last, now) && (c.Pod != "" || !present(c.Device))
	})
	if countersPruned || len(t.entries) != before {
		t.version++
	}
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
		t.version++
	}
}

// storedState returns an immutable copy of the state.
func (t *tracker) storedState() storedState {
	s := storedState{Version: version, Incidents: make([]Incident, len(t.entries)), Counts: t.counters.values()}
	for i, e := range t.entries {
		s.Incidents[len(s.Incidents)-1-i] = e.Incident
	}
	return s
}
