package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// resourceTracker tracks allocated and allocatable resources from response to response, without a lock.
//
// A response replaces the response before, unless possibly incomplete. Then a pod keeps its resources until a response over this connection
// lists the pod or a new owner, or responses are complete (docs/adr/0004-unknown-holders.md).
type resourceTracker struct {
	// allocated has the rows with an owner, and allocatable the rows without. Published slices are replaced and never written.
	allocated, allocatable device.NodeResources

	epoch      kubeletEpoch
	listedPods map[podName]bool // over this connection; nil if responses are complete

	scratchDevices []device.ResourceDevice
	scratchMemory  []device.Memory

	// devices are the published rows, made of devicesFor and devicesFrom.
	devices     []device.AllocatedDevice
	devicesFor  []device.Allocation
	devicesFrom []device.AllocatedDevice
}

// merge merges a List, and reports whether resources of containers changed. An incomplete List may omit pods.
func (t *resourceTracker) merge(rows *resourceRows, pods []podName, epoch kubeletEpoch, incomplete bool) bool {
	if incomplete {
		t.addListedPods(pods, epoch)
		t.addUnlisted(rows)
	} else {
		t.epoch, t.listedPods = epoch, nil
	}
	r := &t.allocated
	r.DroppedAllocated = rows.foreign.droppedIDs(r.DroppedAllocated)
	rows.normalize()
	devices := update(&r.AllocatedDevices, rows.devices, func(d *device.AllocatedDevice) { d.NUMANodes = slices.Clone(d.NUMANodes) })
	cpus := update(&r.AllocatedCPUs, rows.cpus, func(c *device.AllocatedCPUs) { c.CPUs = slices.Clone(c.CPUs) })
	memory := update(&r.AllocatedMemory, rows.memory, func(m *device.AllocatedMemory) { m.NUMANodes = slices.Clone(m.NUMANodes) })
	claims := update(&r.Claims, rows.claims, func(c *device.Claim) { c.CDI = slices.Clone(c.CDI) })
	return devices || cpus || memory || claims
}

// update replaces rows by a copy of the latest rows if different, and reports whether there was a difference. own copies the slices of a
// row.
func update[T interface{ Compare(T) int }](rows *[]T, latest []T, own func(*T)) bool {
	if slices.EqualFunc(*rows, latest, func(a, b T) bool { return a.Compare(b) == 0 }) {
		return false
	}
	*rows = slices.Clone(latest)
	for i := range *rows {
		own(&(*rows)[i])
	}
	return true
}

func (t *resourceTracker) addListedPods(pods []podName, epoch kubeletEpoch) {
	if epoch != t.epoch || t.listedPods == nil {
		t.epoch, t.listedPods = epoch, map[podName]bool{}
	}
	for _, p := range pods {
		t.listedPods[p] = true
	}
}

// addUnlisted adds to a response the resources of unlisted pods without a new owner.
func (t *resourceTracker) addUnlisted(rows *resourceRows) {
	cpus, claims := rows.cpus, rows.claims // of listed pods
	isUnlisted := func(o device.Owner) bool { return !t.listedPods[podName{o.Namespace, o.Pod}] }
	t.addUnlistedDevices(rows, isUnlisted)
	for _, c := range t.allocated.AllocatedCPUs {
		if !isUnlisted(c.Owner) {
			continue
		}
		c.CPUs = slices.DeleteFunc(slices.Clone(c.CPUs), func(n int64) bool {
			return slices.ContainsFunc(cpus, func(other device.AllocatedCPUs) bool { return slices.Contains(other.CPUs, n) })
		})
		if len(c.CPUs) > 0 {
			rows.cpus = append(rows.cpus, c)
		}
	}
	for _, m := range t.allocated.AllocatedMemory { // without an identity to compare
		if isUnlisted(m.Owner) {
			rows.memory = append(rows.memory, m)
		}
	}
	for _, c := range t.allocated.Claims {
		if isUnlisted(c.Owner) && !slices.ContainsFunc(claims, func(d device.Claim) bool { return supersedes(d, c) }) {
			rows.claims = append(rows.claims, c)
		}
	}
}

// addUnlistedDevices adds the devices. The map is for plugins with a device per MiB of memory.
func (t *resourceTracker) addUnlistedDevices(rows *resourceRows, isUnlisted func(device.Owner) bool) {
	if !slices.ContainsFunc(t.allocated.AllocatedDevices, func(d device.AllocatedDevice) bool { return isUnlisted(d.Owner) }) {
		return
	}
	taken := make(map[[2]string]bool, len(rows.devices))
	for _, d := range rows.devices {
		taken[[2]string{d.Resource, d.ID}] = true
	}
	for _, d := range t.allocated.AllocatedDevices {
		if isUnlisted(d.Owner) && !taken[[2]string{d.Resource, d.ID}] {
			rows.devices = append(rows.devices, d)
		}
	}
}

// supersedes reports whether a claim has taken over the device of other. Several pods may share a claim, and several claims may have shares
// of a device.
func supersedes(c, other device.Claim) bool {
	return c.Driver == other.Driver && c.Pool == other.Pool && c.Device == other.Device && c.ShareID == other.ShareID &&
		(c.ClaimNamespace != other.ClaimNamespace || c.ClaimName != other.ClaimName)
}

// setAllocatable replaces the allocatable resources.
func (t *resourceTracker) setAllocatable(rows *resourceRows) {
	r := &t.allocatable
	r.AllocatableKnown = true
	r.Dropped = rows.foreign.droppedIDs(r.Dropped)
	rows.normalize()
	t.scratchDevices, t.scratchMemory = t.scratchDevices[:0], t.scratchMemory[:0]
	for _, d := range rows.devices {
		t.scratchDevices = append(t.scratchDevices, d.ResourceDevice)
	}
	for _, m := range rows.memory {
		t.scratchMemory = append(t.scratchMemory, m.Memory)
	}
	var cpus []int64
	if len(rows.cpus) > 0 {
		cpus = rows.cpus[0].CPUs
	}
	update(&r.AllocatableDevices, t.scratchDevices, func(d *device.ResourceDevice) { d.NUMANodes = slices.Clone(d.NUMANodes) })
	update(&r.AllocatableMemory, t.scratchMemory, func(m *device.Memory) { m.NUMANodes = slices.Clone(m.NUMANodes) })
	if !slices.Equal(r.AllocatableCPUs, cpus) {
		r.AllocatableCPUs = slices.Clone(cpus)
	}
}

// clearAllocatable makes the allocatable resources unknown. The rows stay for comparison with the next rows.
func (t *resourceTracker) clearAllocatable() { t.allocatable.AllocatableKnown = false }

// snapshot returns the resources, with the devices of the given allocations.
func (t *resourceTracker) snapshot(allocations []device.Allocation) device.NodeResources {
	r, a := t.allocated, t.allocatable
	r.AllocatedDevices, r.Dropped = t.allocatedDevices(allocations), a.Dropped
	if a.AllocatableKnown {
		r.AllocatableKnown, r.AllocatableDevices, r.AllocatableCPUs, r.AllocatableMemory = true, a.AllocatableDevices, a.AllocatableCPUs, a.AllocatableMemory
	}
	return r
}

// allocatedDevices returns the devices of named allocations, to agree with the published allocations. Responses add the NUMA nodes.
func (t *resourceTracker) allocatedDevices(allocations []device.Allocation) []device.AllocatedDevice {
	if sameSlice(allocations, t.devicesFor) && sameSlice(t.allocated.AllocatedDevices, t.devicesFrom) {
		return t.devices
	}
	t.devicesFor, t.devicesFrom = allocations, t.allocated.AllocatedDevices
	nodes := make(map[allocationKey][]int, len(allocations))
	for _, rows := range [...][]device.AllocatedDevice{t.devices, t.devicesFrom} { // the newer rows last
		for _, d := range rows {
			nodes[allocationKey{d.Resource, device.AdvertisedID(d.ID)}] = d.NUMANodes
		}
	}
	devices := make([]device.AllocatedDevice, 0, len(allocations))
	for _, a := range allocations {
		if a.Owner != (device.Owner{}) && !a.Claimed() { // claims have rows of a different kind
			devices = append(devices, device.AllocatedDevice{Owner: a.Owner, ResourceDevice: device.ResourceDevice{
				Resource: a.Resource, ID: string(a.DeviceID), NUMANodes: nodes[keyOf(a)],
			}})
		}
	}
	slices.SortFunc(devices, device.AllocatedDevice.Compare)
	if !slices.EqualFunc(devices, t.devices, func(a, b device.AllocatedDevice) bool { return a.Compare(b) == 0 }) {
		t.devices = devices
	}
	return t.devices
}

// sameSlice reports whether two slices share memory.
func sameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
