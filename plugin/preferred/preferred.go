// Package preferred chooses devices for a container: whole GPUs by links,
// replicas and MIG devices by load.
//
// No call waits or returns an error: the kubelet fails a pod if
// GetPreferredAllocation returns an error. The order of preference and the
// reasons are in docs/contributing/adr/0006-preferred-allocation.md.
package preferred

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// AllocationRequest asks for Size ids for a container: all of Must, the rest
// from Available.
//
// Repeated ids and impossible sizes are allowed. Unknown ids are left out: the
// kubelet completes a short answer.
type AllocationRequest struct {
	Available, Must []device.AdvertisedID
	Size            int
	// Reject reports whether Allocate rejects an id in a request of this size.
	// The result must be the same for all ids of a device. Rejected ids are
	// chosen only if there are not enough accepted ids. Nil accepts all.
	Reject func(device.AdvertisedID) bool
}

// Prefer returns the ids for a container: Size ids, or all known ids if there
// are fewer.
//
// The answer has the ids of Must first, then the chosen ids, both by GPU index
// and replica. If a replica or a MIG device can be chosen, the policy decides;
// otherwise the links of the GPUs decide.
func (t *Topology) Prefer(r AllocationRequest, p AllocationPolicy) []device.AdvertisedID {
	must := t.numbers(r.Must)
	var available []int
	var rejected []device.AdvertisedID
	for _, i := range t.numbers(r.Available) {
		id := t.candidates[i].ID
		switch {
		case slices.Contains(must, i):
		case r.Reject != nil && r.Reject(id):
			rejected = append(rejected, id)
		default:
			available = append(available, i)
		}
	}
	size := max(r.Size, 0)
	needed := min(max(size-len(must), 0), len(available))
	isPartOfGPU := func(i int) bool {
		c := t.candidates[i]
		return c.Replica || string(c.Device) != string(c.GPU)
	}
	var chosen []int
	switch {
	case needed == len(available):
		chosen = available
	case needed == 0:
	case slices.ContainsFunc(available, isPartOfGPU):
		chosen = t.chooseShared(must, available, needed, p)
	default:
		chosen = t.chooseWholeGPUs(must, available, needed)
	}
	slices.Sort(chosen)
	var ids []device.AdvertisedID
	for _, i := range slices.Concat(must, chosen) {
		ids = append(ids, t.candidates[i].ID)
	}
	ids = append(ids, rejected...)
	return ids[:min(size, len(ids))]
}

// numbers returns the candidates of ids in ascending order, each once.
func (t *Topology) numbers(ids []device.AdvertisedID) []int {
	var numbers []int
	for _, id := range ids {
		if i, found := t.index[id]; found {
			numbers = append(numbers, i)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
