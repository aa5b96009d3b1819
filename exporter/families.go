package exporter

import (
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// ownFamilies are the families that no row of a backend makes.
type ownFamilies struct {
	info, healthy, unhealthyInfo, up, stalled, allocated *family
	unallocatable                                        *family
	healthState, healthSince, flaps                      *family
	xids, xidLast                                        *family
	allocationInfo, allocationSeen                       *family
	nvmlUp, kubeletUp, holdersAge, begin, end            *family
	seriesCount, seriesDropped                           *family
	uses                                                 useFamilies
	resources                                            resourceFamilies
	incidents                                            incidentFamilies
}

func (o *ownFamilies) make(add func(description) *family) {
	o.info = add(gauge("nvidia_gpu_info", "What does not change about a device while its driver is loaded; always 1."))
	o.healthy = add(gauge("nvidia_gpu_healthy", "Whether the device can be used, as the kubelet is told."))
	o.unhealthyInfo = add(gauge("nvidia_gpu_unhealthy_info", "Why the device cannot be used, and what that asks for; always 1.", "reason", "action"))
	o.unallocatable = add(gauge("nvidia_gpu_unallocatable_info", "1 if nothing of a GPU that works can be allocated, by reason; no_mig_devices: MIG mode is on and there is no MIG device.", "reason"))
	o.healthState = add(gauge("nvidia_gpu_health_state", "Where the device stands: well, suspect (used as before, and checked), unhealthy, or on probation (well, and not yet for long enough).", "state"))
	o.healthSince = add(gauge("nvidia_gpu_health_since_timestamp_seconds", "Since when the device has been healthy, or unhealthy for the present reason."))
	o.flaps = add(count("nvidia_gpu_health_flaps_total", "How often the device turned unhealthy, as far as is remembered."))
	o.up = add(gauge("nvidia_gpu_up", "Whether the GPU gave its readings for this scrape."))
	o.stalled = add(gauge("nvidia_gpu_stalled", "Whether a call to the GPU has not come back, so that it is not asked again."))
	o.allocated = add(gauge("nvidia_gpu_allocated", "1 if the device is allocated, also to a container that the kubelet does not name; absent while that is unknown."))
	o.xids = add(count("nvidia_gpu_xid_errors_total", "Xid errors that the driver reported of the GPU.", "xid"))
	o.xidLast = add(gauge("nvidia_gpu_xid_last_timestamp_seconds", "When the driver last reported the Xid error.", "xid"))
	o.allocationInfo = add(gauge("nvidia_gpu_allocation_info", "A device, or a replica of it, that a container holds; always 1.", "resource", "device_id"))
	o.allocationSeen = add(gauge("nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"When the container was last seen to hold the device; kept for --holders.max-age, for eight containers a device."))
	o.uses.make(add)
	o.resources.make(add)
	o.incidents.make(add)
	o.nvmlUp = add(gauge("podgauge_nvml_up", "Whether NVML is initialised and lists devices."))
	o.kubeletUp = add(gauge("podgauge_kubelet_up", "1 if the kubelet answered for this scrape which container has which device; otherwise the last answer stands, or owners are unknown."))
	o.holdersAge = add(gauge("podgauge_holders_age_seconds", "How long ago the kubelet said what the holders are drawn from."))
	o.begin = add(gauge("podgauge_flight_begin_timestamp_seconds", "When the readings and holders of this scrape were first asked for."))
	o.end = add(gauge("podgauge_flight_end_timestamp_seconds", "When the last of them had come."))
	o.seriesCount = add(gauge("podgauge_series", "Series of this scrape, but for this process's own."))
	o.seriesDropped = add(gauge("podgauge_series_dropped", "Series that this scrape leaves out, since there would be more than --metrics.series-limit."))
}

// renderNode writes what is true of the node and the flight.
func (p *page) renderNode(s snapshot) {
	own := &p.own
	l := p.series[seriesKey{}]
	if l == nil {
		l = &labelled{page: p, kept: map[slot]*series{}, text: labelText(nil)}
		p.series[seriesKey{}] = l
	}
	l.turn = p.turn
	count, dropped := p.options.SeriesLimit-p.room, p.dropped
	p.room = nodeFamilies
	set := func(f *family, value float64) { l.set(slot{family: f}, value) }
	set(own.nvmlUp, number(s.driver.State == device.DriverUp))
	set(own.kubeletUp, number(s.holders.Err == nil && !s.holders.At.IsZero()))
	set(own.begin, seconds(s.begin))
	set(own.end, seconds(s.end))
	if !s.holders.At.IsZero() {
		set(own.holdersAge, max(0, s.end.Sub(s.holders.At).Seconds()))
	}
	if state := p.sources.State; state != nil {
		set(own.incidents.stateUp, number(state() == nil))
	}
	set(own.seriesDropped, float64(dropped))
	set(own.seriesCount, float64(count+nodeFamilies-p.room+1))
}

// nodeFamilies is room for all that renderNode writes.
const nodeFamilies = 16

// renderStatus writes what the board says of the device. The statuses are those of its GPU.
func (d rendering) renderStatus(gpu []device.Status) {
	own := &d.page.own
	if d.itself.kept[d.infoSlot()] != nil {
		d.itself.set(d.infoSlot(), 1)
	} else {
		d.itself.set(d.infoSlot(), 1, d.facts()...)
	}
	if !d.status.MIG { // the kubelet is told of its slices alone: with it, these would count it twice
		d.held.set(slot{family: own.healthy}, number(d.status.Healthy))
		if d.hold != device.Unknown {
			d.held.set(slot{family: own.allocated}, number(d.hold != device.Idle))
		}
	}
	if reason := d.status.Unallocatable(gpu); reason != "" {
		d.itself.set(slot{family: own.unallocatable, more: reason}, 1, device.Label{Name: "reason", Value: reason})
	}
	if !d.status.Healthy {
		d.held.set(slot{own.unhealthyInfo, d.status.Reason, d.status.Action}, 1,
			device.Label{Name: "reason", Value: d.status.Reason}, device.Label{Name: "action", Value: d.status.Action})
	}
}

// renderHealth writes where the device stands. It is the device's own and has no holder,
// so that it goes on while pods come and go. All states are there, as all phases of a pod are
// in kube-state-metrics: one that is over goes to 0 and not away, and its time can be summed.
func (d rendering) renderHealth() {
	own := &d.page.own
	for _, state := range device.Healths {
		at := slot{family: own.healthState, more: state.String()}
		d.itself.set(at, number(d.status.Health == state), device.Label{Name: "state", Value: at.more})
	}
	if !d.status.Since.IsZero() {
		d.itself.set(slot{family: own.healthSince}, seconds(d.status.Since))
	}
	d.itself.set(slot{family: own.flaps}, float64(d.status.Flaps))
}

// renderGPU writes what is true of a GPU as a whole.
func (d rendering) renderGPU(s snapshot, read bool) {
	own := &d.page.own
	d.itself.set(slot{family: own.up}, number(read))
	d.itself.set(slot{family: own.stalled}, number(s.stalled(d.status.GPU)))
	for _, x := range d.status.Xids {
		code := strconv.FormatUint(x.Code, 10)
		label := device.Label{Name: "xid", Value: code}
		d.itself.set(slot{family: own.xids, more: code}, float64(x.Count), label)
		d.itself.set(slot{family: own.xidLast, more: code}, seconds(x.Last), label)
	}
}

// renderHoldings lists who holds the device, and who held it last.
func (d rendering) renderHoldings(s snapshot) {
	own := &d.page.own
	for _, h := range s.holders.Rows(d.status.ID) {
		if h.Owner == (device.Owner{}) {
			continue
		}
		d.page.labelled(holdingLabels, d.status, h.Owner).set(slot{own.allocationInfo, h.Resource, string(h.Offered)}, 1,
			device.Label{Name: "resource", Value: h.Resource}, device.Label{Name: "device_id", Value: string(h.Offered)})
	}
	for _, seen := range s.holders.Recent {
		if seen.Device == d.status.ID {
			d.page.labelled(allocationLabels, d.status, seen.Owner).set(slot{family: own.allocationSeen}, seconds(seen.Last))
		}
	}
}

// infoSlot also has what may change under an id that stays: drivers up to 460 make
// a slice's id of its instances' numbers, which are given again.
func (d rendering) infoSlot() slot {
	return slot{family: d.page.own.info, more: d.status.Profile}
}

// facts are the labels of the device's info series. Empty ones are left out: to Prometheus
// a label that is absent is an empty one.
func (d rendering) facts() []device.Label {
	s := d.status
	labels := append([]device.Label{
		{Name: "model", Value: s.Model},
		{Name: "pci_bus_id", Value: s.PCI},
		{Name: "minor", Value: strconv.Itoa(s.Minor)},
		{Name: "numa_node", Value: strconv.Itoa(s.NUMANode)},
	}, s.Facts...)
	if !s.WholeGPU() {
		labels = append(labels, device.Label{Name: "mig_profile", Value: s.Profile},
			device.Label{Name: "gi", Value: strconv.Itoa(s.GI)}, device.Label{Name: "ci", Value: strconv.Itoa(s.CI)})
	}
	return slices.DeleteFunc(labels, func(l device.Label) bool { return l.Value == "" })
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
