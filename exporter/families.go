package exporter

import (
	"strconv"
	"time"

	"github.com/podgauge/podgauge/device"
	dto "github.com/prometheus/client_model/go"
)

// ownFamilies are the families that no row of a backend makes.
type ownFamilies struct {
	info, healthy, unhealthyInfo, up, stalled, allocated *family
	xids, xidLast                                        *family
	allocationInfo, allocationSeen                       *family
	nvmlUp, kubeletUp, holdersAge, begin, end            *family
}

func (o *ownFamilies) make(add func(name, help string, kind dto.MetricType) *family) {
	const gauge, count = dto.MetricType_GAUGE, dto.MetricType_COUNTER
	o.info = add("nvidia_gpu_info", "What does not change about a device while its driver is loaded; always 1.", gauge)
	o.healthy = add("nvidia_gpu_healthy", "Whether the device can be used, as the kubelet is told.", gauge)
	o.unhealthyInfo = add("nvidia_gpu_unhealthy_info", "Why the device cannot be used, and what that asks for; always 1.", gauge)
	o.up = add("nvidia_gpu_up", "Whether the GPU gave its readings for this scrape.", gauge)
	o.stalled = add("nvidia_gpu_stalled", "Whether a call to the GPU has not come back, so that it is not asked again.", gauge)
	o.allocated = add("nvidia_gpu_allocated", "Whether the kubelet has given the device away, also to a container that it does not name.", gauge)
	o.xids = add("nvidia_gpu_xid_errors_total", "Xid errors that the driver reported of the GPU.", count)
	o.xidLast = add("nvidia_gpu_xid_last_timestamp_seconds", "When the driver last reported the Xid error.", gauge)
	o.allocationInfo = add("nvidia_gpu_allocation_info", "A device, or a replica of it, that a container holds; always 1.", gauge)
	o.allocationSeen = add("nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"When the container was last seen to hold the device; kept for an hour, for eight containers a device.", gauge)
	o.nvmlUp = add("podgauge_nvml_up", "Whether NVML is initialised and lists devices.", gauge)
	o.kubeletUp = add("podgauge_kubelet_up", "Whether the kubelet said who holds what for this scrape.", gauge)
	o.holdersAge = add("podgauge_holders_age_seconds", "How long ago the kubelet said what the holders are drawn from.", gauge)
	o.begin = add("podgauge_flight_begin_timestamp_seconds", "When the readings and holders of this scrape were first asked for.", gauge)
	o.end = add("podgauge_flight_end_timestamp_seconds", "When the last of them had come.", gauge)
}

// renderNode writes what is true of the node and the flight.
func (p *page) renderNode(s snapshot) {
	l := p.series[seriesKey{}]
	if l == nil {
		l = &labelled{kept: map[slot]*series{}}
		p.series[seriesKey{}] = l
	}
	l.turn = p.turn
	set := func(f *family, value float64) { l.set(slot{family: f}, value) }
	set(p.own.nvmlUp, number(s.driver.State == device.DriverUp))
	set(p.own.kubeletUp, number(s.holders.Err == nil && !s.holders.At.IsZero()))
	set(p.own.begin, seconds(s.begin))
	set(p.own.end, seconds(s.end))
	if !s.holders.At.IsZero() {
		set(p.own.holdersAge, max(0, s.end.Sub(s.holders.At).Seconds()))
	}
}

// renderStatus writes what the board says of the device and, once for each GPU,
// how its reading went.
func (d rendering) renderStatus(s snapshot, firstOfGPU bool) {
	own := &d.page.own
	d.itself.set(d.infoSlot(), 1, d.facts()...)
	if !d.status.MIG { // the kubelet is told of its slices alone: with it, these would count it twice
		d.held.set(slot{family: own.healthy}, number(d.status.Healthy))
		d.held.set(slot{family: own.allocated}, number(d.hold != device.Idle))
	}
	if !d.status.Healthy {
		d.held.set(slot{family: own.unhealthyInfo, more: d.status.Reason + "\n" + d.status.Action}, 1,
			device.Label{Name: "reason", Value: d.status.Reason}, device.Label{Name: "action", Value: d.status.Action})
	}
	if !firstOfGPU {
		return
	}
	up := false
	for _, r := range s.readings {
		up = up || r.GPU == d.status.GPU && r.Err == nil
	}
	d.itself.set(slot{family: own.up}, number(up))
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
		d.page.labelled(allocationLabels, d.status, h.Owner).set(
			slot{family: own.allocationInfo, more: h.Resource + "\n" + string(h.Offered)}, 1,
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

// facts are the labels of the device's info series. They do not change, so they
// are put together only for a series that is new.
func (d rendering) facts() []device.Label {
	if d.itself.kept[d.infoSlot()] != nil {
		return nil
	}
	s := d.status
	labels := append([]device.Label{
		{Name: "model", Value: s.Model},
		{Name: "pci_bus_id", Value: s.PCI},
		{Name: "minor", Value: strconv.Itoa(s.Minor)},
		{Name: "numa_node", Value: strconv.Itoa(s.NUMANode)},
	}, s.Facts...)
	if s.WholeGPU() { // without them: to Prometheus a label that is not there is an empty one
		return labels
	}
	return append(labels, device.Label{Name: "mig_profile", Value: s.Profile},
		device.Label{Name: "gi", Value: strconv.Itoa(s.GI)}, device.Label{Name: "ci", Value: strconv.Itoa(s.CI)})
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
