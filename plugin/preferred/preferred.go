// Package preferred chooses devices for a container: whole GPUs by links, replicas and MIG devices by load.
//
// No call waits or returns an error: the kubelet fails a pod if GetPreferredAllocation returns an error.
// The order of preference and the reasons are in docs/adr/0006-preferred-allocation.md.
package preferred

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// AllocationRequest asks for Size ids for a container: all of Must, the rest from Available.
//
// Unknown ids, repeated ids and impossible sizes are allowed.
type AllocationRequest struct {
	Available, Must []device.AdvertisedID
	Size            int
	// Reject reports whether Allocate rejects an id in a request of this size. The result must be the same for all ids of a
	// device. Rejected ids are chosen only if there are not enough accepted ids. Nil accepts all.
	Reject func(device.AdvertisedID) bool
}

// Prefer returns the ids for a container: Size ids, or all if there are fewer.
//
// The answer has the ids of Must first, then the chosen ids, both by GPU index and replica. If a replica or a MIG device
// can be chosen, the policy decides; otherwise the links of the GPUs decide.
func (t *Topology) Prefer(r AllocationRequest, p AllocationPolicy) []device.AdvertisedID {
	req := t.resolve(r)
	switch {
	case req.needed == len(req.available):
		return t.answer(req, req.available)
	case req.needed == 0:
		return t.answer(req, nil)
	case slices.ContainsFunc(req.available, func(i int) bool { return t.candidates[i].isPartial() }):
		return t.chooseShared(req, p)
	default:
		return t.chooseWholeGPUs(req)
	}
}

// resolvedRequest is an AllocationRequest with candidates in place of ids: by number, in ascending order, each at most once.
type resolvedRequest struct {
	must, available []int                 // available: without rejected candidates
	ids             []device.AdvertisedID // of the answer: Must, known ids first
	fallback        []device.AdvertisedID // of Available: rejected ids, then unknown ids
	size, needed    int                   // number of ids in the answer, and to choose from available
}

func (t *Topology) resolve(r AllocationRequest) resolvedRequest {
	req := resolvedRequest{size: min(r.Size, len(r.Available)+len(r.Must))}
	if req.size <= 0 {
		return resolvedRequest{}
	}
	const available, must = 1, 2
	marks := make([]uint8, len(t.candidates))
	unknown, unknownMust := t.mark(marks, r.Available, available), t.mark(marks, r.Must, must)
	numbers := make([]int, 0, 2*len(marks))
	req.must, req.available = numbers[:0:len(marks)], numbers[len(marks):len(marks)]
	req.ids = make([]device.AdvertisedID, 0, req.size)
	checked, rejected := -1, false // newest call of Reject: device and result
	for i, mark := range marks {
		if d := t.deviceOf[i]; mark == available && r.Reject != nil && d != checked {
			checked, rejected = d, r.Reject(t.candidates[i].ID)
		}
		switch {
		case mark == available && rejected:
			req.fallback = append(req.fallback, t.candidates[i].ID)
		case mark == available:
			req.available = append(req.available, i)
		case mark == must:
			req.must = append(req.must, i)
			req.ids = append(req.ids, t.candidates[i].ID)
		}
	}
	req.ids = append(req.ids, unknownMust...)
	for _, id := range unknown {
		if _, found := slices.BinarySearchFunc(unknownMust, id, compareIDs); !found {
			req.fallback = append(req.fallback, id)
		}
	}
	req.needed = min(max(req.size-len(req.ids), 0), len(req.available))
	return req
}

// mark marks the candidates of ids and returns the ids without a candidate: sorted, each once.
func (t *Topology) mark(marks []uint8, ids []device.AdvertisedID, value uint8) (unknown []device.AdvertisedID) {
	for _, id := range ids {
		if i, found := t.index[id]; found && i >= 0 {
			marks[i] = value
		} else {
			unknown = append(unknown, id)
		}
	}
	slices.SortFunc(unknown, compareIDs)
	return slices.Compact(unknown)
}

// answer returns Must, the chosen candidates and, up to Size ids, the fallback.
func (t *Topology) answer(req resolvedRequest, chosen []int) []device.AdvertisedID {
	slices.Sort(chosen)
	for _, i := range chosen {
		req.ids = append(req.ids, t.candidates[i].ID)
	}
	req.ids = append(req.ids, req.fallback...)
	return req.ids[:min(req.size, len(req.ids))]
}
