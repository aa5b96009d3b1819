package device

// Resources are all that the kubelet gives to containers piece by piece, whoever's
// device plugin or driver it is of, as PodResourcesLister says it: devices, CPUs,
// memory and claims. None of it is written after it was published.
type Resources struct {
	// Known says that the kubelet was asked what it would give away, and answered. The
	// allocatable ones of a kubelet that does not say are none, and not 0.
	Known bool
	// Devices are what the kubelet would give away, what is held included, and healthy
	// alone, by resource and id.
	Devices []ResourceDevice
	// CPUs are those that may become exclusive, held ones included, by number. There are
	// none but with the CPU manager's static policy.
	CPUs []int64
	// Memory is what may be reserved, by type and NUMA nodes. There is none but with the
	// memory manager's Static policy.
	Memory []Memory

	// What containers have of it, by owner.
	HeldDevices []HeldDevice
	HeldCPUs    []HeldCPUs
	HeldMemory  []HeldMemory
	Claims      []Claim
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

// HeldDevice is a device that a container holds.
type HeldDevice struct {
	Owner
	ResourceDevice
}

// HeldCPUs are CPUs that a container has for itself.
type HeldCPUs struct {
	Owner
	CPUs []int64
}

// HeldMemory is memory that is reserved for a container.
type HeldMemory struct {
	Owner
	Memory
}

// Claim is a device that a container has by Dynamic Resource Allocation.
type Claim struct {
	Owner
	ClaimNamespace, ClaimName string
	// Driver is who gives the device, Pool and Device are its names for it, and Share
	// tells several holders of it apart; it may be empty.
	Driver, Pool, Device, Share string
	// CDI are the names by which the runtime knows the device.
	CDI []string
}

// PodMeta is what only the kubelet's Pods API says of a pod.
type PodMeta struct {
	UID    string
	Labels []Label // those that were asked for and that it has, by name
}
