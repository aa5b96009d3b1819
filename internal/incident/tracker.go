package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// mergeWindow is how long after a report another one of the same is the same incident.
	mergeWindow = time.Minute
	// clockTrustDelay is how long a process runs before it believes by the clock that something is
	// old: a clock that is ahead when the node boots must not erase the history.
	clockTrustDelay = 24 * time.Hour
	// maxAffectedTotal bounds the holders of all incidents together, and so the size of the file.
	maxAffectedTotal = 8192
)

// tracker is all that is remembered. It has no lock and reads no clock: its owner brings both.
type tracker struct {
	maxIncidents int           // of incidents
	maxAge       time.Duration // since the last report
	startedAt    time.Time     // when the process did

	entries          []*trackedIncident // by ID
	byKey            map[incidentKey]*trackedIncident
	deviceCounters   counterSet // by device and reason
	affectedCounters counterSet // and by owner
	lastID           uint64     // the newest ID
	affectedTotal    int        // holders of all entries

	version uint64 // counts changes
	urgent  bool   // a device turned unhealthy since the last snapshot
}

// incidentKey is what makes two reports the same.
type incidentKey struct {
	device device.ID
	reason string
}

// trackedIncident is an incident, and what is known of it beside. What Holders and the pointers of
// the Incident point to is never written, since it was published.
type trackedIncident struct {
	Incident
	// allocations are the device's holdings when it was taken down.
	allocations []device.Allocation
	// unnamedAllocations are those of them whose owner is looked for until amendBy.
	unnamedAllocations []device.Allocation
	ownerDeadline      time.Time

	recordedAt       time.Time // when the newest report was taken down; zero: by an earlier process
	deviceCounter    *incidentCounter
	affectedCounters []*incidentCounter // of each holder
	terminationFinal []bool             // whether more will be known of the end of each

	fromEarlierProcess bool // it is an earlier process's
}

func newTracker(o Options, now time.Time) *tracker {
	return &tracker{maxIncidents: o.MaxIncidents, maxAge: o.MaxAge, startedAt: now, byKey: map[incidentKey]*trackedIncident{}}
}

// load takes what an earlier process has left. It is called once, before anything happens.
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

// record takes down an occurrence: once for each device that a container can hold. A
// partitioned GPU is none, unless it has no slice that could stand for it, or is held:
// NVIDIA's plugin gives it away where it offers no slices.
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

// matches tells whether a report is of the same as the entry.
func (e *trackedIncident) matches(o *device.HealthEvent, h *device.Allocations) bool {
	return !e.fromEarlierProcess && e.Historical == o.Historical && e.RecoveredAt == nil && o.At.Sub(e.Last) <= mergeWindow &&
		slices.Equal(h.ForDevice(e.Device), e.allocations) && !e.ownerReplaced(o, h)
}

// ownerReplaced tells whether a holder has got the device since the last report: one of the same
// name as before, as a StatefulSet's next pod has it.
func (e *trackedIncident) ownerReplaced(o *device.HealthEvent, h *device.Allocations) bool {
	return slices.ContainsFunc(recordsOf(h.Recent, e.Device), func(s device.AllocationRecord) bool {
		return s.EndedAt.IsZero() && s.FirstSeen.After(e.Last) && !s.FirstSeen.After(o.At)
	})
}

// newIncident takes down a new incident, without its first report.
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

// countReport takes one report down. It allocates nothing: there may be many.
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
	if !e.Historical { // history is no increase
		e.deviceCounter.add(e, 1, o.At)
	}
	for _, c := range e.affectedCounters {
		c.add(e, 1, o.At)
	}
	t.markChanged()
}

// addAffected gives an incident another holder.
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

// drop forgets an incident, but not what it has added to the counts.
func (t *tracker) drop(e *trackedIncident) {
	if t.byKey[incidentKey{e.Device, e.Reason}] == e {
		delete(t.byKey, incidentKey{e.Device, e.Reason})
	}
	t.affectedTotal -= len(e.Affected)
}

// evict drops the oldest of too many; those of devices that are not healthy again go
// last, and the newest stays.
func (t *tracker) evict() {
	for len(t.entries) > t.maxIncidents || t.affectedTotal > maxAffectedTotal {
		i := max(0, slices.IndexFunc(t.entries[:len(t.entries)-1], func(e *trackedIncident) bool { return !e.isOpen() }))
		t.drop(t.entries[i])
		t.entries = slices.Delete(t.entries, i, i+1)
	}
}

// isOpen tells whether the device is still what the incident made of it.
func (e *trackedIncident) isOpen() bool { return e.MarkedUnhealthy && e.RecoveredAt == nil }

// prune drops what is too old. Counts of devices that are there stay.
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

// expired reports whether something that last happened at a time is to be forgotten. A clock that
// is ahead when the process starts, or is set ahead later, does not make anything old: the
// process must have run for a while, and its own time must agree.
func (t *tracker) expired(last, now time.Time) bool {
	uptime := now.Sub(t.startedAt) // by the monotonic clock
	return uptime >= min(t.maxAge, clockTrustDelay) && earliest(now.Round(0), t.startedAt.Round(0).Add(uptime)).Sub(last) > t.maxAge
}

// markRecovered notes which devices are healthy again.
func (t *tracker) markRecovered(statuses []device.Status, now time.Time) {
	for _, e := range t.entries {
		if !e.isOpen() {
			continue
		}
		i := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == e.Device })
		if i < 0 || !statuses[i].Healthy {
			continue
		}
		// What is on the board may be from before the report; of an earlier process' report
		// it is not.
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

// storedState is all that is remembered, at one moment. It is never written.
func (t *tracker) storedState() (s storedState) {
	s.incidents = make([]Incident, len(t.entries))
	for i, e := range t.entries {
		s.incidents[len(s.incidents)-1-i] = e.Incident
	}
	s.devices = make([]DeviceCount, 0, len(t.deviceCounters.counters))
	for _, c := range t.deviceCounters.counters {
		if !c.last.IsZero() { // else there were incidents of the past alone
			s.devices = append(s.devices, DeviceCount{Device: c.key.device, GPU: c.gpu, Index: c.index, Reason: c.key.reason, Count: c.count, Last: c.last})
		}
	}
	s.affected = make([]AffectedCount, len(t.affectedCounters.counters))
	for i, c := range t.affectedCounters.counters {
		s.affected[i] = AffectedCount{Device: c.key.device, GPU: c.gpu, Index: c.index, Owner: c.key.owner, Reason: c.key.reason, Count: c.count, Last: c.last}
	}
	return s
}
