package device

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Owner is the container that holds a device. The zero Owner is nobody.
type Owner struct{ Namespace, Pod, Container string }

// CompareAllocations is the order of Allocations.All.
func CompareAllocations(a, b Allocation) int {
	return cmp.Or(cmp.Compare(a.DeviceID.Device(), b.DeviceID.Device()), cmp.Compare(a.DeviceID, b.DeviceID),
		cmp.Compare(a.Resource, b.Resource), a.Owner.Compare(b.Owner))
}

// Compare orders owners by namespace, pod and container.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Pod, p.Pod), cmp.Compare(o.Container, p.Container))
}

// Common returns what two owners share: the container, its pod without a container, or
// nothing.
func (o Owner) Common(p Owner) Owner {
	switch {
	case o == p:
		return o
	case o.Namespace == p.Namespace && o.Pod == p.Pod:
		return Owner{Namespace: o.Namespace, Pod: o.Pod}
	}
	return Owner{}
}

// Allocation says that a container holds an offered id. An Owner without a name is
// an allocation that the kubelet has not named: that of an init container never
// is.
type Allocation struct {
	// Resource is the plugin's, "nvidia.com/gpu", or, where the device was claimed, the
	// claim's driver, "gpu.nvidia.com": the name of a plugin's resource has a slash, and
	// that of a driver has none.
	Resource string
	DeviceID AdvertisedID
	Owner    Owner
}

// Claimed reports whether a container has the device by Dynamic Resource Allocation: the
// resource is then the name of a driver, a DNS name, and that of a device plugin has a slash
// (IsExtendedResourceName in pkg/apis/core/v1/helper/helpers.go).
func (a Allocation) Claimed() bool { return !strings.Contains(a.Resource, "/") }

// AllocationRecord says when a container was first and last seen to hold a device. One that had it,
// lost it and has it again is seen anew.
type AllocationRecord struct {
	Device ID
	Owner  Owner
	// FirstSeen is when it was allocated, where that was told, and else when it was first named:
	// it held the device from then on for sure. Last is when it was named last.
	FirstSeen, LastSeen time.Time
	// EndedAt is when it was first known to hold the device no more; zero while it does.
	EndedAt time.Time
}

// Allocations is what is known of who holds what, at one moment. It is never written
// after it was published.
type Allocations struct {
	// At is when the kubelet gave the answer that the rest is drawn from. Zero
	// is never: then nothing is known.
	At time.Time
	// Err is why the newest question was not answered; nil when it was.
	Err error
	// All has one row per offered id and container, ordered by device, id and
	// owner.
	All []Allocation
	// Complete says that an id which no row names is held by nobody. Until it
	// first is, such an id is unknown.
	Complete bool
	// Recent are the last containers of each device, those of now included.
	Recent []AllocationRecord
	// Resources are of the same answer, but for what is allocatable, which is asked for
	// more seldom. As long as nothing in one of its slices changes, it is the same slice.
	Resources NodeResources
}

// AllocationState is the state of one device.
type AllocationState uint8

// The states of a device.
const (
	AllocationUnknown     AllocationState = iota // nobody can say yet: not shown at all
	Unallocated                                  // held by nobody
	Allocated                                    // held by one container
	AllocatedShared                              // held by several
	AllocatedOwnerUnknown                        // allocated, and the kubelet names nobody
)

// State returns the state of a device and its owner. The Owner of a Shared device is what its
// owners share: their pod, or nothing. Allocations by a device plugin decide, and claims only where there are none:
// the PodResources API does not show whether a claim has admin access, as that of a
// monitoring pod on all GPUs, so a claim takes no device from its owner.
func (a Allocations) State(id ID) (AllocationState, Owner) {
	rows := a.ForDevice(id)
	if len(rows) == 0 {
		if a.Complete {
			return Unallocated, Owner{}
		}
		return AllocationUnknown, Owner{}
	}
	claims := !slices.ContainsFunc(rows, func(r Allocation) bool { return !r.Claimed() })
	state := AllocationUnknown
	var owner Owner
	for _, r := range rows {
		switch {
		case r.Claimed() != claims:
		case state == AllocationUnknown:
			state, owner = Allocated, r.Owner
		case r.Owner != owner:
			state, owner = AllocatedShared, owner.Common(r.Owner)
		}
	}
	if state == Allocated && owner == (Owner{}) {
		return AllocatedOwnerUnknown, owner
	}
	return state, owner
}

// DeviceIDs are the ids of a resource that containers hold.
func (a Allocations) DeviceIDs(resource string) (ids []AdvertisedID) {
	for _, r := range a.All {
		if r.Resource == resource {
			ids = append(ids, r.DeviceID)
		}
	}
	return ids
}

// ForDevice are the holdings of a device.
func (a Allocations) ForDevice(id ID) []Allocation {
	start, _ := slices.BinarySearchFunc(a.All, id, func(r Allocation, id ID) int {
		return cmp.Compare(r.DeviceID.Device(), id)
	})
	end := start
	for end < len(a.All) && a.All[end].DeviceID.Device() == id {
		end++
	}
	return a.All[start:end]
}
