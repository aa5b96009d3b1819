package api

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// AllocationsResponse is the response at AllocationsPath.
type AllocationsResponse struct {
	At          time.Time        `json:"at"`
	Node        string           `json:"node,omitempty"`
	Kubelet     KubeletJSON      `json:"kubelet"`
	Complete    bool             `json:"complete"` // a device without a row is unallocated
	Allocations []AllocationJSON `json:"allocations"`
}

// AllocationJSON is a device and a container to which it is or was allocated.
// Gone devices have no GPU, index and profile.
type AllocationJSON struct {
	Device  device.ID  `json:"device"`
	GPU     device.GPU `json:"gpu,omitempty"`
	Index   *int       `json:"index,omitempty"`
	Profile string     `json:"profile,omitempty"`
	OwnerJSON
}

// OwnerJSON is a current or recent owner of a device.
type OwnerJSON struct {
	allocation.Owner
	Current   bool             `json:"current"`
	Resources []ResourceIDJSON `json:"resources"`      // as allocated by the kubelet; empty for a recent owner
	FirstSeen time.Time        `json:"first,omitzero"` // with the device
	LastSeen  time.Time        `json:"last,omitzero"`
}

// ResourceIDJSON is an allocated id of a resource.
type ResourceIDJSON struct {
	Resource string              `json:"resource"`
	ID       device.AdvertisedID `json:"id"`
	Claim    string              `json:"claim,omitempty"` // in the owner's namespace
}

func (r AllocationsResponse) withoutTimes() any {
	r.At, r.Kubelet.LastResponse = time.Time{}, time.Time{}
	return r
}

func (n *Node) handleAllocations(q Query, now time.Time) response {
	allocations := n.Allocations
	r := AllocationsResponse{
		At: now, Node: n.Name, Kubelet: newKubeletJSON(allocations), Complete: allocations.Complete,
		Allocations: []AllocationJSON{},
	}
	for _, row := range allocationCandidates(n.Statuses, allocations) {
		if !q.matchesDevice(row.Device, row.GPU) {
			continue
		}
		for _, row.OwnerJSON = range slices.Concat(ownersOf(row.Device, allocations)) {
			if q.matchesPod(row.Namespace, row.Pod) {
				r.Allocations = append(r.Allocations, row)
			}
		}
	}
	return r
}

// allocationCandidates returns the devices that may have an owner: the inventory
// in order, and then devices that are gone.
func allocationCandidates(statuses []device.Status, allocations allocation.Snapshot) []AllocationJSON {
	devices := make([]AllocationJSON, 0, len(statuses))
	for _, s := range statuses {
		devices = append(devices, AllocationJSON{Device: s.ID, GPU: s.GPU, Index: &s.Index, Profile: s.Profile})
	}
	var others []device.ID
	for _, a := range allocations.All {
		others = append(others, a.DeviceID.Device())
	}
	for _, r := range allocations.Recent {
		others = append(others, r.Device)
	}
	slices.Sort(others)
	for _, id := range slices.Compact(others) {
		if !slices.ContainsFunc(statuses, func(s device.Status) bool { return s.ID == id }) {
			devices = append(devices, AllocationJSON{Device: id})
		}
	}
	return devices
}

// ownersOf returns the current owners of a device by name, and recent owners,
// newest first.
func ownersOf(id device.ID, allocations allocation.Snapshot) (current, past []OwnerJSON) {
	current, past = []OwnerJSON{}, []OwnerJSON{} // not null in JSON
	find := func(owner allocation.Owner) int {
		return slices.IndexFunc(current, func(o OwnerJSON) bool { return o.Owner == owner })
	}
	for _, a := range allocations.ForDevice(id) {
		if a.Owner == (allocation.Owner{}) {
			continue
		}
		i := find(a.Owner)
		if i < 0 {
			i = len(current)
			current = append(current, OwnerJSON{Owner: a.Owner, Current: true})
		}
		current[i].Resources = append(current[i].Resources, ResourceIDJSON{a.Resource, a.DeviceID, a.Claim})
	}
	for _, r := range allocations.Recent {
		if r.Device != id {
			continue
		}
		if i := find(r.Owner); i >= 0 {
			current[i].FirstSeen, current[i].LastSeen = r.FirstSeen, r.LastSeen
			continue
		}
		past = append(past, OwnerJSON{
			Owner: r.Owner, Resources: []ResourceIDJSON{}, FirstSeen: r.FirstSeen, LastSeen: r.LastSeen,
		})
	}
	slices.SortFunc(current, func(a, b OwnerJSON) int { return a.Compare(b.Owner) })
	slices.SortStableFunc(past, func(a, b OwnerJSON) int { return b.LastSeen.Compare(a.LastSeen) })
	return current, past
}
