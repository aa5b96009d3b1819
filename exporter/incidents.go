package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// maxShownFailures bounds the containers with device failures, and those with
// application errors, the newest first. The series outlive their pods, and a
// GPU that fails for days affects many containers.
const maxShownFailures = 500

// renderIncidents renders incidents, also of removed devices.
func (r *snapshotSeries) renderIncidents(s incident.Snapshot) {
	for _, n := range s.Devices {
		group := r.group(deviceLabels(r.deviceOf(&n), allocation.Owner{}))
		group.set("nvidia_gpu_incidents_total", float64(n.Count), n.Reason)
		group.set("nvidia_gpu_incident_last_timestamp_seconds", unixSeconds(n.Last), n.Reason)
	}
	newest := slices.Clone(s.Affected)
	slices.SortStableFunc(newest, func(a, b incident.EventCount) int { return b.Last.Compare(a.Last) })
	failures, errors := 0, 0
	for i := range newest {
		n := &newest[i]
		containers, count, last := &failures, "device_failures_total", "device_failure_last_timestamp_seconds"
		if n.BySoftware() {
			containers, count, last = &errors, "application_errors_total", "application_error_last_timestamp_seconds"
		}
		*containers++
		if *containers <= maxShownFailures {
			group := r.group(deviceLabels(r.deviceOf(n), n.Owner))
			group.set("nvidia_gpu_allocation_"+count, float64(n.Count), n.Reason)
			group.set("nvidia_gpu_allocation_"+last, unixSeconds(n.Last), n.Reason)
		}
	}
	node := r.group(nil)
	node.set("podgauge_allocation_device_failures_dropped", float64(max(0, failures-maxShownFailures)))
	node.set("podgauge_incidents", float64(len(s.Incidents)))
}

// deviceOf returns the device in the inventory, or the device as recorded if it is gone.
func (r *snapshotSeries) deviceOf(n *incident.EventCount) device.Device {
	if i := slices.IndexFunc(r.snapshot.Statuses, func(s device.Status) bool { return s.ID == n.Device }); i >= 0 {
		return r.snapshot.Statuses[i].Device
	}
	return device.Device{ID: n.Device, GPU: cmp.Or(n.GPU, device.GPU(n.Device)), Index: n.Index}
}
