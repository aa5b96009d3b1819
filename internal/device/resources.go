package device

import (
	"cmp"
	"slices"
)

// NodeResources are the devices, CPUs, memory and claims of all device plugins and drivers on the node, as in the kubelet's
// PodResourcesLister. A published NodeResources is immutable.
type NodeResources struct {
	// AllocatableKnown is set if the kubelet answered GetAllocatableResources. Without an answer the allocatable lists are empty.
	AllocatableKnown bool
	// AllocatableDevices are the healthy devices, allocated or not, by resource and id.
	AllocatableDevices []ResourceDevice
	// AllocatableCPUs are the CPUs that may become exclusive, allocated or not. Only the CPU manager's static policy has any.
	AllocatableCPUs []int64
	// AllocatableMemory is the memory that may be reserved, by type and NUMA nodes. Only the memory manager's Static policy has any.
	AllocatableMemory []Memory

	// The allocated resources, by owner. An owner without a container is a pod with resources of its own (feature gate
	// PodLevelResourceManagers); its containers may be listed with their shares as well.
	AllocatedDevices []AllocatedDevice
	AllocatedCPUs    []AllocatedCPUs
	AllocatedMemory  []AllocatedMemory
	Claims           []Claim

	// Dropped counts ids of resources with too many ids, left out of AllocatableDevices; DroppedAllocated those left out of
	// AllocatedDevices and Allocations.All.
	Dropped, DroppedAllocated []DroppedIDs
}

// DroppedIDs is the number of ids left out of a resource.
type DroppedIDs struct {
	Resource string
	IDs      int
}

// ResourceDevice is a device of any device plugin.
type ResourceDevice struct {
	Resource, ID string
	NUMANodes    []int // empty if the plugin reports none
}

// Memory is an amount of memory of one type: "memory", "hugepages-2Mi".
type Memory struct {
	Type      string
	Bytes     uint64
	NUMANodes []int
}

// AllocatedDevice is a device of a container.
type AllocatedDevice struct {
	Owner
	ResourceDevice
}

// AllocatedCPUs are exclusive CPUs of a container.
type AllocatedCPUs struct {
	Owner
	CPUs []int64
}

// AllocatedMemory is reserved memory of a container.
type AllocatedMemory struct {
	Owner
	Memory
}

// Claim is a device that a container has by Dynamic Resource Allocation.
type Claim struct {
	Owner
	ClaimNamespace, ClaimName string
	// Pool and Device are the driver's names. ShareID distinguishes the allocations of a shared device, and may be empty.
	Driver, Pool, Device, ShareID string
	CDI                           []string // the device's names in the container runtime
}

// Compare orders devices by resource, id and NUMA nodes.
func (d ResourceDevice) Compare(e ResourceDevice) int {
	return cmp.Or(cmp.Compare(d.Resource, e.Resource), cmp.Compare(d.ID, e.ID), slices.Compare(d.NUMANodes, e.NUMANodes))
}

// Compare orders memory by type, NUMA nodes and size.
func (m Memory) Compare(n Memory) int {
	return cmp.Or(cmp.Compare(m.Type, n.Type), slices.Compare(m.NUMANodes, n.NUMANodes), cmp.Compare(m.Bytes, n.Bytes))
}

// Compare orders by owner and device.
func (d AllocatedDevice) Compare(e AllocatedDevice) int {
	return cmp.Or(d.Owner.Compare(e.Owner), d.ResourceDevice.Compare(e.ResourceDevice))
}

// Compare orders by owner.
func (c AllocatedCPUs) Compare(d AllocatedCPUs) int {
	return cmp.Or(c.Owner.Compare(d.Owner), slices.Compare(c.CPUs, d.CPUs))
}

// Compare orders by owner and memory.
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
