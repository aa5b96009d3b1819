package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
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

// usageSums are the use of a device by an owner, or by none.
type usageSums struct {
	owner allocation.Owner
	sums  [usageKinds]float64
}

// deviceUsage is the use of a device.
type deviceUsage struct {
	unattributed [usageKinds]float64
	owners       []usageSums
	reported     [usageKinds]bool // kinds that the driver reports for the device
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

// sumUsage sums the use of each device of a GPU, once for all series: a process
// that ends meanwhile would count twice or not at all. If processes cannot be
// looked up, the result is nil: sums would be guesses.
func (s *snapshotSeries) sumUsage(gpu []device.Status, r *health.Reading) map[device.ID]deviceUsage {
	if !r.ProcessUsageKnown || !s.processes.Visible() {
		return nil
	}
	usage := map[device.ID]deviceUsage{}
	for _, status := range gpu {
		usage[status.ID] = s.sumByOwner(status.ID, r.ProcessUsage)
	}
	return usage
}

// sumByOwner sums the use of a device. An owner without processes has a sum of
// 0. Without processes the driver reports memory and number.
func (s *snapshotSeries) sumByOwner(id device.ID, uses []device.ProcessUsage) (usage deviceUsage) {
	var owners []allocation.Owner
	for _, a := range s.snapshot.Allocations.ForDevice(id) {
		if a.Owner != (allocation.Owner{}) && !slices.Contains(owners, a.Owner) {
			owners = append(owners, a.Owner)
			usage.owners = append(usage.owners, usageSums{owner: a.Owner})
		}
	}
	reported := &usage.reported
	for _, u := range uses {
		if u.Device != id {
			continue
		}
		sums := &usage.unattributed
		if owner, ok := s.processes.Owner(u.PID, owners); ok {
			sums = &usage.owners[slices.Index(owners, owner)].sums
		}
		for kind, v := range [usageKinds]float64{
			usedMemory: u.MemoryBytes, usedSM: u.SM, usedController: u.MemoryController,
			usedEncoder: u.Encoder, usedDecoder: u.Decoder, processCount: 1,
		} {
			if v >= 0 {
				sums[kind] += v
				reported[kind] = true
			}
		}
	}
	reported[usedMemory] = reported[usedMemory] || !reported[processCount]
	reported[processCount] = true
	return usage
}

// renderUsage renders the use of a device by each owner, and the rest, from the
// use of all devices of the GPU. The series of a shared device have no owner.
// Each container's part comes from its processes, and the rest has families of
// its own, so that the sum is the device's use
// (docs/contributing/adr/0010-processes-to-containers.md).
func (d *deviceRendering) renderUsage(usage map[device.ID]deviceUsage, samples []device.Sample) {
	if usage == nil || d.state == allocation.Unknown || d.status.Gone {
		return
	}
	use := usage[d.status.ID]
	unattributed, reported := use.unattributed, use.reported
	if d.status.MIGEnabled && len(use.owners) == 0 && unattributed[processCount] == 0 {
		return // all processes use MIG devices
	}
	for _, u := range use.owners {
		group := d.group(deviceLabels(d.status.Device, u.owner))
		for kind, ok := range reported {
			if ok {
				group.set(usageFamilies[kind].container, u.sums[kind])
			}
		}
	}
	if !d.status.MIGEnabled {
		unattributed[usedMemory], reported[usedMemory] = d.unattributedMemory(usage, samples)
	}
	for kind, ok := range reported {
		if ok {
			d.deviceSeries.set(usageFamilies[kind].unattributed, unattributed[kind])
		}
	}
}

// unattributedMemory returns the device's memory in use minus that of
// containers; false if the memory in use is unknown. The memory in use of MIG
// devices that share a GPU instance is read from the first one, for all.
func (d *deviceRendering) unattributedMemory(
	usage map[device.ID]deviceUsage, samples []device.Sample,
) (float64, bool) {
	i := slices.IndexFunc(samples, func(s device.Sample) bool {
		return s.Device == d.status.ID && d.rows[s.Metric].quantity == status.MemoryUsed
	})
	if i < 0 {
		return 0, false
	}
	remaining := samples[i].Value
	for _, other := range d.gpu {
		if other.ID == d.status.ID || sameGPUInstance(d.status, other) {
			for _, u := range usage[other.ID].owners {
				remaining -= u.sums[usedMemory]
			}
		}
	}
	return max(0, remaining), true
}
