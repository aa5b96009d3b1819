package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// mergeWindow is the longest time between two events of one incident.
	mergeWindow = time.Minute
	// clockTrustDelay is the uptime before incidents expire: a clock that is ahead at boot must not delete them.
	clockTrustDelay = 24 * time.Hour
	// maxAffectedTotal bounds the affected containers of all incidents, and thereby the size of the file.
	maxAffectedTotal = 8192
)

// tracker is the state of a Log. The caller passes the time and holds a lock.
type tracker struct {
	maxIncidents int
	maxAge       time.Duration // since the last event
	startedAt    time.Time

	entries          []*trackedIncident // by ID
	byKey            map[incidentKey]*trackedIncident
	deviceCounters   counterSet // by device and reason
	affectedCounters counterSet // by device, owner and reason
	lastID           uint64
	affectedTotal    int // affected containers of all entries

	version uint64 // counts changes
	urgent  bool   // a device turned unhealthy since the last snapshot
}

// incidentKey identifies the incident of an event.
type incidentKey struct {
	device device.ID
	reason string
}

// trackedIncident is an Incident with its private state. Published parts of the Incident (Affected and pointers) are replaced, never written.
type trackedIncident struct {
	Incident
	allocations        []device.Allocation // of the device at the event
	unnamedAllocations []device.Allocation // those without an owner, until ownerDeadline
	ownerDeadline      time.Time

	recordedAt       time.Time // time of the newest Record; zero: of an earlier process
	deviceCounter    *incidentCounter
	affectedCounters []*incidentCounter // of each affected container
	terminationFinal []bool             // of each affected container: nothing more will be known

	fromEarlierProcess bool
}

func newTracker(o Options, now time.Time) *tracker {
	return &tracker{maxIncidents: o.MaxIncidents, maxAge: o.MaxAge, startedAt: now, byKey: map[incidentKey]*trackedIncident{}}
}

// load adds the incidents of an earlier process, before the first record.
func (t *tracker) load(s storedState) {
	for _, i := range slices.Backward(s.incidents) {
		t.entries = append(t.entries, &trackedIncident{Incident: i, terminationFinal: make([]bool, len(i.Affected)), fromEarlierProcess: true})
		t.lastID, t.affectedTotal = i.ID, t.affectedTotal+len(i.Affected)
	}
	for _, c := range s.devices {
		*t.deviceCounters.get(counterKey{device: c.Device, reason: c.Reason}) = incidentCounter{
			counterKey{device: c.Device, reason: c.Reason}, c.GPU, c.Index, c.Count, c.Last,
		}
	}
	for _, h := range s.affected {
		key := counterKey{h.Device, h.Owner, h.Reason}
		*t.affectedCounters.get(key) = incidentCounter{key, h.GPU, h.Index, h.Count, h.Last}
	}
	t.evict()
	t.markChanged()
}

func (t *tracker) markChanged() { t.version++ }

// record records an event for each allocatable device. A partitioned GPU is recorded only without an affected MIG device, or if it is
// allocated: with the MIG strategy none, NVIDIA's plugin allocates partitioned GPUs.
func (t *tracker) record(o *device.HealthEvent, h *device.Allocations, now time.Time) {
	hasDevices := slices.ContainsFunc(o.Affected, func(d device.Device) bool { return !d.MIGEnabled })
	for i := range o.Affected {
		if d := &o.Affected[i]; !d.MIGEnabled || !hasDevices || len(h.ForDevice(d.ID)) > 0 {
			t.recordDevice(o, d, h, now)
		}
	}
}

func (t *tracker) recordDevice(o *device.HealthEvent, d *device.Device, h *device.Allocations, now time.Time) {
	e := t.byKey[incidentKey{d.ID, o.Reason}]
	if e != nil && len(e.unnamedAllocations) > 0 {
		t.resolveOwners(e, h, now)
	}
	if e == nil || !e.matches(o, h) {
		e = t.newIncident(o, d, h, now)
	}
	t.countReport(e, o, now)
}

// matches reports whether an event repeats the incident.
func (e *trackedIncident) matches(o *device.HealthEvent, h *device.Allocations) bool {
	return !e.fromEarlierProcess && e.Historical == o.Historical && e.RecoveredAt == nil && o.At.Sub(e.Last) <= mergeWindow &&
		slices.Equal(h.ForDevice(e.Device), e.allocations) && !e.ownerReplaced(o, h)
}

// ownerReplaced reports whether the device was allocated again since the last event, to a container of the same name (as in a StatefulSet).
func (e *trackedIncident) ownerReplaced(o *device.HealthEvent, h *device.Allocations) bool {
	return slices.ContainsFunc(recordsOf(h.Recent, e.Device), func(s device.AllocationRecord) bool {
		return s.EndedAt.IsZero() && s.FirstSeen.After(e.Last) && !s.FirstSeen.After(o.At)
	})
}

// newIncident adds an incident without events.
func (t *tracker) newIncident(o *device.HealthEvent, d *device.Device, h *device.Allocations, now time.Time) *trackedIncident {
	t.lastID = max(t.lastID+1, uint64(max(now.UnixMilli(), 0)))
	e := &trackedIncident{Incident: Incident{
		ID: t.lastID, First: o.At, Last: o.At,
		Device: d.ID, GPU: d.GPU, Index: d.Index, Profile: d.Profile, Model: d.Model, PCI: d.PCI,
		Reason: o.Reason, Xid: o.Xid, Class: o.Class, Action: o.Action, Source: o.Source, Historical: o.Historical,
	}}
	e.deviceCounter = t.deviceCounters.get(counterKey{device: d.ID, reason: o.Reason})
	e.allocations = slices.Clone(h.ForDevice(d.ID))
	t.attribute(e, h, now)
	t.entries = append(t.entries, e)
	t.byKey[incidentKey{d.ID, o.Reason}] = e
	t.evict()
	return e
}

// countReport counts an event without allocations: events may be many.
func (t *tracker) countReport(e *trackedIncident, o *device.HealthEvent, now time.Time) {
	e.Count++
	e.recordedAt = now
	if o.At.Before(e.First) {
		e.First = o.At
	}
	if o.At.After(e.Last) {
		e.Last = o.At
	}
	e.MarkedUnhealthy = e.MarkedUnhealthy || o.MarkedUnhealthy
	t.urgent = t.urgent || o.MarkedUnhealthy
	if !e.Historical { // counters count events since the start
		e.deviceCounter.add(e, 1, o.At)
	}
	for _, c := range e.affectedCounters {
		c.add(e, 1, o.At)
	}
	t.markChanged()
}

// addAffected adds an affected container.
func (t *tracker) addAffected(e *trackedIncident, h AffectedContainer) {
	e.Affected = append(slices.Clone(e.Affected), h)
	e.terminationFinal = append(e.terminationFinal, false)
	t.affectedTotal++
	c := t.affectedCounters.get(counterKey{e.Device, h.owner(), e.Reason})
	e.affectedCounters = append(e.affectedCounters, c)
	if e.Count > 0 {
		c.add(e, e.Count, e.Last)
	}
	t.markChanged()
}

func (h AffectedContainer) owner() device.Owner {
	return device.Owner{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
}

// drop removes an incident from the indexes, and leaves the counters.
func (t *tracker) drop(e *trackedIncident) {
	if t.byKey[incidentKey{e.Device, e.Reason}] == e {
		delete(t.byKey, incidentKey{e.Device, e.Reason})
	}
	t.affectedTotal -= len(e.Affected)
}

// evict removes the oldest incidents beyond the limits: first those of recovered devices, and never the newest.
func (t *tracker) evict() {
	for len(t.entries) > t.maxIncidents || t.affectedTotal > maxAffectedTotal {
		i := max(0, slices.IndexFunc(t.entries[:len(t.entries)-1], func(e *trackedIncident) bool { return !e.isOpen() }))
		t.drop(t.entries[i])
		t.entries = slices.Delete(t.entries, i, i+1)
	}
}

// isOpen reports whether the device has not recovered yet.
func (e *trackedIncident) isOpen() bool { return e.MarkedUnhealthy && e.RecoveredAt == nil }

// prune removes expired incidents and counters. Counters of present devices stay.
func (t *tracker) prune(present func(device.ID) bool, now time.Time) {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *trackedIncident) bool {
		if !t.expired(e.Last, now) {
			return false
		}
		t.drop(e)
		return true
	})
	devicesPruned := t.deviceCounters.prune(func(c *incidentCounter) bool { return t.expired(c.last, now) && !present(c.key.device) })
	affectedPruned := t.affectedCounters.prune(func(c *incidentCounter) bool { return t.expired(c.last, now) })
	if devicesPruned || affectedPruned || len(t.entries) != before {
		t.markChanged()
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
		t.markChanged()
	}
}

// storedState returns an immutable copy of the state.
func (t *tracker) storedState() (s storedState) {
	s.incidents = make([]Incident, len(t.entries))
	for i, e := range t.entries {
		s.incidents[len(s.incidents)-1-i] = e.Incident
	}
	s.devices = make([]DeviceCount, 0, len(t.deviceCounters.counters))
	for _, c := range t.deviceCounters.counters {
		if !c.last.IsZero() { // zero: historical events only
			s.devices = append(s.devices, DeviceCount{Device: c.key.device, GPU: c.gpu, Index: c.index, Reason: c.key.reason, Count: c.count, Last: c.last})
		}
	}
	s.affected = make([]AffectedCount, len(t.affectedCounters.counters))
	for i, c := range t.affectedCounters.counters {
		s.affected[i] = AffectedCount{Device: c.key.device, GPU: c.gpu, Index: c.index, Owner: c.key.owner, Reason: c.key.reason, Count: c.count, Last: c.last}
	}
	return s
}
