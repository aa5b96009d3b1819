package exporter

import (
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// builtinFamilies are the families that no row of a backend makes.
type builtinFamilies struct {
	info, healthy, unhealthyInfo, up, stalled, allocated              *family
	unallocatable                                                     *family
	healthState, healthSince, flaps                                   *family
	xids, xidLast                                                     *family
	allocationInfo, allocationLastSeen                                *family
	nvmlUp, kubeletUp, allocationsAge, collectionBegin, collectionEnd *family
	seriesCount, seriesDropped                                        *family
	usage                                                             usageFamilies
	resources                                                         resourceFamilies
	incidents                                                         incidentFamilies
}

func (f *builtinFamilies) register(add func(familyDesc) *family) {
	f.info = add(gaugeDesc("nvidia_gpu_info", "What does not change about a device while its driver is loaded; always 1."))
	f.healthy = add(gaugeDesc("nvidia_gpu_healthy", "Whether the device can be used, as the kubelet is told."))
	f.unhealthyInfo = add(gaugeDesc("nvidia_gpu_unhealthy_info", "Why the device cannot be used, and what that asks for; always 1.", "reason", "action"))
	f.unallocatable = add(gaugeDesc("nvidia_gpu_unallocatable_info", "1 if nothing of a GPU that works can be allocated, by reason; no_mig_devices: MIG mode is on and there is no MIG device.", "reason"))
	f.healthState = add(gaugeDesc("nvidia_gpu_health_state", "Where the device stands: well, suspect (used as before, and checked), unhealthy, or on probation (well, and not yet for long enough).", "state"))
	f.healthSince = add(gaugeDesc("nvidia_gpu_health_since_timestamp_seconds", "Since when the device has been healthy, or unhealthy for the present reason."))
	f.flaps = add(counterDesc("nvidia_gpu_health_flaps_total", "How often the device turned unhealthy, as far as is remembered."))
	f.up = add(gaugeDesc("nvidia_gpu_up", "Whether the GPU gave its readings for this scrape."))
	f.stalled = add(gaugeDesc("nvidia_gpu_stalled", "Whether a call to the GPU has not come back, so that it is not asked again."))
	f.allocated = add(gaugeDesc("nvidia_gpu_allocated", "1 if the device is allocated, also to a container that the kubelet does not name; absent while that is unknown."))
	f.xids = add(counterDesc("nvidia_gpu_xid_errors_total", "Xid errors that the driver reported of the GPU.", "xid"))
	f.xidLast = add(gaugeDesc("nvidia_gpu_xid_last_timestamp_seconds", "When the driver last reported the Xid error.", "xid"))
	f.allocationInfo = add(gaugeDesc("nvidia_gpu_allocation_info", "A device, or a replica of it, that a container holds; always 1.", "resource", "device_id"))
	f.allocationLastSeen = add(gaugeDesc("nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"When the container was last seen to hold the device; kept for --holders.max-age, for eight containers a device."))
	f.usage.register(add)
	f.resources.register(add)
	f.incidents.register(add)
	f.nvmlUp = add(gaugeDesc("podgauge_nvml_up", "Whether NVML is initialised and lists devices."))
	f.kubeletUp = add(gaugeDesc("podgauge_kubelet_up", "1 if the kubelet answered for this scrape which container has which device; otherwise the last answer stands, or owners are unknown."))
	f.allocationsAge = add(gaugeDesc("podgauge_holders_age_seconds", "How long ago the kubelet said what the holders are drawn from."))
	f.collectionBegin = add(gaugeDesc("podgauge_flight_begin_timestamp_seconds", "When the readings and holders of this scrape were first asked for."))
	f.collectionEnd = add(gaugeDesc("podgauge_flight_end_timestamp_seconds", "When the last of them had come."))
	f.seriesCount = add(gaugeDesc("podgauge_series", "Series of this scrape, but for this process's own."))
	f.seriesDropped = add(gaugeDesc("podgauge_series_dropped", "Series that this scrape leaves out, since there would be more than --metrics.series-limit."))
}

// renderNode writes what is true of the node and the flight.
func (rm *renderedMetrics) renderNode(s nodeSnapshot) {
	builtin := &rm.builtin
	group := rm.groups[groupKey{}]
	if group == nil {
		group = &seriesGroup{rendered: rm, byID: map[seriesID]*series{}, labelText: formatLabels(nil)}
		rm.groups[groupKey{}] = group
	}
	group.lastRendering = rm.renderings
	count, dropped := rm.options.SeriesLimit-rm.seriesLeft, rm.seriesDropped
	rm.seriesLeft = maxNodeSeries
	set := func(f *family, value float64) { group.set(seriesID{family: f}, value) }
	set(builtin.nvmlUp, boolValue(s.driver.State == device.DriverUp))
	set(builtin.kubeletUp, boolValue(s.allocations.Err == nil && !s.allocations.At.IsZero()))
	set(builtin.collectionBegin, unixSeconds(s.begin))
	set(builtin.collectionEnd, unixSeconds(s.end))
	if !s.allocations.At.IsZero() {
		set(builtin.allocationsAge, max(0, s.end.Sub(s.allocations.At).Seconds()))
	}
	if s.healthStored {
		set(builtin.incidents.stateUp, boolValue(s.healthErr == nil))
	}
	set(builtin.seriesDropped, float64(dropped))
	set(builtin.seriesCount, float64(count+maxNodeSeries-rm.seriesLeft+1))
}

// maxNodeSeries is room for all that renderNode writes.
const maxNodeSeries = 16

// renderStatus writes what the board says of the device. The statuses are those of its GPU.
func (d deviceRendering) renderStatus(gpu []device.Status) {
	builtin := &d.rendered.builtin
	if d.deviceSeries.byID[d.infoSeriesID()] != nil {
		d.deviceSeries.set(d.infoSeriesID(), 1)
	} else {
		d.deviceSeries.set(d.infoSeriesID(), 1, d.infoLabels()...)
	}
	if !d.status.MIGEnabled { // the kubelet is told of its slices alone: with it, these would count it twice
		d.ownerSeries.set(seriesID{family: builtin.healthy}, boolValue(d.status.Healthy))
		if d.state != device.AllocationUnknown {
			d.ownerSeries.set(seriesID{family: builtin.allocated}, boolValue(d.state != device.Unallocated))
		}
	}
	if reason := d.status.Unallocatable(gpu); reason != "" {
		d.deviceSeries.set(seriesID{family: builtin.unallocatable, value1: reason}, 1, device.Label{Name: "reason", Value: reason})
	}
	if !d.status.Healthy {
		d.ownerSeries.set(seriesID{builtin.unhealthyInfo, d.status.Reason, d.status.Action}, 1,
			device.Label{Name: "reason", Value: d.status.Reason}, device.Label{Name: "action", Value: d.status.Action})
	}
}

// renderHealth writes where the device stands. It is the device's own and has no holder,
// so that it goes on while pods come and go. All states are there, as all phases of a pod are
// in kube-state-metrics: one that is over goes to 0 and not away, and its time can be summed.
func (d deviceRendering) renderHealth() {
	builtin := &d.rendered.builtin
	for _, state := range device.AllHealth {
		id := seriesID{family: builtin.healthState, value1: state.String()}
		d.deviceSeries.set(id, boolValue(d.status.Health == state), device.Label{Name: "state", Value: id.value1})
	}
	if !d.status.Since.IsZero() {
		d.deviceSeries.set(seriesID{family: builtin.healthSince}, unixSeconds(d.status.Since))
	}
	d.deviceSeries.set(seriesID{family: builtin.flaps}, float64(d.status.Flaps))
}

// renderGPU writes what is true of a GPU as a whole.
func (d deviceRendering) renderGPU(s nodeSnapshot, read bool) {
	builtin := &d.rendered.builtin
	d.deviceSeries.set(seriesID{family: builtin.up}, boolValue(read))
	d.deviceSeries.set(seriesID{family: builtin.stalled}, boolValue(s.stalled(d.status.GPU)))
	for _, x := range d.status.Xids {
		code := strconv.FormatUint(x.Code, 10)
		label := device.Label{Name: "xid", Value: code}
		d.deviceSeries.set(seriesID{family: builtin.xids, value1: code}, float64(x.Count), label)
		d.deviceSeries.set(seriesID{family: builtin.xidLast, value1: code}, unixSeconds(x.Last), label)
	}
}

// renderAllocations lists who holds the device, and who held it last.
func (d deviceRendering) renderAllocations(s nodeSnapshot) {
	builtin := &d.rendered.builtin
	for _, h := range s.allocations.ForDevice(d.status.ID) {
		if h.Owner == (device.Owner{}) {
			continue
		}
		d.rendered.group(allocationInfoLabels, d.status, h.Owner).set(seriesID{builtin.allocationInfo, h.Resource, string(h.DeviceID)}, 1,
			device.Label{Name: "resource", Value: h.Resource}, device.Label{Name: "device_id", Value: string(h.DeviceID)})
	}
	for _, record := range s.allocations.Recent {
		if record.Device == d.status.ID {
			d.rendered.group(allocationSeenLabels, d.status, record.Owner).set(seriesID{family: builtin.allocationLastSeen}, unixSeconds(record.LastSeen))
		}
	}
}

// infoSeriesID also has what may change under an id that stays: drivers up to 460 make
// a slice's id of its instances' numbers, which are given again.
func (d deviceRendering) infoSeriesID() seriesID {
	return seriesID{family: d.rendered.builtin.info, value1: d.status.Profile}
}

// infoLabels are the labels of the device's info series. Empty ones are left out: to Prometheus
// a label that is absent is an empty one.
func (d deviceRendering) infoLabels() []device.Label {
	s := d.status
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

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
