package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// resourceTracker tracks allocated and allocatable resources from response to response, without a lock.
//
// A response replaces the response before, unless possibly incomplete. Then a pod keeps its resources until a response over this connection
// lists the pod, or responses are complete (docs/contributing/adr/0004-unknown-owners.md).
type resourceTracker struct {
	// allocated and allocatable have the rows of responses. Published slices are replaced and never written.
	allocated, allocatable device.ResourceSet
	allocatableKnown       bool // if not, the rows stay for comparison with the next rows

	epoch      kubeletEpoch
	listedPods map[podName]bool // over this connection; nil if responses are complete

	devices []device.ResourceDevice // the published rows
}

// merge merges a List, and reports whether resources of containers changed. An incomplete List may omit pods.
func (t *resourceTracker) merge(rows *resourceRows, pods []podName, epoch kubeletEpoch, incomplete bool) bool {
	switch {
	case !incomplete:
		t.listedPods = nil
	case epoch != t.epoch || t.listedPods == nil:
		t.listedPods = map[podName]bool{}
	}
	t.epoch = epoch
	if incomplete {
		for _, p := range pods {
			t.listedPods[p] = true
		}
		t.retainUnlisted(rows)
	}
	return replaceRows(&t.allocated, rows)
}

// retainUnlisted adds to a response the resources of unlisted pods. Devices are published as the allocations are.
func (t *resourceTracker) retainUnlisted(rows *resourceRows) {
	isListed := func(o device.Owner) bool { return t.listedPods[podName{o.Namespace, o.Pod}] }
	rows.CPUs = appendUnless(rows.CPUs, t.allocated.CPUs, func(c device.ExclusiveCPUs) bool { return isListed(c.Owner) })
	rows.Memory = appendUnless(rows.Memory, t.allocated.Memory, func(m device.ReservedMemory) bool { return isListed(m.Owner) })
	rows.Claims = appendUnless(rows.Claims, t.allocated.Claims, func(c device.Claim) bool { return isListed(c.Owner) })
}

func appendUnless[T any](rows, others []T, skip func(T) bool) []T {
	for _, other := range others {
		if !skip(other) {
			rows = append(rows, other)
		}
	}
	return rows
}

// replaceRows replaces each kind of rows that differs from the latest rows, and reports whether there were any.
func replaceRows(r *device.ResourceSet, latest *resourceRows) bool {
	r.Dropped = latest.foreign.droppedIDs(r.Dropped)
	latest.normalize()
	devices := update(&r.Devices, latest.Devices, func(d *device.ResourceDevice) { d.NUMANodes = slices.Clone(d.NUMANodes) })
	cpus := update(&r.CPUs, latest.CPUs, func(c *device.ExclusiveCPUs) { c.CPUs = slices.Clone(c.CPUs) })
	memory := update(&r.Memory, latest.Memory, func(m *device.ReservedMemory) { m.NUMANodes = slices.Clone(m.NUMANodes) })
	claims := update(&r.Claims, latest.Claims, func(c *device.Claim) { c.CDI = slices.Clone(c.CDI) })
	return devices || cpus || memory || claims
}

// update replaces rows by a copy of the latest rows if different, and reports whether there was a difference. own copies the slices of a
// row.
func update[T interface{ Compare(T) int }](rows *[]T, latest []T, own func(*T)) bool {
	if sameRows(*rows, latest) {
		return false
	}
	*rows = slices.Clone(latest)
	for i := range *rows {
		own(&(*rows)[i])
	}
	return true
}

func sameRows[T interface{ Compare(T) int }](a, b []T) bool {
	return slices.EqualFunc(a, b, func(a, b T) bool { return a.Compare(b) == 0 })
}

// snapshot returns the resources, with the devices of the given allocations.
func (t *resourceTracker) snapshot(allocations []device.Allocation) device.NodeResources {
	r := device.NodeResources{AllocatableKnown: t.allocatableKnown, Allocated: t.allocated}
	r.Allocated.Devices = t.allocatedDevices(allocations)
	if t.allocatableKnown {
		r.Allocatable = t.allocatable
	}
	return r
}

// allocatedDevices returns the devices of named allocations, to agree with the published allocations. Responses add the NUMA nodes.
func (t *resourceTracker) allocatedDevices(allocations []device.Allocation) []device.ResourceDevice {
	nodes := make(map[allocationKey][]int, len(allocations))
	for _, rows := range [...][]device.ResourceDevice{t.devices, t.allocated.Devices} { // the newer rows last
		for _, d := range rows {
			nodes[allocationKey{d.Resource, device.AdvertisedID(d.ID)}] = d.NUMANodes
		}
	}
	devices := make([]device.ResourceDevice, 0, len(allocations))
	for _, a := range allocations {
		if a.Owner != (device.Owner{}) && !a.Claimed() { // claims have rows of a different kind
			devices = append(devices, device.ResourceDevice{Owner: a.Owner, Resource: a.Resource, ID: string(a.DeviceID), NUMANodes: nodes[keyOf(a)]})
		}
	}
	slices.SortFunc(devices, device.ResourceDevice.Compare)
	if !sameRows(devices, t.devices) {
		t.devices = devices
	}
	return t.devices
}
