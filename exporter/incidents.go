package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// mostHits is how many containers' failures are shown, the newest first: they outlive their
// pods, and a node that is bad for days has hit many.
const mostHits = 500

// incidentFamilies are what is remembered of devices that went bad, and of whom they hit.
type incidentFamilies struct {
	incidents, incidentLast, failures, failureLast *family
	remembered, storeUp, stateUp, failuresDropped  *family
}

func (i *incidentFamilies) make(add func(description) *family) {
	i.incidents = add(count("nvidia_gpu_incidents_total", "What happened to the device: reports of the driver, and evidence that it had failed.", "reason"))
	i.incidentLast = add(gauge("nvidia_gpu_incident_last_timestamp_seconds", "When it last happened to the device.", "reason"))
	i.failures = add(count("nvidia_gpu_allocation_device_failures_total",
		"What happened to the device while the container held it; kept when the container is gone, the newest 500.", "reason"))
	i.failureLast = add(gauge("nvidia_gpu_allocation_device_failure_last_timestamp_seconds", "When it last happened to the device while the container held it.", "reason"))
	i.remembered = add(gauge("podgauge_incidents", "Incidents that are remembered."))
	i.failuresDropped = add(gauge("podgauge_allocation_device_failures_dropped", "Containers' device failures that this scrape leaves out, the oldest: it has 500."))
	i.storeUp = add(gauge("podgauge_incident_store_up", "Whether incidents are kept on disk; absent where they are not to be."))
	i.stateUp = add(gauge("podgauge_state_up", "Whether the devices' health is kept on disk; absent where it is not to be."))
}

// memorySeries are the series of incidents, and what they were made of.
type memorySeries struct {
	made     bool
	of       incident.Known
	statuses []device.Status
	standing
}

// renderIncidents writes what is remembered. It concerns devices that are not on the Board
// any more as well.
func (p *page) renderIncidents(s snapshot) {
	if p.sources.Incidents == nil {
		return
	}
	if m := &p.memory; !m.made || !sameKnown(m.of, s.incidents) || !same(m.statuses, s.statuses) {
		*m = memorySeries{true, s.incidents, s.statuses, standing{limit: p.options.SeriesLimit}}
		p.makeIncidents()
	}
	p.putAll(&p.memory.standing)
}

// sameKnown tells whether two answers are one: one that says nothing new has the slices of
// the one before.
func sameKnown(a, b incident.Known) bool {
	return same(a.Incidents, b.Incidents) && same(a.Devices, b.Devices) && same(a.Hits, b.Hits) && a.Kept == b.Kept && (a.Err == nil) == (b.Err == nil)
}

func (p *page) makeIncidents() {
	m, own := &p.memory, &p.own.incidents
	nobody := &device.Owner{}
	for _, c := range m.of.Devices {
		at := m.labels(c.Device, c.GPU, c.Index, c.Reason)
		m.make(own.incidents, float64(c.Count), nobody, at...)
		m.make(own.incidentLast, seconds(c.Last), nobody, at...)
	}
	hits := slices.SortedStableFunc(slices.Values(m.of.Hits), func(a, b incident.Hit) int { return b.Last.Compare(a.Last) })
	shown := hits[:min(len(hits), mostHits)]
	for i := range shown {
		h := &shown[i]
		at := m.labels(h.Device, h.GPU, h.Index, h.Reason)
		m.make(own.failures, float64(h.Count), &h.Owner, at...)
		m.make(own.failureLast, seconds(h.Last), &h.Owner, at...)
	}
	m.make(own.failuresDropped, float64(len(hits)-len(shown)), nil)
	m.make(own.remembered, float64(len(m.of.Incidents)), nil)
	if m.of.Kept || m.of.Err != nil {
		m.make(own.storeUp, number(m.of.Err == nil), nil)
	}
}

// labels are those that the device's other series have, and, where it is not on the Board
// any more, those that they had.
func (m *memorySeries) labels(id device.ID, gpu device.GPU, index int, reason string) []device.Label {
	d := device.Device{ID: id, GPU: cmp.Or(gpu, device.GPU(id)), Index: index}
	if i := slices.IndexFunc(m.statuses, func(s device.Status) bool { return s.ID == id }); i >= 0 {
		d = m.statuses[i].Device
	}
	return append(deviceNames(d), gpuIndex(d), device.Label{Name: "reason", Value: reason})
}
