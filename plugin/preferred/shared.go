package preferred

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// AllocationPolicy is the order of preference among replicas and MIG devices. An unknown policy is Distributed.
type AllocationPolicy string

const (
	// Distributed chooses from the least loaded device.
	Distributed AllocationPolicy = "distributed"
	// Packed chooses from the most loaded device.
	Packed AllocationPolicy = "packed"
	// Distinct chooses from a GPU without a chosen id, and otherwise like Distributed. If Size exceeds the number of GPUs, the
	// answer has several ids of a GPU; Allocate rejects two replicas of the same GPU.
	Distinct AllocationPolicy = "distinct"
)

// chooseShared chooses id after id, each from the first device in the order of compareDevices.
func (t *Topology) chooseShared(req resolvedRequest, p AllocationPolicy) []device.AdvertisedID {
	s := t.newSharedPick(req, p)
	chosen := make([]int, req.needed)
	for n := range chosen {
		next := -1
		for d, free := range s.freeIDs {
			if free > 0 && (next < 0 || s.compareDevices(d, next) < 0) {
				next = d
			}
		}
		i := s.firstFree[next]
		chosen[n], s.firstFree[next] = i, s.nextFree[i]
		s.freeIDs[next]--
		s.gpuFree[s.gpuOf[next]]--
		s.markChosen(i)
	}
	return t.answer(req, chosen)
}

// sharedPick counts ids during the choice. Devices, GPUs and candidates are numbers. An id is free if chooseShared can still choose it.
type sharedPick struct {
	*Topology
	policy AllocationPolicy

	freeIDs, firstFree []int // by device: number of free ids, and the lowest free id
	nextFree           []int // by candidate: next free id of the device

	gpuFree, gpuTaken, gpuReplicas []int // by GPU: free ids, chosen ids, chosen replicas
	gpuAffinity                    []int // by GPU: sum of the scores with GPUs of chosen ids
}

func (t *Topology) newSharedPick(req resolvedRequest, p AllocationPolicy) *sharedPick {
	devices, gpus := len(t.idCount), len(t.gpuIDCount)
	numbers := make([]int, 2*devices+len(t.candidates)+4*gpus) // a single allocation for all counters
	alloc := func(n int) (part []int) {
		part, numbers = numbers[:n:n], numbers[n:]
		return part
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

// compareDevices is negative if the policy prefers device d to device e. A lower index decides between equals.
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
		return cmp.Or(s.repeatsGPU(d)-s.repeatsGPU(e), repeat, load, affinity)
	default:
		return cmp.Or(load, repeat, affinity)
	}
}

// repeatsGPU returns 1 if the next id of a device is the second chosen replica of the GPU.
func (s *sharedPick) repeatsGPU(d int) int {
	if !s.candidates[s.firstFree[d]].Replica {
		return 0
	}
	return min(s.gpuReplicas[s.gpuOf[d]], 1)
}

// compareLoad is negative if a has the larger share of free ids: devices may have different numbers of replicas.
func compareLoad(freeA, allA, freeB, allB int) int { return cmp.Compare(freeB*allA, freeA*allB) }

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
