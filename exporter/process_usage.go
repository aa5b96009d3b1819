package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// A device that several containers hold keeps its own series, without a holder. What
// each of them uses of it is told by their processes, and what is left over has
// families of its own, so that the sum over both is the device's
// (docs/adr/0010-processes-to-containers.md).

// usageFamilies are what is told of a container's use of a device, and of nobody's.
type usageFamilies struct{ container, unattributed [usageKinds]*family }

// usageKinds are the things that a use consists of.
const (
	usedMemory = iota
	usedSM
	usedController
	usedEncoder
	usedDecoder
	processCount
	usageKinds
)

func (f *usageFamilies) register(add func(familyDesc) *family) {
	for i, row := range [usageKinds]struct{ name, container, rest string }{
		usedMemory: {
			"memory_used_bytes", "Memory of the device that the container's processes hold.",
			"Memory of the device in use that no container's process is known to hold: the driver's own, and that of processes in no container that holds the device.",
		},
		usedSM:         {"sm_utilization_ratio", "Share of the last two seconds in which a kernel of the container's processes ran.", "Share of the last two seconds in which a kernel of a process ran that is in no container that holds the device."},
		usedController: {"memory_controller_utilization_ratio", "Share of the last two seconds in which the container's processes read or wrote the device's memory.", "Share of the last two seconds in which processes in no container that holds the device read or wrote its memory."},
		usedEncoder:    {"encoder_utilization_ratio", "Share of the last two seconds in which the container's processes used the encoders.", "Share of the last two seconds in which processes in no container that holds the device used its encoders."},
		usedDecoder:    {"decoder_utilization_ratio", "Share of the last two seconds in which the container's processes used the decoders.", "Share of the last two seconds in which processes in no container that holds the device used its decoders."},
		processCount:   {"processes", "Processes of the container that use the device.", "Processes that use the device and are in no container that holds it."},
	} {
		f.container[i] = add(gaugeDesc("nvidia_gpu_container_"+row.name, row.container))
		f.unattributed[i] = add(gaugeDesc("nvidia_gpu_unattributed_"+row.name, row.rest))
	}
}

// ownerUsage is what the processes of one container, or of none, use of a device. What was
// told of none of them is not told of all.
type ownerUsage struct {
	owner    device.Owner // the zero one: of none
	sums     [usageKinds]float64
	reported [usageKinds]bool
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

// renderProcessUsage writes what each container that holds the device uses of it, and what is
// left. Nothing is written where processes cannot be told apart: that would be a guess.
func (d deviceRendering) renderProcessUsage(s nodeSnapshot, r *device.Reading, gpu []device.Status) {
	if !r.ProcessUsageKnown || !s.processesVisible || d.state == device.AllocationUnknown || d.status.Gone {
		return
	}
	usages := d.usageByOwner(s.allocations, r.ProcessUsage)
	unattributed := &usages[0]
	if d.status.MIGEnabled && len(usages) == 1 && unattributed.sums[processCount] == 0 {
		return // whoever uses it, uses its slices
	}
	reported := reportedKinds(usages)
	for i := range usages[1:] {
		t := &usages[1+i]
		group := d.rendered.group(deviceLabels, d.status, t.owner)
		for kind, f := range d.rendered.builtin.usage.container {
			if reported[kind] {
				group.set(seriesID{family: f}, t.sums[kind])
			}
		}
	}
	if !d.status.MIGEnabled {
		unattributed.sums[usedMemory], reported[usedMemory] = d.unattributedMemory(s.allocations, r, gpu)
	}
	for kind, f := range d.rendered.builtin.usage.unattributed {
		if reported[kind] {
			d.deviceSeries.set(seriesID{family: f}, unattributed.sums[kind])
		}
	}
}

// usageByOwner sorts the uses of the device by container. The first is that of nobody, and
// each container that holds the device has one, be it empty.
func (d deviceRendering) usageByOwner(h device.Allocations, uses []device.ProcessUsage) []ownerUsage {
	rm := d.rendered
	rm.owners, rm.usages = rm.owners[:0], append(rm.usages[:0], ownerUsage{})
	for _, row := range h.ForDevice(d.status.ID) {
		if row.Owner != (device.Owner{}) && !slices.Contains(rm.owners, row.Owner) {
			rm.owners = append(rm.owners, row.Owner)
			rm.usages = append(rm.usages, ownerUsage{owner: row.Owner})
		}
	}
	for _, u := range uses {
		if u.Device != d.status.ID {
			continue
		}
		index := 0
		if owner, ok := rm.sources.Processes.Owner(u.PID, rm.owners); ok {
			index = 1 + slices.Index(rm.owners, owner)
		}
		rm.usages[index].add(u)
	}
	return rm.usages
}

// reportedKinds is what the driver tells of the device's processes. Of none it tells their
// number and memory.
func reportedKinds(usages []ownerUsage) (reported [usageKinds]bool) {
	used := false
	for i := range usages {
		used = used || usages[i].sums[processCount] > 0
		for kind, ok := range usages[i].reported {
			reported[kind] = reported[kind] || ok
		}
	}
	reported[usedMemory] = reported[usedMemory] || !used
	reported[processCount] = true
	return reported
}

// unattributedMemory is what of the device's memory in use no container's process holds: false
// where the device does not say what is in use. What slices that share a GPU instance
// use is read of the first of them, for all.
func (d deviceRendering) unattributedMemory(h device.Allocations, r *device.Reading, gpu []device.Status) (float64, bool) {
	i := slices.IndexFunc(r.Samples, func(s device.Sample) bool { return s.Device == d.status.ID && s.Metric == d.rendered.memoryUsedRow })
	if i < 0 {
		return 0, false
	}
	remaining := r.Samples[i].Value
	for _, t := range d.rendered.usages[1:] {
		remaining -= t.sums[usedMemory]
	}
	for _, other := range gpu {
		if other.ID != d.status.ID && sameGPUInstance(d.status, other) {
			remaining -= d.attributedMemory(h, r.ProcessUsage, other.ID)
		}
	}
	return max(0, remaining), true
}

// attributedMemory is the memory of another device that is some container's.
func (d deviceRendering) attributedMemory(h device.Allocations, uses []device.ProcessUsage, id device.ID) (sum float64) {
	var owners []device.Owner
	for _, row := range h.ForDevice(id) {
		owners = append(owners, row.Owner)
	}
	for _, u := range uses {
		if u.Device != id || u.MemoryBytes < 0 {
			continue
		}
		if _, ok := d.rendered.sources.Processes.Owner(u.PID, owners); ok {
			sum += u.MemoryBytes
		}
	}
	return sum
}
