package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// maxShownFailures bounds the containers with device failures, and those with application errors, the newest first. The series outlive their
// pods, and a GPU that fails for days affects many containers.
const maxShownFailures = 500

// incidentSeries renders incidents. The series are kept while incidents and devices stay the same.
type incidentSeries struct {
	snapshot incident.Snapshot
	statuses []device.Status
	cachedSeries
}

// render also renders incidents of removed devices.
func (c *incidentSeries) render(st *seriesStore, snapshot incident.Snapshot, statuses []device.Status) {
	if c.store == nil || !sameIncidents(c.snapshot, snapshot) || !sameSlice(c.statuses, statuses) {
		*c = incidentSeries{snapshot, statuses, cachedSeries{store: st}}
		c.addAll()
	}
	c.show()
}

// sameIncidents reports whether two snapshots have the same slices and store.
func sameIncidents(a, b incident.Snapshot) bool {
	return sameSlice(a.Incidents, b.Incidents) && sameSlice(a.Devices, b.Devices) && sameSlice(a.Affected, b.Affected) &&
		a.Persisted == b.Persisted && (a.Err == nil) == (b.Err == nil)
}

func (c *incidentSeries) addAll() {
	noOwner := &device.Owner{}
	for _, n := range c.snapshot.Devices {
		d := c.deviceOf(n.Device, n.GPU, n.Index)
		c.add("nvidia_gpu_incidents_total", float64(n.Count), noOwner, &d, n.Reason)
		c.add("nvidia_gpu_incident_last_timestamp_seconds", unixSeconds(n.Last), noOwner, &d, n.Reason)
	}
	newest := slices.SortedStableFunc(slices.Values(c.snapshot.Affected), func(a, b incident.EventCount) int { return b.Last.Compare(a.Last) })
	failures, errors := 0, 0
	for i := range newest {
		n, containers := &newest[i], &failures
		count, last := "nvidia_gpu_allocation_device_failures_total", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds"
		if n.BySoftware() {
			count, last, containers = "nvidia_gpu_allocation_application_errors_total", "nvidia_gpu_allocation_application_error_last_timestamp_seconds", &errors
		}
		if *containers++; *containers <= maxShownFailures {
			d := c.deviceOf(n.Device, n.GPU, n.Index)
			c.add(count, float64(n.Count), &n.Owner, &d, n.Reason)
			c.add(last, unixSeconds(n.Last), &n.Owner, &d, n.Reason)
		}
	}
	c.add("podgauge_allocation_device_failures_dropped", float64(max(0, failures-maxShownFailures)), nil, nil)
	c.add("podgauge_incidents", float64(len(c.snapshot.Incidents)), nil, nil)
	if c.snapshot.Persisted || c.snapshot.Err != nil {
		c.add("podgauge_incident_store_up", boolValue(c.snapshot.Err == nil), nil, nil)
	}
}

// deviceOf returns the device in the inventory, or the device as recorded if it is gone.
func (c *incidentSeries) deviceOf(id device.ID, gpu device.GPU, index int) device.Device {
	if i := slices.IndexFunc(c.statuses, func(s device.Status) bool { return s.ID == id }); i >= 0 {
		return c.statuses[i].Device
	}
	return device.Device{ID: id, GPU: cmp.Or(gpu, device.GPU(id)), Index: index}
}
