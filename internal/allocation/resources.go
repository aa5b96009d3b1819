package allocation

import (
	"cmp"
	"slices"
)

// NodeResources are the devices, CPUs, memory and claims of all device plugins
// and drivers on the node, as in the kubelet's PodResourcesLister. A published
// NodeResources is immutable.
type NodeResources struct {
	// AllocatableKnown is set if the kubelet answered GetAllocatableResources. Otherwise Allocatable is empty.
	AllocatableKnown bool
	// Allocatable are the healthy devices, and the CPUs and memory for
	// exclusive use, allocated or not. The rows have no owner. Only the static
	// policies of the CPU manager and the memory manager have CPUs and memory.
	Allocatable ResourceSet
	// Allocated are the resources of containers. An owner without a container
	// is a pod with resources of its own (feature gate
	// PodLevelResourceManagers); its containers may be listed with their shares
	// as well.
	Allocated ResourceSet
}

// ResourceSet has the rows of each kind of resource, sorted by Compare.
type ResourceSet struct {
	Devices []ResourceDevice
	CPUs    []ExclusiveCPUs
	Memory  []ReservedMemory
	Claims  []Claim
	// Dropped counts ids of resources with too many ids, left out of Devices and Snapshot.All.
	Dropped []DroppedIDs
}

// DroppedIDs is the number of ids left out of a resource.
type DroppedIDs struct {
	Resource string
	IDs      int
}

// ResourceDevice is a device of any device plugin.
type ResourceDevice struct {
	Owner
	Resource, ID string
	NUMANodes    []int // empty if the plugin reports none
}

// ExclusiveCPUs are CPUs of a single container.
type ExclusiveCPUs struct {
	Owner
	CPUs []int64
}

// ReservedMemory is memory of one type: "memory", "hugepages-2Mi".
type ReservedMemory struct {
	Owner
	Type      string
	Bytes     uint64
	NUMANodes []int
}

// Claim is a device that a container has by Dynamic Resource Allocation.
type Claim struct {
	Owner
	ClaimNamespace, ClaimName string
	// Pool and Device are the driver's names. ShareID distinguishes the
	// allocations of a shared device, and may be empty.
	Driver, Pool, Device, ShareID string
	CDI                           []string // the device's names in the container runtime
}

// Compare orders by owner, resource, id and NUMA nodes.
func (d ResourceDevice) Compare(e ResourceDevice) int {
	return cmp.Or(d.Owner.Compare(e.Owner), cmp.Compare(d.Resource, e.Resource), cmp.Compare(d.ID, e.ID),
		slices.Compare(d.NUMANodes, e.NUMANodes))
}

// Compare orders by owner.
func (c ExclusiveCPUs) Compare(d ExclusiveCPUs) int {
	return cmp.Or(c.Owner.Compare(d.Owner), slices.Compare(c.CPUs, d.CPUs))
}

// Compare orders by owner, type, NUMA nodes and size.
func (m ReservedMemory) Compare(n ReservedMemory) int {
	return cmp.Or(m.Owner.Compare(n.Owner), cmp.Compare(m.Type, n.Type),
		slices.Compare(m.NUMANodes, n.NUMANodes), cmp.Compare(m.Bytes, n.Bytes))
}

// Compare orders by owner, claim and device.
func (c Claim) Compare(d Claim) int {
	return cmp.Or(c.Owner.Compare(d.Owner),
		cmp.Compare(c.ClaimNamespace, d.ClaimNamespace), cmp.Compare(c.ClaimName, d.ClaimName),
		cmp.Compare(c.Driver, d.Driver), cmp.Compare(c.Pool, d.Pool), cmp.Compare(c.Device, d.Device),
		cmp.Compare(c.ShareID, d.ShareID), slices.Compare(c.CDI, d.CDI))
}
