// Package preferred chooses devices for a container: whole GPUs by links, replicas and MIG devices by load.
//
// No call waits or returns an error: the kubelet fails a pod if GetPreferredAllocation returns an error.
// The order of preference and the reasons are in docs/contributing/adr/0006-preferred-allocation.md.
package preferred

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// AllocationRequest asks for Size ids for a container: all of Must, the rest from Available.
//
// Repeated ids and impossible sizes are allowed. Unknown ids are left out: the kubelet completes a short answer.
type AllocationRequest struct {
	Available, Must []device.AdvertisedID
	Size            int
	// Reject reports whether Allocate rejects an id in a request of this size. The result must be the same for all ids of a
	// device. Rejected ids are chosen only if there are not enough accepted ids. Nil accepts all.
	Reject func(device.AdvertisedID) bool
}

// Prefer returns the ids for a container: Size ids, or all known ids if there are fewer.
//
// The answer has the ids of Must first, then the chosen ids, both by GPU index and replica. If a replica or a MIG device
// can be chosen, the policy decides; otherwise the links of the GPUs decide.
func (t *Topology) Prefer(r AllocationRequest, p AllocationPolicy) []device.AdvertisedID {
	req := t.resolve(r)
	isPartOfGPU := func(i int) bool { c := t.candidates[i]; return c.Replica || string(c.Device) != string(c.GPU) }
	switch {
	case req.needed == len(req.available):
		return t.answer(req, req.available)
	case req.needed == 0:
		return t.answer(req, nil)
	case slices.ContainsFunc(req.available, isPartOfGPU):
		return t.chooseShared(req, p)
	default:
		return t.chooseWholeGPUs(req)
	}
}

// resolvedRequest is an AllocationRequest with candidates in place of ids: by number, in ascending order, each at most once.
type resolvedRequest struct {
	must, available []int                 // available: without rejected candidates
	rejected        []device.AdvertisedID // of Available
	size, needed    int                   // number of ids in the answer, and to choose from available
}

func (t *Topology) resolve(r AllocationRequest) resolvedRequest {
	const available, must = 1, 2
	marks := make([]uint8, len(t.candidates))
	t.mark(marks, r.Available, available)
	t.mark(marks, r.Must, must)
	numbers := make([]int, 0, 2*len(marks))
	req := resolvedRequest{must: numbers[:0:len(marks)], available: numbers[len(marks):len(marks)], size: max(r.Size, 0)}
	checked, rejected := -1, false // newest call of Reject: device and result
	for i, mark := range marks {
		if d := t.deviceOf[i]; mark == available && r.Reject != nil && d != checked {
			checked, rejected = d, r.Reject(t.candidates[i].ID)
		}
		switch {
		case mark == available && rejected:
			req.rejected = append(req.rejected, t.candidates[i].ID)
		case mark == available:
			req.available = append(req.available, i)
		case mark == must:
			req.must = append(req.must, i)
		}
	}
	req.needed = min(max(req.size-len(req.must), 0), len(req.available))
	return req
}

// mark marks the candidates of ids.
func (t *Topology) mark(marks []uint8, ids []device.AdvertisedID, value uint8) {
	for _, id := range ids {
		if i, found := t.index[id]; found {
			marks[i] = value
		}
	}
}

// answer returns Must, the chosen candidates and, up to Size ids, the rejected ids.
func (t *Topology) answer(req resolvedRequest, chosen []int) []device.AdvertisedID {
	slices.Sort(chosen)
	ids := make([]device.AdvertisedID, 0, len(req.must)+len(chosen)+len(req.rejected))
	for _, candidates := range [...][]int{req.must, chosen} {
		for _, i := range candidates {
			ids = append(ids, t.candidates[i].ID)
		}
	}
	ids = append(ids, req.rejected...)
	return ids[:min(req.size, len(ids))]
}
