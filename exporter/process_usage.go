package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// usageKind are the quantities of a process's use of a device.
const (
	usedMemory = iota
	usedSM
	usedController
	usedEncoder
	usedDecoder
	processCount
	usageKinds
)

// processUsage attributes the use of shared devices to containers. The series
// of such a device have no owner. Each container's part comes from its
// processes, and the rest has families of its own, so that the sum is the
// device's use (docs/contributing/adr/0010-processes-to-containers.md).
type processUsage struct {
	resolver ProcessResolver
	// Buffers. The first sums are unattributed; the others are of owners, in order.
	sums   [][usageKinds]float64
	owners []device.Owner
}

// usageFamilies are the families of each kind.
var usageFamilies = [usageKinds]usageFamily{
	usedMemory:     newUsageFamily("memory_used_bytes"),
	usedSM:         newUsageFamily("sm_utilization_ratio"),
	usedController: newUsageFamily("memory_controller_utilization_ratio"),
	usedEncoder:    newUsageFamily("encoder_utilization_ratio"),
	usedDecoder:    newUsageFamily("decoder_utilization_ratio"),
	processCount:   newUsageFamily("processes"),
}

// usageFamily has the names for the use by a container, and for the unattributed use.
type usageFamily struct{ container, unattributed string }

func newUsageFamily(name string) usageFamily {
	return usageFamily{"nvidia_gpu_container_" + name, "nvidia_gpu_unattributed_" + name}
}

// render renders the use of a device by each owner, and the rest. If processes
// cannot be looked up it renders nothing: the values would be guesses.
func (p *processUsage) render(d *deviceRendering, r *device.Reading) {
	if !r.ProcessUsageKnown || !p.resolver.Visible() || d.state == device.AllocationUnknown || d.status.Gone {
		return
	}
	reported := p.sumByOwner(d, r.ProcessUsage)
	unattributed := &p.sums[0]
	if d.status.MIGEnabled && len(p.owners) == 0 && unattributed[processCount] == 0 {
		return // all processes use MIG devices
	}
	for i, owner := range p.owners {
		group := d.group(deviceLabels(d.status.Device, owner))
		for kind, ok := range reported {
			if ok {
				group.set(usageFamilies[kind].container, p.sums[1+i][kind])
			}
		}
	}
	if !d.status.MIGEnabled {
		unattributed[usedMemory], reported[usedMemory] = p.unattributedMemory(d, r)
	}
	for kind, ok := range reported {
		if ok {
			d.deviceSeries.set(usageFamilies[kind].unattributed, unattributed[kind])
		}
	}
}

// sumByOwner sums the use of the device by owner, and returns the kinds that
// the driver reports for the device. An owner without processes has a sum of 0.
// Without processes the driver reports memory and number.
func (p *processUsage) sumByOwner(d *deviceRendering, uses []device.ProcessUsage) (reported [usageKinds]bool) {
	p.owners, p.sums = p.owners[:0], append(p.sums[:0], [usageKinds]float64{})
	for _, row := range d.snapshot.Allocations.ForDevice(d.status.ID) {
		if row.Owner != (device.Owner{}) && !slices.Contains(p.owners, row.Owner) {
			p.owners, p.sums = append(p.owners, row.Owner), append(p.sums, [usageKinds]float64{})
		}
	}
	for _, u := range uses {
		if u.Device != d.status.ID {
			continue
		}
		index := 0
		if owner, ok := p.resolver.Owner(u.PID, p.owners); ok {
			index = 1 + slices.Index(p.owners, owner)
		}
		for kind, v := range [usageKinds]float64{
			usedMemory: u.MemoryBytes, usedSM: u.SM, usedController: u.MemoryController,
			usedEncoder: u.Encoder, usedDecoder: u.Decoder, processCount: 1,
		} {
			if v >= 0 {
				p.sums[index][kind] += v
				reported[kind] = true
			}
		}
	}
	reported[usedMemory] = reported[usedMemory] || !reported[processCount]
	reported[processCount] = true
	return reported
}

// unattributedMemory returns the device's memory in use minus that of
// containers; false if the memory in use is unknown. The memory in use of MIG
// devices that share a GPU instance is read from the first one, for all.
func (p *processUsage) unattributedMemory(d *deviceRendering, r *device.Reading) (float64, bool) {
	i := slices.IndexFunc(r.Samples, func(s device.Sample) bool {
		return s.Device == d.status.ID && d.rows[s.Metric].quantity == status.MemoryUsed
	})
	if i < 0 {
		return 0, false
	}
	remaining := r.Samples[i].Value
	for _, sums := range p.sums[1:] {
		remaining -= sums[usedMemory]
	}
	for _, other := range d.gpu {
		if other.ID != d.status.ID && sameGPUInstance(d.status, other) {
			remaining -= p.attributedMemory(d, r.ProcessUsage, other.ID)
		}
	}
	return max(0, remaining), true
}

// attributedMemory returns the memory of another device in use by containers.
func (p *processUsage) attributedMemory(d *deviceRendering, uses []device.ProcessUsage, id device.ID) (sum float64) {
	var owners []device.Owner
	for _, row := range d.snapshot.Allocations.ForDevice(id) {
		owners = append(owners, row.Owner)
	}
	for _, u := range uses {
		if u.Device != id || u.MemoryBytes < 0 {
			continue
		}
		if _, ok := p.resolver.Owner(u.PID, owners); ok {
			sum += u.MemoryBytes
		}
	}
	return sum
}
