package device

import (
	"cmp"
	"slices"
)

// NodeResources are all that the kubelet gives to containers piece by piece, whoever's
// device plugin or driver it is of, as PodResourcesLister says it: devices, CPUs,
// memory and claims. None of it is written after it was published.
type NodeResources struct {
	// AllocatableKnown says that the kubelet was asked what it would give away, and answered. The
	// allocatable ones of a kubelet that does not say are none, and not 0.
	AllocatableKnown bool
	// AllocatableDevices are what the kubelet would give away, what is held included, and healthy
	// alone, by resource and id.
	AllocatableDevices []ResourceDevice
	// AllocatableCPUs are those that may become exclusive, held ones included, by number. There are
	// none but with the CPU manager's static policy.
	AllocatableCPUs []int64
	// AllocatableMemory is what may be reserved, by type and NUMA nodes. There is none but with the
	// memory manager's Static policy.
	AllocatableMemory []Memory

	// What containers have of it, by owner. An owner without a container is a pod that has
	// it as a whole (the kubelet's gate PodLevelResourceManagers); its containers may have
	// their parts of that by name as well.
	AllocatedDevices []AllocatedDevice
	AllocatedCPUs    []AllocatedCPUs
	AllocatedMemory  []AllocatedMemory
	Claims           []Claim

	// Dropped are the ids of other plugins that are left out of Devices, and DroppedHeld those
	// left out of HeldDevices and of Allocations.All: resources that have too many.
	Dropped, DroppedAllocated []DroppedIDs
}

// DroppedIDs is a resource whose ids are left out, and how many there are.
type DroppedIDs struct {
	Resource string
	IDs      int
}

// ResourceDevice is a device of any plugin.
type ResourceDevice struct {
	Resource, ID string
	NUMANodes    []int // none when the plugin does not say
}

// Memory is an amount of one type: "memory", "hugepages-2Mi".
type Memory struct {
	Type      string
	Bytes     uint64
	NUMANodes []int
}

// AllocatedDevice is a device that a container holds.
type AllocatedDevice struct {
	Owner
	ResourceDevice
}

// AllocatedCPUs are CPUs that a container has for itself.
type AllocatedCPUs struct {
	Owner
	CPUs []int64
}

// AllocatedMemory is memory that is reserved for a container.
type AllocatedMemory struct {
	Owner
	Memory
}

// Claim is a device that a container has by Dynamic Resource Allocation.
type Claim struct {
	Owner
	ClaimNamespace, ClaimName string
	// Driver is who gives the device, Pool and Device are its names for it, and Share
	// tells several holders of it apart; it may be empty.
	Driver, Pool, Device, ShareID string
	// CDI are the names by which the runtime knows the device.
	CDI []string
}

// PodMeta is what only the kubelet's Pods API says of a pod.
type PodMeta struct {
	UID    string
	Labels []Label // those that were asked for and that it has, by name
}

// Compare orders devices by resource, id and NUMA nodes.
func (d ResourceDevice) Compare(e ResourceDevice) int {
	return cmp.Or(cmp.Compare(d.Resource, e.Resource), cmp.Compare(d.ID, e.ID), slices.Compare(d.NUMANodes, e.NUMANodes))
}

// Compare orders memory by type, NUMA nodes and size.
func (m Memory) Compare(n Memory) int {
	return cmp.Or(cmp.Compare(m.Type, n.Type), slices.Compare(m.NUMANodes, n.NUMANodes), cmp.Compare(m.Bytes, n.Bytes))
}

// Compare orders by owner, and what one owner has as ResourceDevice does.
func (d AllocatedDevice) Compare(e AllocatedDevice) int {
	return cmp.Or(d.Owner.Compare(e.Owner), d.ResourceDevice.Compare(e.ResourceDevice))
}

// Compare orders by owner.
func (c AllocatedCPUs) Compare(d AllocatedCPUs) int {
	return cmp.Or(c.Owner.Compare(d.Owner), slices.Compare(c.CPUs, d.CPUs))
}

// Compare orders by owner, and what one owner has as Memory does.
func (m AllocatedMemory) Compare(n AllocatedMemory) int {
	return cmp.Or(m.Owner.Compare(n.Owner), m.Memory.Compare(n.Memory))
}

// Compare orders by owner, claim and device.
func (c Claim) Compare(d Claim) int {
	return cmp.Or(c.Owner.Compare(d.Owner),
		cmp.Compare(c.ClaimNamespace, d.ClaimNamespace), cmp.Compare(c.ClaimName, d.ClaimName),
		cmp.Compare(c.Driver, d.Driver), cmp.Compare(c.Pool, d.Pool), cmp.Compare(c.Device, d.Device),
		cmp.Compare(c.ShareID, d.ShareID), slices.Compare(c.CDI, d.CDI))
}
