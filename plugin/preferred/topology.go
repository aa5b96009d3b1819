// Package preferred chooses which of the offered devices a container should get:
// whole GPUs by how they are connected, replicas and MIG slices by how loaded
// their GPUs are.
//
// It asks nobody and never fails: the kubelet fails a pod when its question for a
// preferred allocation is answered with an error. What is chosen, and why, is in
// docs/adr/0006-preferred-allocation.md.
package preferred

import (
	"cmp"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// Candidate is an id that the kubelet is offered, and the device behind it.
type Candidate struct {
	ID       device.AdvertisedID
	Device   device.ID
	GPU      device.GPU
	Index    int // the GPU's
	NUMANode int // -1 when unknown
	// Replica says that the id is one of several of its device. With the policy Distinct a
	// container must not get two replicas of one GPU.
	Replica bool
	// Allocated says that the id is offered no more, and a container has it still: it is
	// never chosen, and a load on its device.
	Allocated bool
}

// Request is the kubelet's question for one container: Size ids, of which those
// in Must are settled and the others are to come from Available. Unknown ids,
// repeated ones, and sizes that cannot be met are allowed.
//
// An answer has what must be, then what was chosen, each by index and replica. It
// has Size ids, or fewer where there are no more.
type Request struct {
	Available, Must []device.AdvertisedID
	Size            int
	// Reject reports whether Allocate rejects an id in a request of this size. The answer for
	// one id of a device holds for all ids of it. An answer has rejected ids only if there are
	// not enough others. Nil rejects none.
	Reject func(device.AdvertisedID) bool
}

// Topology is the candidates and how near their GPUs are to each other. It never
// changes, so any number of goroutines may ask it. The zero Topology knows no
// device: it answers with what is available, in the order of the ids.
type Topology struct {
	candidates []Candidate                 // by GPU index, GPU, device, replica
	index      map[device.AdvertisedID]int // into candidates; none has those that are Held
	deviceOf   []int                       // of each candidate, by number
	firstOf    []int                       // of each device: its first candidate, -1 if all are Held
	gpuOf      []int                       // of each device, by number
	idCount    []int                       // how many each device has
	gpuIDCount []int                       // how many each GPU has
	gpuScore   []int                       // score of GPUs g and h at g*len(gpuIDs)+h
}

// New takes candidates and links in any order; of two candidates with one id, one
// counts. Links of GPUs that are no candidates are ignored.
func New(candidates []Candidate, links []device.Link) *Topology {
	t := &Topology{index: make(map[device.AdvertisedID]int, len(candidates))}
	candidates = slices.Clone(candidates)
	slices.SortFunc(candidates, compareCandidates)
	devices, gpus, allocated := map[device.ID]int{}, map[device.GPU]int{}, map[device.AdvertisedID]bool{}
	var nodes []int // of each GPU
	for _, c := range candidates {
		if _, exists := t.index[c.ID]; exists || allocated[c.ID] {
			continue
		}
		g := indexFor(gpus, c.GPU)
		if g == len(nodes) {
			nodes, t.gpuIDCount = append(nodes, c.NUMANode), append(t.gpuIDCount, 0)
		}
		d := indexFor(devices, c.Device)
		if d == len(t.gpuOf) {
			t.gpuOf, t.idCount, t.firstOf = append(t.gpuOf, g), append(t.idCount, 0), append(t.firstOf, -1)
		}
		t.idCount[d]++
		t.gpuIDCount[t.gpuOf[d]]++
		if c.Allocated {
			allocated[c.ID] = true
			continue
		}
		t.index[c.ID] = len(t.candidates)
		if t.firstOf[d] < 0 {
			t.firstOf[d] = len(t.candidates)
		}
		t.candidates, t.deviceOf = append(t.candidates, c), append(t.deviceOf, d)
	}
	t.gpuScore = pairScores(gpus, nodes, links)
	return t
}

// indexFor is a key's number, in the order in which keys were first asked for.
func indexFor[K comparable](numbers map[K]int, key K) int {
	n, known := numbers[key]
	if !known {
		n = len(numbers)
		numbers[key] = n
	}
	return n
}

// compareCandidates orders all that differ, so that the order in which they were
// given leaves no trace.
func compareCandidates(a, b Candidate) int {
	return cmp.Or(
		cmp.Compare(a.Index, b.Index), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device),
		compareIDs(a.ID, b.ID), cmp.Compare(a.NUMANode, b.NUMANode), compareBool(a.Allocated, b.Allocated), compareBool(a.Replica, b.Replica),
	)
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// isPartial reports whether a candidate stands for a part of its GPU.
func (c Candidate) isPartial() bool { return c.Replica || string(c.Device) != string(c.GPU) }

// compareIDs puts replica 2 before replica 10.
func compareIDs(a, b device.AdvertisedID) int {
	deviceA, deviceB := a.Device(), b.Device()
	return cmp.Or(strings.Compare(string(deviceA), string(deviceB)), cmp.Compare(len(a), len(b)), strings.Compare(string(a), string(b)))
}

// Prefer chooses as Shared does if replicas or MIG devices can be chosen, and otherwise as
// Aligned does.
func (t *Topology) Prefer(r Request, p AllocationPolicy) []device.AdvertisedID {
	req := t.resolve(r)
	if slices.ContainsFunc(req.available, func(i int) bool { return t.candidates[i].isPartial() }) {
		return t.shared(req, p)
	}
	return t.wholeGPUs(req)
}

// resolvedRequest is a Request in terms of the topology: candidates by number, in order,
// each once.
type resolvedRequest struct {
	must, available []int
	rejected        []int                 // available, and Allocate rejects them
	chosen          []device.AdvertisedID // what must be, known ids first
	unknown         []device.AdvertisedID // available, and no candidates
	size, needed    int                   // ids in all, and candidates to be chosen from free
}

// resolve sorts out a request.
func (t *Topology) resolve(r Request) resolvedRequest {
	req := resolvedRequest{size: min(r.Size, len(r.Available)+len(r.Must))}
	if req.size <= 0 {
		return resolvedRequest{}
	}
	const available, must = 1, 2
	seen := make([]uint8, len(t.candidates))
	req.unknown = t.markIDs(seen, r.Available, available)
	unknown := t.markIDs(seen, r.Must, must)
	numbers := make([]int, 0, 2*len(seen))
	req.must, req.available = numbers[:0:len(seen)], numbers[len(seen):len(seen)]
	req.chosen = make([]device.AdvertisedID, 0, req.size)
	rejected := t.rejectedDevices(r)
	for i, s := range seen {
		switch {
		case s == available && rejected != nil && rejected[t.deviceOf[i]]:
			req.rejected = append(req.rejected, i)
		case s == available:
			req.available = append(req.available, i)
		case s == must:
			req.must = append(req.must, i)
			req.chosen = append(req.chosen, t.candidates[i].ID)
		}
	}
	req.unknown = slices.DeleteFunc(req.unknown, func(id device.AdvertisedID) bool {
		_, settled := slices.BinarySearchFunc(unknown, id, compareIDs)
		return settled
	})
	req.chosen = append(req.chosen, unknown...)
	req.needed = min(max(req.size-len(req.chosen), 0), len(req.available))
	return req
}

// rejectedDevices reports for each device whether Allocate rejects its ids.
func (t *Topology) rejectedDevices(r Request) []bool {
	if r.Reject == nil {
		return nil
	}
	rejects := make([]bool, len(t.firstOf))
	for d, i := range t.firstOf {
		rejects[d] = i >= 0 && r.Reject(t.candidates[i].ID)
	}
	return rejects
}

// markIDs notes which candidates are among the ids, and returns the ids that are
// none's, in order, each once.
func (t *Topology) markIDs(seen []uint8, ids []device.AdvertisedID, value uint8) (unknown []device.AdvertisedID) {
	for _, id := range ids {
		if i, known := t.index[id]; known {
			seen[i] = value
		} else {
			unknown = append(unknown, id)
		}
	}
	slices.SortFunc(unknown, compareIDs)
	return slices.Compact(unknown)
}

// complete is the answer with the chosen candidates, and with rejected ones and strangers where
// these are not enough.
func (t *Topology) complete(req resolvedRequest, chosen []int) []device.AdvertisedID {
	slices.Sort(chosen)
	for _, i := range append(chosen, req.rejected...) {
		req.chosen = append(req.chosen, t.candidates[i].ID)
	}
	req.chosen = append(req.chosen, req.unknown...)
	return req.chosen[:min(req.size, len(req.chosen))]
}

// scoreBetween is the score of two devices' GPUs.
func (t *Topology) scoreBetween(d, e int) int {
	return t.gpuScore[t.gpuOf[d]*len(t.gpuIDCount)+t.gpuOf[e]]
}
