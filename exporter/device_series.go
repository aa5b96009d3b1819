package exporter

import (
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// deviceRendering is the rendering of one device.
type deviceRendering struct {
	*snapshotSeries
	status device.Status
	gpu    []device.Status // all devices of the GPU
	state  allocation.State
	owner  allocation.Owner
	// deviceSeries have no owner; ownerSeries have the device's owner, if known.
	deviceSeries, ownerSeries seriesGroup
	// readingSeries have the owner of readings: MIG devices that share a GPU instance also share readings.
	readingSeries seriesGroup
	readingState  allocation.State
	readingOwner  allocation.Owner
}

func newDeviceRendering(r *snapshotSeries, status device.Status, gpu []device.Status) deviceRendering {
	allocations := r.snapshot.Allocations
	d := deviceRendering{snapshotSeries: r, status: status, gpu: gpu}
	d.state, d.owner = allocations.State(status.ID)
	// A partitioned GPU is shared by the owners of its MIG devices, regardless
	// of the kubelet's answer. If MIG devices are not advertised, the GPU can
	// be allocated as a whole.
	if status.MIGEnabled && len(allocations.ForDevice(status.ID)) == 0 {
		d.state, d.owner = allocation.Shared, allocation.Owner{}
	}
	d.readingState, d.readingOwner = d.state, d.owner
	for _, other := range gpu {
		if other.ID != status.ID && sameGPUInstance(status, other) {
			d.combineReadingAllocation(allocations.State(other.ID))
		}
	}
	if r.options.StableSeries {
		d.owner, d.readingOwner = allocation.Owner{}, allocation.Owner{}
	}
	d.deviceSeries = r.group(deviceLabels(status.Device, allocation.Owner{}))
	d.ownerSeries = r.group(deviceLabels(status.Device, d.owner))
	d.readingSeries = r.group(deviceLabels(status.Device, d.readingOwner))
	return d
}

// sameGPUInstance reports whether two MIG devices are compute instances of one
// GPU instance and so share readings. A device that is gone shares nothing: the
// driver reuses the number of its instance.
func sameGPUInstance(a, b device.Status) bool {
	return !a.WholeGPU() && !b.WholeGPU() && !a.Gone && !b.Gone && a.GPU == b.GPU && a.GI >= 0 && a.GI == b.GI
}

// combineReadingAllocation adds the allocation of a device that shares the
// readings: their owner is the common part of the owners.
func (d *deviceRendering) combineReadingAllocation(state allocation.State, owner allocation.Owner) {
	switch {
	case d.readingState == allocation.Unknown || state == allocation.Unallocated:
	case state == allocation.Unknown:
		d.readingState, d.readingOwner = state, allocation.Owner{}
	case d.readingState == allocation.Unallocated:
		d.readingState, d.readingOwner = state, owner
	case d.readingState != state || d.readingOwner != owner:
		d.readingState, d.readingOwner = allocation.Shared, d.readingOwner.Common(owner)
	}
}

// renderStatus renders the published status.
func (d *deviceRendering) renderStatus() {
	d.deviceSeries.add(d.byName["nvidia_gpu_info"], 1, labelPairs(d.infoLabels()))
	if !d.status.MIGEnabled { // sums over these families count a partitioned GPU by its MIG devices
		d.ownerSeries.set("nvidia_gpu_healthy", boolValue(d.status.Healthy))
		if d.state != allocation.Unknown {
			d.ownerSeries.set("nvidia_gpu_allocated", boolValue(d.state != allocation.Unallocated))
		}
	}
	reason := d.status.Unallocatable(d.gpu)
	allocated := func(s device.Status) bool { return len(d.snapshot.Allocations.ForDevice(s.ID)) > 0 }
	if d.node.Excluded(d.status.Device) && !slices.ContainsFunc(d.gpu, allocated) { // a DRA driver may allocate it
		reason = "excluded"
	}
	if reason != "" {
		d.deviceSeries.set("nvidia_gpu_unallocatable_info", 1, reason)
	}
	if !d.status.Healthy {
		d.ownerSeries.set("nvidia_gpu_unhealthy_info", 1, d.status.Reason, d.status.Action)
	}
	if f := d.status.MaskedFault; f.Present {
		d.deviceSeries.set("nvidia_gpu_masked_fault_info", 1, f.Reason, f.Action)
	}
}

// infoLabels returns the labels of the info series. Empty labels are left out: for Prometheus both are the same.
func (d *deviceRendering) infoLabels() []device.Label {
	s := &d.status
	labels := append([]device.Label{
		{Name: "model", Value: s.Model},
		{Name: "pci_bus_id", Value: s.PCI},
		{Name: "minor", Value: strconv.Itoa(s.Minor)},
		{Name: "numa_node", Value: strconv.Itoa(s.NUMANode)},
	}, s.InfoLabels...)
	if !s.WholeGPU() {
		labels = append(labels, device.Label{Name: "mig_profile", Value: s.Profile},
			device.Label{Name: "gi", Value: strconv.Itoa(s.GI)}, device.Label{Name: "ci", Value: strconv.Itoa(s.CI)})
	}
	return slices.DeleteFunc(labels, func(l device.Label) bool { return l.Value == "" })
}

// renderHealth renders the health state, without an owner, so that the series
// outlive pods. Each state has a series, as each phase of a pod has in
// kube-state-metrics: the time in a state can be summed.
func (d *deviceRendering) renderHealth() {
	for _, state := range device.AllHealth {
		d.deviceSeries.set("nvidia_gpu_health_state", boolValue(d.status.Health == state), state.String())
	}
	for _, t := range d.status.Times {
		state := healthState{d.status.ID, t.Health, t.Reason}
		total := max(d.healthTimes[state], t.Until(d.snapshot.begin))
		d.healthTimes[state] = total
		d.deviceSeries.set("nvidia_gpu_health_state_seconds_total", total.Seconds(), t.Health.String(), t.Reason)
	}
	if !d.status.Since.IsZero() {
		d.deviceSeries.set("nvidia_gpu_health_since_timestamp_seconds", unixSeconds(d.status.Since))
	}
	d.deviceSeries.set("nvidia_gpu_health_flaps_total", float64(d.status.Flaps))
}

// renderGPU renders the state of the whole GPU.
func (d *deviceRendering) renderGPU(read bool) {
	d.deviceSeries.set("nvidia_gpu_up", boolValue(read))
	d.deviceSeries.set("nvidia_gpu_stalled", boolValue(d.snapshot.stalled(d.status.GPU)))
	for _, x := range d.status.Xids {
		code := strconv.FormatUint(x.Code, 10)
		d.deviceSeries.set("nvidia_gpu_xid_errors_total", float64(x.Count), code)
		if last := x.LastSevere(); !last.IsZero() {
			d.deviceSeries.set("nvidia_gpu_xid_last_timestamp_seconds", unixSeconds(last), code)
		}
	}
}

// renderAllocations renders current and recent allocations.
func (d *deviceRendering) renderAllocations() {
	rows := d.snapshot.Allocations.ForDevice(d.status.ID)
	for i, a := range rows {
		if a.Owner != (allocation.Owner{}) {
			if part := d.allocatedPart(rows, i); part > 0 {
				d.group(deviceLabels(d.status.Device, a.Owner)).set("nvidia_gpu_allocation_ratio", part, a.Resource)
			}
			meta := d.node.PodMeta(a.Owner.Namespace, a.Owner.Pod)
			labels := append(allocationLabels(d.status.Device, a.Owner), podLabels(meta.Labels)...)
			if d.options.PodUID {
				labels = append(labels, device.Label{Name: "pod_uid", Value: meta.UID})
			}
			for _, job := range d.jobLabels(meta.Workload) {
				d.group(append(slices.Clone(labels), job...)).
					set("nvidia_gpu_allocation_info", 1, a.Resource, string(a.DeviceID), a.Claim)
			}
		}
	}
	for _, record := range d.snapshot.Allocations.Recent {
		if record.Device == d.status.ID {
			d.group(allocationLabels(d.status.Device, record.Owner)).
				set("nvidia_gpu_allocation_last_seen_timestamp_seconds", unixSeconds(record.LastSeen))
		}
	}
}

// allocatedPart returns the part of the GPU that the container of row i has in
// all rows of the same resource; 0 if an earlier row has it. A replica is 1/n of
// n replicas of its resource, and an allocation of a claim 1/n of n allocations. Claims count as
// in allocation.Snapshot.State. So all parts of a device add up to at most its own.
func (d *deviceRendering) allocatedPart(rows []allocation.Allocation, i int) float64 {
	claims := !slices.ContainsFunc(rows, func(a allocation.Allocation) bool { return !a.Claimed() })
	counted, own := 0, 0
	for j, a := range rows {
		if a.Claimed() != claims {
			continue
		}
		counted++
		if a.Owner == rows[i].Owner && a.Resource == rows[i].Resource {
			if j < i {
				return 0
			}
			own++
		}
	}
	replicas := d.replicas[deviceResource{d.status.ID, rows[i].Resource}] // 0 of a claim's driver
	return d.status.GPUFraction() * float64(own) / float64(max(counted, replicas, 1))
}

// jobLabels returns the label hpc_job, dcgm-exporter's name, for each HPC job
// of the device or, without mapping files, of the pod.
func (d *deviceRendering) jobLabels(w *allocation.Workload) (labels [][]device.Label) {
	if !d.options.HPCJobs {
		return [][]device.Label{nil}
	}
	jobs := d.node.JobsOf(d.status.Device)
	if len(jobs) == 0 {
		jobs = []string{w.Label(d.options.JobLabel)}
	}
	for _, job := range jobs {
		labels = append(labels, []device.Label{{Name: "hpc_job", Value: job}})
	}
	return labels
}

// renderReading renders the values read from the device.
func (d *deviceRendering) renderReading(samples []device.Sample) {
	for _, sample := range samples {
		if sample.Device != d.status.ID {
			continue
		}
		switch row := &d.rows[sample.Metric]; {
		case row.Kind == device.FaultCounter || row.Kind == device.StateGauge:
			d.deviceSeries.setRow(sample.Metric, sample.Value)
		case row.Kind == device.Gauge || d.options.StableSeries:
			d.readingSeries.setRow(sample.Metric, sample.Value)
		default:
			d.readingSeries.setRow(sample.Metric, d.attribution.add(sample, d.readingState, d.readingOwner))
		}
	}
}
