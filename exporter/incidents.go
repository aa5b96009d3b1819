package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// maxShownFailures is how many containers' failures are shown, the newest first: they outlive their
// pods, and a node that is bad for days has hit many.
const maxShownFailures = 500

// incidentFamilies are what is remembered of devices that went bad, and of whom they hit.
type incidentFamilies struct {
	incidents, incidentLast, failures, failureLast *family
	stored, storeUp, stateUp, failuresDropped      *family
}

func (f *incidentFamilies) register(add func(familyDesc) *family) {
	f.incidents = add(counterDesc("nvidia_gpu_incidents_total", "What happened to the device: reports of the driver, and evidence that it had failed.", "reason"))
	f.incidentLast = add(gaugeDesc("nvidia_gpu_incident_last_timestamp_seconds", "When it last happened to the device.", "reason"))
	f.failures = add(counterDesc("nvidia_gpu_allocation_device_failures_total",
		"What happened to the device while the container held it; kept when the container is gone, the newest 500.", "reason"))
	f.failureLast = add(gaugeDesc("nvidia_gpu_allocation_device_failure_last_timestamp_seconds", "When it last happened to the device while the container held it.", "reason"))
	f.stored = add(gaugeDesc("podgauge_incidents", "Incidents that are remembered."))
	f.failuresDropped = add(gaugeDesc("podgauge_allocation_device_failures_dropped", "Containers' device failures that this scrape leaves out, the oldest: it has 500."))
	f.storeUp = add(gaugeDesc("podgauge_incident_store_up", "Whether incidents are kept on disk; absent where they are not to be."))
	f.stateUp = add(gaugeDesc("podgauge_state_up", "Whether the devices' health is kept on disk; absent where it is not to be."))
}

// incidentSeries are the series of incidents, and what they were made of.
type incidentSeries struct {
	built    bool
	snapshot incident.Snapshot
	statuses []device.Status
	cachedSeries
}

// renderIncidents writes what is remembered. It concerns devices that are not on the Board
// any more as well.
func (rm *renderedMetrics) renderIncidents(s nodeSnapshot) {
	if m := &rm.incidents; !m.built || !sameIncidents(m.snapshot, s.incidents) || !sameSlice(m.statuses, s.statuses) {
		*m = incidentSeries{true, s.incidents, s.statuses, cachedSeries{limit: rm.options.SeriesLimit}}
		rm.buildIncidents()
	}
	rm.addCached(&rm.incidents.cachedSeries)
}

// sameIncidents tells whether two answers are one: one that says nothing new has the slices of
// the one before.
func sameIncidents(a, b incident.Snapshot) bool {
	return sameSlice(a.Incidents, b.Incidents) && sameSlice(a.Devices, b.Devices) && sameSlice(a.Affected, b.Affected) && a.Persisted == b.Persisted && (a.Err == nil) == (b.Err == nil)
}

func (rm *renderedMetrics) buildIncidents() {
	m, families := &rm.incidents, &rm.builtin.incidents
	noOwner := &device.Owner{}
	for _, c := range m.snapshot.Devices {
		labels := m.labels(c.Device, c.GPU, c.Index, c.Reason)
		m.add(families.incidents, float64(c.Count), noOwner, labels...)
		m.add(families.incidentLast, unixSeconds(c.Last), noOwner, labels...)
	}
	failures := slices.SortedStableFunc(slices.Values(m.snapshot.Affected), func(a, b incident.AffectedCount) int { return b.Last.Compare(a.Last) })
	shown := failures[:min(len(failures), maxShownFailures)]
	for i := range shown {
		h := &shown[i]
		labels := m.labels(h.Device, h.GPU, h.Index, h.Reason)
		m.add(families.failures, float64(h.Count), &h.Owner, labels...)
		m.add(families.failureLast, unixSeconds(h.Last), &h.Owner, labels...)
	}
	m.add(families.failuresDropped, float64(len(failures)-len(shown)), nil)
	m.add(families.stored, float64(len(m.snapshot.Incidents)), nil)
	if m.snapshot.Persisted || m.snapshot.Err != nil {
		m.add(families.storeUp, boolValue(m.snapshot.Err == nil), nil)
	}
}

// labels are those that the device's other series have, and, where it is not on the Board
// any more, those that they had.
func (m *incidentSeries) labels(id device.ID, gpu device.GPU, index int, reason string) []device.Label {
	d := device.Device{ID: id, GPU: cmp.Or(gpu, device.GPU(id)), Index: index}
	if i := slices.IndexFunc(m.statuses, func(s device.Status) bool { return s.ID == id }); i >= 0 {
		d = m.statuses[i].Device
	}
	return append(uuidLabels(d), indexLabel(d), device.Label{Name: "reason", Value: reason})
}
