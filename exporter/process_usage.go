package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
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

// processUsage attributes the use of shared devices to containers. The series of such a device have no owner. Each container's
// part comes from its processes, and the rest has families of its own, so that the sum is the device's use
// (docs/adr/0010-processes-to-containers.md).
type processUsage struct {
	resolver      ProcessResolver
	memoryUsedRow int // -1 without such a row
	// Buffers. The first usage is the unattributed one; the others are of owners, in order.
	usages []ownerUsage
	owners []device.Owner
}

// usageFamilies are the families of each kind: the use by a container, and the unattributed use.
var usageFamilies = [usageKinds]struct{ container, unattributed familyDesc }{
	usedMemory: {
		gaugeDesc("nvidia_gpu_container_memory_used_bytes", "Memory of the device used by the container's processes, in bytes."),
		gaugeDesc("nvidia_gpu_unattributed_memory_used_bytes", "Memory of the device in use but not by a container to which the device is allocated, the driver's own included, in bytes."),
	},
	usedSM: {
		gaugeDesc("nvidia_gpu_container_sm_utilization_ratio", "Fraction of the last two seconds in which a kernel of the container's processes ran, 0 to 1."),
		gaugeDesc("nvidia_gpu_unattributed_sm_utilization_ratio", "Fraction of the last two seconds in which a kernel of unattributed processes ran, 0 to 1."),
	},
	usedController: {
		gaugeDesc("nvidia_gpu_container_memory_controller_utilization_ratio", "Fraction of the last two seconds in which the container's processes read or wrote device memory, 0 to 1."),
		gaugeDesc("nvidia_gpu_unattributed_memory_controller_utilization_ratio", "Fraction of the last two seconds in which unattributed processes read or wrote device memory, 0 to 1."),
	},
	usedEncoder: {
		gaugeDesc("nvidia_gpu_container_encoder_utilization_ratio", "Fraction of the last two seconds in which the container's processes used the encoders, 0 to 1."),
		gaugeDesc("nvidia_gpu_unattributed_encoder_utilization_ratio", "Fraction of the last two seconds in which unattributed processes used the encoders, 0 to 1."),
	},
	usedDecoder: {
		gaugeDesc("nvidia_gpu_container_decoder_utilization_ratio", "Fraction of the last two seconds in which the container's processes used the decoders, 0 to 1."),
		gaugeDesc("nvidia_gpu_unattributed_decoder_utilization_ratio", "Fraction of the last two seconds in which unattributed processes used the decoders, 0 to 1."),
	},
	processCount: {
		gaugeDesc("nvidia_gpu_container_processes", "Number of the container's processes that use the device."),
		gaugeDesc("nvidia_gpu_unattributed_processes", "Number of processes that use the device outside the containers to which the device is allocated."),
	},
}

func usageDescs() (descs []familyDesc) {
	for _, f := range usageFamilies {
		descs = append(descs, f.container, f.unattributed)
	}
	return descs
}

// ownerUsage is the use of a device by the processes of one owner. The driver reports some kinds only.
type ownerUsage struct {
	sums     [usageKinds]float64
	reported [usageKinds]bool
}

func newProcessUsage(s *Sources) processUsage {
	isMemoryUsed := func(m device.Metric) bool { return m.Name == "nvidia_gpu_memory_used_bytes" && len(m.Labels) == 0 }
	return processUsage{resolver: s.Processes, memoryUsedRow: slices.IndexFunc(s.Metrics, isMemoryUsed)}
}

func (o *ownerUsage) add(u device.ProcessUsage) {
	for i, v := range [...]float64{usedMemory: u.MemoryBytes, usedSM: u.SM, usedController: u.MemoryController, usedEncoder: u.Encoder, usedDecoder: u.Decoder} {
		if v >= 0 {
			o.sums[i] += v
			o.reported[i] = true
		}
	}
	o.sums[processCount]++
}

// render renders the use of a device by each owner, and the rest. If processes cannot be looked up it renders nothing: the
// values would be guesses.
func (p *processUsage) render(d *deviceRendering, r *device.Reading) {
	if !r.ProcessUsageKnown || !d.snapshot.processesVisible || d.state == device.AllocationUnknown || d.status.Gone {
		return
	}
	p.sumByOwner(d, r.ProcessUsage)
	unattributed := &p.usages[0]
	if d.status.MIGEnabled && len(p.usages) == 1 && unattributed.sums[processCount] == 0 {
		return // all processes use MIG devices
	}
	reported := p.reportedKinds()
	for i, owner := range p.owners {
		group := d.store.group(deviceLabels, d.status, owner)
		for kind, ok := range reported {
			if ok {
				group.set(usageFamilies[kind].container.name, p.usages[1+i].sums[kind])
			}
		}
	}
	if !d.status.MIGEnabled {
		unattributed.sums[usedMemory], reported[usedMemory] = p.unattributedMemory(d, r)
	}
	for kind, ok := range reported {
		if ok {
			d.deviceSeries.set(usageFamilies[kind].unattributed.name, unattributed.sums[kind])
		}
	}
}

// sumByOwner sums the use of the device by owner. An owner without processes has a sum of 0.
func (p *processUsage) sumByOwner(d *deviceRendering, uses []device.ProcessUsage) {
	p.owners, p.usages = p.owners[:0], append(p.usages[:0], ownerUsage{})
	for _, row := range d.snapshot.allocations.ForDevice(d.status.ID) {
		if row.Owner != (device.Owner{}) && !slices.Contains(p.owners, row.Owner) {
			p.owners, p.usages = append(p.owners, row.Owner), append(p.usages, ownerUsage{})
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
		p.usages[index].add(u)
	}
}

// reportedKinds returns the kinds that the driver reports for the device. Without processes it reports memory and number.
func (p *processUsage) reportedKinds() (reported [usageKinds]bool) {
	used := false
	for i := range p.usages {
		used = used || p.usages[i].sums[processCount] > 0
		for kind, ok := range p.usages[i].reported {
			reported[kind] = reported[kind] || ok
		}
	}
	reported[usedMemory] = reported[usedMemory] || !used
	reported[processCount] = true
	return reported
}

// unattributedMemory returns the device's memory in use minus that of containers; false if the memory in use is unknown. The
// memory in use of MIG devices that share a GPU instance is read from the first one, for all.
func (p *processUsage) unattributedMemory(d *deviceRendering, r *device.Reading) (float64, bool) {
	i := slices.IndexFunc(r.Samples, func(s device.Sample) bool { return s.Device == d.status.ID && s.Metric == p.memoryUsedRow })
	if i < 0 {
		return 0, false
	}
	remaining := r.Samples[i].Value
	for _, u := range p.usages[1:] {
		remaining -= u.sums[usedMemory]
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
	for _, row := range d.snapshot.allocations.ForDevice(id) {
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
