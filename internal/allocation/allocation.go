// Package allocation models which containers have which devices, CPUs and
// memory, as the kubelet reports them.
package allocation

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Allocation is a device-plugin id that a container has. An empty Owner is an
// allocation that the kubelet does not name, as for init containers.
type Allocation struct {
	// Resource is the device plugin's resource, "nvidia.com/gpu", or the DRA driver of a claim, "gpu.nvidia.com".
	Resource string
	DeviceID device.AdvertisedID
	Owner    Owner
	// Claim is the name of the claim, in the owner's namespace; empty for a
	// device plugin's resource.
	Claim string
}

// Claimed reports whether the device was allocated by Dynamic Resource
// Allocation. Names of DRA drivers are DNS names, and names of resources have a
// slash (IsExtendedResourceName in pkg/apis/core/v1/helper/helpers.go).
func (a Allocation) Claimed() bool { return !strings.Contains(a.Resource, "/") }

// Compare orders Snapshot.All.
func Compare(a, b Allocation) int {
	return cmp.Or(cmp.Compare(a.DeviceID.Device(), b.DeviceID.Device()), cmp.Compare(a.DeviceID, b.DeviceID),
		cmp.Compare(a.Resource, b.Resource), a.Owner.Compare(b.Owner), cmp.Compare(a.Claim, b.Claim))
}

// Record is the time of an allocation. A container that gets a device again has a new record.
type Record struct {
	Device device.ID
	Owner  Owner
	// FirstSeen is the time of the allocation if known, otherwise of the first
	// answer with the Owner. LastSeen is the time of the newest.
	FirstSeen, LastSeen time.Time
	EndedAt             time.Time // of the first answer without the allocation; zero: not ended
}

// Snapshot has all allocations at one time. It is immutable once published.
type Snapshot struct {
	// At is the time of the kubelet's answer. Zero: no answer yet.
	At time.Time
	// Err is the error of the newest call; nil: the call succeeded.
	Err error
	// All has one row per device-plugin id and container, or per device, container
	// and claim; ordered by device, id and owner.
	All []Allocation
	// Complete is set if an id without a row is not allocated. Until then, such an id is unknown.
	Complete bool
	// Recent are the newest owners of each device, including the current ones;
	// ordered by device.
	Recent []Record
	// Resources is from the same answer, except allocatable resources, which
	// are read less often. An unchanged slice keeps its identity.
	Resources NodeResources
}

// State is the allocation state of a device.
type State uint8

// The allocation states.
const (
	Unknown      State = iota // not exported
	Unallocated               //
	Allocated                 // to one container
	Shared                    // to several containers
	OwnerUnknown              // the kubelet names no owner
)

// State returns the state of a device and its owner. The owner of a shared
// device is the containers' common pod, or empty.
//
// Claims count only without allocations by a device plugin: the PodResources
// API does not show whether a claim has admin access, as for a monitoring pod
// on all GPUs.
func (a Snapshot) State(id device.ID) (State, Owner) {
	rows := a.ForDevice(id)
	state, owner := Unknown, Owner{}
	if len(rows) == 0 && a.Complete {
		return Unallocated, owner
	}
	claims := !slices.ContainsFunc(rows, func(r Allocation) bool { return !r.Claimed() })
	for _, r := range rows {
		switch {
		case r.Claimed() != claims:
		case state == Unknown:
			state, owner = Allocated, r.Owner
		case r.Owner != owner:
			state, owner = Shared, owner.Common(r.Owner)
		}
	}
	if state == Allocated && owner == (Owner{}) {
		return OwnerUnknown, owner
	}
	return state, owner
}

// DeviceIDs returns the allocated ids of a resource.
func (a Snapshot) DeviceIDs(resource string) (ids []device.AdvertisedID) {
	for _, r := range a.All {
		if r.Resource == resource {
			ids = append(ids, r.DeviceID)
		}
	}
	return ids
}

// ForDevice returns the allocations of a device.
func (a Snapshot) ForDevice(id device.ID) []Allocation {
	return rowsOf(a.All, id, func(r Allocation) device.ID { return r.DeviceID.Device() })
}

// RecentOf returns the newest owners of a device.
func (a Snapshot) RecentOf(id device.ID) []Record {
	return rowsOf(a.Recent, id, func(r Record) device.ID { return r.Device })
}

// rowsOf returns the rows of a device. The rows are in the order of devices.
func rowsOf[T any](rows []T, id device.ID, deviceOf func(T) device.ID) []T {
	byDevice := func(row T, id device.ID) int { return cmp.Compare(deviceOf(row), id) }
	start, _ := slices.BinarySearchFunc(rows, id, byDevice)
	end := start
	for end < len(rows) && deviceOf(rows[end]) == id {
		end++
	}
	return rows[start:end]
}
