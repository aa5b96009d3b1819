package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// resourceTracker is what stands of resources from answer to answer, as memory is for holders: what
// containers have of them, and what the kubelet would give away. It has no lock and reads
// no clock.
//
// An answer replaces the one before it, except in the minute after a connection was made:
// a kubelet that was restarted lists its pods one after the other. What a pod had stands
// until that connection has listed the pod, or somebody else has the same, or the minute
// is over (docs/adr/0004-unknown-holders.md). Before the first answer there is nothing.
type resourceTracker struct {
	// held are the rows by owner, and offered those that nobody owns. Once set their
	// slices are replaced and not written, since they were published.
	allocated, allocatable device.NodeResources

	// dropped are the ids that answers had too many of, of those that the kubelet would give
	// away, and droppedHeld of those that containers have.
	droppedAllocatable, droppedAllocated []device.DroppedIDs

	epoch kubeletEpoch
	// listedPods are the pods that answers over link have listed, while it is young.
	listedPods map[podName]bool

	scratchDevices []device.ResourceDevice // scratch
	scratchMemory  []device.Memory

	// published are the devices of named holders, and holders and rows what they were made of.
	published     []device.AllocatedDevice
	publishedFor  []device.Allocation
	publishedRows []device.AllocatedDevice
}

// merge merges an answer in, and reports whether anybody has something else than before. The
// answer may lack pods as long as its connection is young.
func (t *resourceTracker) merge(rows *resourceRows, pods []podName, epoch kubeletEpoch, young bool) bool {
	if young {
		t.addListedPods(pods, epoch)
		t.addUnlisted(rows)
	} else {
		t.epoch, t.listedPods = epoch, nil
	}
	t.droppedAllocated = rows.foreign.droppedIDs(t.droppedAllocated)
	rows.normalize()
	var devices, cpus, memory, claims bool
	h := &t.allocated
	h.AllocatedDevices, devices = cloneIfChanged(h.AllocatedDevices, rows.devices, device.AllocatedDevice.Compare, cloneHeldDevice)
	h.AllocatedCPUs, cpus = cloneIfChanged(h.AllocatedCPUs, rows.cpus, device.AllocatedCPUs.Compare, cloneHeldCPUs)
	h.AllocatedMemory, memory = cloneIfChanged(h.AllocatedMemory, rows.memory, device.AllocatedMemory.Compare, cloneHeldMemory)
	h.Claims, claims = cloneIfChanged(h.Claims, rows.claims, device.Claim.Compare, cloneClaim)
	return devices || cpus || memory || claims
}

func (t *resourceTracker) addListedPods(pods []podName, epoch kubeletEpoch) {
	if epoch != t.epoch || t.listedPods == nil {
		t.epoch, t.listedPods = epoch, map[podName]bool{}
	}
	for _, p := range pods {
		t.listedPods[p] = true
	}
}

// addUnlisted adds to an answer what it leaves out and still stands.
func (t *resourceTracker) addUnlisted(rows *resourceRows) {
	cpus, claims := rows.cpus, rows.claims // what others have now
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
	for _, m := range t.allocated.AllocatedMemory {
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

// addUnlistedDevices does so for devices. There are plugins to which each MiB of a GPU's memory
// is a device, so that a node has some hundred thousand.
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

// supersedes tells whether a claim has been given the device of another: several pods may
// share a claim, and several claims a device where each has a share of it.
func supersedes(c, other device.Claim) bool {
	return c.Driver == other.Driver && c.Pool == other.Pool && c.Device == other.Device && c.ShareID == other.ShareID &&
		(c.ClaimNamespace != other.ClaimNamespace || c.ClaimName != other.ClaimName)
}

// setAllocatable takes in what the kubelet would give away.
func (t *resourceTracker) setAllocatable(rows *resourceRows) {
	t.droppedAllocatable = rows.foreign.droppedIDs(t.droppedAllocatable)
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
	t.allocatable.AllocatableKnown = true
	t.allocatable.AllocatableDevices, _ = cloneIfChanged(t.allocatable.AllocatableDevices, t.scratchDevices, device.ResourceDevice.Compare, cloneDevice)
	t.allocatable.AllocatableMemory, _ = cloneIfChanged(t.allocatable.AllocatableMemory, t.scratchMemory, device.Memory.Compare, cloneMemory)
	if !slices.Equal(t.allocatable.AllocatableCPUs, cpus) {
		t.allocatable.AllocatableCPUs = slices.Clone(cpus)
	}
}

// clearAllocatable notes that the kubelet does not say what it would give away. What it said before
// is kept for when it says the same again, and shown to nobody.
func (t *resourceTracker) clearAllocatable() { t.allocatable.AllocatableKnown = false }

// snapshot are what stands, beside these holders.
func (t *resourceTracker) snapshot(allocations []device.Allocation) device.NodeResources {
	r := t.allocated
	r.AllocatedDevices = t.allocatedDevices(allocations)
	if t.allocatable.AllocatableKnown {
		r.AllocatableKnown, r.AllocatableDevices, r.AllocatableCPUs, r.AllocatableMemory = true, t.allocatable.AllocatableDevices, t.allocatable.AllocatableCPUs, t.allocatable.AllocatableMemory
	}
	return r
}

// allocatedDevices are those of the holders who have a name: memory knows better who holds what
// than one answer does, and what is shown of a device is to be of one mind. The answers add
// the NUMA nodes.
func (t *resourceTracker) allocatedDevices(allocations []device.Allocation) []device.AllocatedDevice {
	if sameSlice(allocations, t.publishedFor) && sameSlice(t.allocated.AllocatedDevices, t.publishedRows) {
		return t.published
	}
	t.publishedFor, t.publishedRows = allocations, t.allocated.AllocatedDevices
	nodes := make(map[allocationKey][]int, len(allocations))
	for _, rows := range [...][]device.AllocatedDevice{t.published, t.publishedRows} { // the newer ones last
		for _, d := range rows {
			nodes[allocationKey{d.Resource, device.AdvertisedID(d.ID)}] = d.NUMANodes
		}
	}
	devices := make([]device.AllocatedDevice, 0, len(allocations))
	for _, h := range allocations {
		if h.Owner == (device.Owner{}) || h.Claimed() { // a claim has a row of its own
			continue
		}
		devices = append(devices, device.AllocatedDevice{Owner: h.Owner, ResourceDevice: device.ResourceDevice{
			Resource: h.Resource, ID: string(h.DeviceID), NUMANodes: nodes[keyOf(h)],
		}})
	}
	slices.SortFunc(devices, device.AllocatedDevice.Compare)
	if !slices.EqualFunc(devices, t.published, func(a, b device.AllocatedDevice) bool { return a.Compare(b) == 0 }) {
		t.published = devices
	}
	return t.published
}

// sameSlice tells whether two slices are the same memory: what was published is replaced, and
// not written.
func sameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// cloneIfChanged are the old rows where the new ones say the same, and else copies of the new
// ones.
func cloneIfChanged[T any](old, latest []T, compare func(a, b T) int, clone func(T) T) (rows []T, changed bool) {
	if slices.EqualFunc(old, latest, func(a, b T) bool { return compare(a, b) == 0 }) {
		return old, false
	}
	rows = make([]T, len(latest))
	for i, row := range latest {
		rows[i] = clone(row)
	}
	return rows, true
}

func cloneDevice(d device.ResourceDevice) device.ResourceDevice {
	d.NUMANodes = slices.Clone(d.NUMANodes)
	return d
}

func cloneMemory(m device.Memory) device.Memory {
	m.NUMANodes = slices.Clone(m.NUMANodes)
	return m
}

func cloneHeldDevice(d device.AllocatedDevice) device.AllocatedDevice {
	d.ResourceDevice = cloneDevice(d.ResourceDevice)
	return d
}

func cloneHeldMemory(m device.AllocatedMemory) device.AllocatedMemory {
	m.Memory = cloneMemory(m.Memory)
	return m
}

func cloneHeldCPUs(c device.AllocatedCPUs) device.AllocatedCPUs {
	c.CPUs = slices.Clone(c.CPUs)
	return c
}

func cloneClaim(c device.Claim) device.Claim {
	c.CDI = slices.Clone(c.CDI)
	return c
}
