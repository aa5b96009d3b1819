package preferred

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// AllocationPolicy says which replicas and slices a container should get.
type AllocationPolicy uint8

const (
	// Distributed takes each next one from the least loaded device.
	Distributed AllocationPolicy = iota
	// Packed takes each next one from the most loaded device that has one left.
	Packed
	// Distinct takes no two replicas of one GPU, and no two ids of one GPU, while there is
	// another choice; of those, as Distributed does. When Size is more than there are GPUs,
	// ids of one GPU do stand in an answer: Allocate rejects two replicas of one GPU.
	Distinct
)

// String is the policy's name in flags and config files.
func (p AllocationPolicy) String() string {
	switch p {
	case Distributed:
		return "distributed"
	case Packed:
		return "packed"
	case Distinct:
		return "distinct"
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// Shared chooses among replicas and MIG slices one by one. A device's load is the
// part of its ids that is not available, or was chosen before; a GPU's, that of
// all its ids. What is Held is among them. Among equals the GPU that has more link score with those chosen
// goes first, then the lowest index, then the lowest replica.
func (t *Topology) Shared(r Request, p AllocationPolicy) []device.AdvertisedID {
	return t.shared(t.resolve(r), p)
}

func (t *Topology) shared(req resolvedRequest, p AllocationPolicy) []device.AdvertisedID {
	if req.needed == len(req.available) {
		return t.complete(req, req.available)
	}
	if req.needed == 0 {
		return t.complete(req, nil)
	}
	s := t.newSharedPick(req, p)
	chosen := make([]int, req.needed)
	for i := range chosen {
		chosen[i] = s.take(s.nextDevice())
	}
	return t.complete(req, chosen)
}

// sharedPick is an answer in the making. Devices, GPUs and candidates are numbers.
type sharedPick struct {
	*Topology
	policy    AllocationPolicy
	freeIDs   []int // of each device: ids that can be chosen
	firstFree []int // of each device: the lowest of them
	nextFree  []int // of each candidate: the next of its device
	// Of each GPU: ids that can be chosen, ids that were, replicas that were, and its score
	// with the other GPUs of which any was.
	gpuFree, gpuTaken, gpuReplicas, gpuAffinity []int
}

func (t *Topology) newSharedPick(req resolvedRequest, p AllocationPolicy) *sharedPick {
	devices, gpus := len(t.idCount), len(t.gpuIDCount)
	numbers := make([]int, 2*devices+len(t.candidates)+4*gpus)
	alloc := func(n int) []int {
		var p []int
		p, numbers = numbers[:n:n], numbers[n:]
		return p
	}
	s := &sharedPick{
		Topology: t, policy: p,
		freeIDs: alloc(devices), firstFree: alloc(devices), nextFree: alloc(len(t.candidates)),
		gpuFree: alloc(gpus), gpuTaken: alloc(gpus), gpuReplicas: alloc(gpus), gpuAffinity: alloc(gpus),
	}
	for _, i := range slices.Backward(req.available) {
		d := t.deviceOf[i]
		s.nextFree[i], s.firstFree[d] = s.firstFree[d], i
		s.freeIDs[d]++
		s.gpuFree[t.gpuOf[d]]++
	}
	for _, i := range req.must {
		s.markChosen(i)
	}
	return s
}

// nextDevice is the device from which one should be taken; there is one.
func (s *sharedPick) nextDevice() int {
	next := -1
	for d, free := range s.freeIDs {
		if free > 0 && (next < 0 || s.compareDevices(d, next) < 0) {
			next = d
		}
	}
	return next
}

// compareDevices is negative when device d goes before device e.
func (s *sharedPick) compareDevices(d, e int) int {
	g, h := s.gpuOf[d], s.gpuOf[e]
	load := cmp.Or(
		compareLoad(s.freeIDs[d], s.idCount[d], s.freeIDs[e], s.idCount[e]),
		compareLoad(s.gpuFree[g], s.gpuIDCount[g], s.gpuFree[h], s.gpuIDCount[h]),
	)
	repeat := cmp.Compare(s.gpuTaken[g], s.gpuTaken[h])
	affinity := cmp.Compare(s.gpuAffinity[h], s.gpuAffinity[g])
	switch s.policy {
	case Packed:
		return cmp.Or(-load, -repeat, affinity)
	case Distinct:
		return cmp.Or(compareBool(s.repeatsGPU(d), s.repeatsGPU(e)), repeat, load, affinity)
	default:
		return cmp.Or(load, repeat, affinity)
	}
}

// repeatsGPU reports whether an id of device d would be the second replica of its GPU.
func (s *sharedPick) repeatsGPU(d int) bool {
	return s.gpuReplicas[s.gpuOf[d]] > 0 && s.candidates[s.firstFree[d]].Replica
}

// compareLoad is negative when a has the larger part of its ids free. Devices may
// have different numbers of replicas.
func compareLoad(freeA, allA, freeB, allB int) int { return cmp.Compare(freeB*allA, freeA*allB) }

// take returns the lowest candidate that the device has left.
func (s *sharedPick) take(d int) int {
	i := s.firstFree[d]
	s.firstFree[d] = s.nextFree[i]
	s.freeIDs[d]--
	s.gpuFree[s.gpuOf[d]]--
	s.markChosen(i)
	return i
}

// markChosen counts a candidate as chosen.
func (s *sharedPick) markChosen(i int) {
	g := s.gpuOf[s.deviceOf[i]]
	if s.candidates[i].Replica {
		s.gpuReplicas[g]++
	}
	if s.gpuTaken[g]++; s.gpuTaken[g] > 1 {
		return
	}
	for h := range s.gpuAffinity {
		s.gpuAffinity[h] += s.gpuScore[h*len(s.gpuAffinity)+g]
	}
}
