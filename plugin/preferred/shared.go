package preferred

import "cmp"

// AllocationPolicy is the order of preference among replicas and MIG devices.
// An unknown policy is Distributed.
type AllocationPolicy string

const (
	// Distributed chooses from the least loaded device.
	Distributed AllocationPolicy = "distributed"
	// Packed chooses from the most loaded device.
	Packed AllocationPolicy = "packed"
	// Distinct chooses from a GPU without a chosen id, and otherwise like
	// Distributed. If Size exceeds the number of GPUs, the answer has several
	// ids of a GPU; Allocate rejects two replicas of the same GPU.
	Distinct AllocationPolicy = "distinct"
)

// chooseShared chooses id after id, each from the first device in the order of
// compareDevices.
func (t *Topology) chooseShared(must, available []int, needed int, p AllocationPolicy) []int {
	s := t.newSharedPick(must, available, p)
	var chosen []int
	for range needed {
		next := -1
		for d, free := range s.freeIDs {
			if len(free) > 0 && (next < 0 || s.compareDevices(d, next) < 0) {
				next = d
			}
		}
		chosen = append(chosen, s.freeIDs[next][0])
		s.freeIDs[next] = s.freeIDs[next][1:]
		s.gpuFree[s.gpuOf[next]]--
		s.markChosen(chosen[len(chosen)-1])
	}
	return chosen
}

// sharedPick counts ids during the choice. Devices, GPUs and candidates are
// numbers. An id is free if chooseShared can still choose it.
type sharedPick struct {
	*Topology
	policy      AllocationPolicy
	freeIDs     [][]int // by device, in ascending order
	gpuFree     []int   // by GPU: free ids
	gpuTaken    []int   // by GPU: chosen ids
	gpuReplicas []int   // by GPU: chosen replicas
	gpuAffinity []int   // by GPU: sum of the scores with GPUs of chosen ids
}

func (t *Topology) newSharedPick(must, available []int, p AllocationPolicy) *sharedPick {
	gpus := len(t.gpuIDCount)
	s := &sharedPick{
		Topology:    t,
		policy:      p,
		freeIDs:     make([][]int, len(t.idCount)),
		gpuFree:     make([]int, gpus),
		gpuTaken:    make([]int, gpus),
		gpuReplicas: make([]int, gpus),
		gpuAffinity: make([]int, gpus),
	}
	for _, i := range available {
		d := t.deviceOf[i]
		s.freeIDs[d] = append(s.freeIDs[d], i)
		s.gpuFree[t.gpuOf[d]]++
	}
	for _, i := range must {
		s.markChosen(i)
	}
	return s
}

// compareDevices is negative if the policy prefers device d to device e. A
// lower index decides between equals.
func (s *sharedPick) compareDevices(d, e int) int {
	g, h := s.gpuOf[d], s.gpuOf[e]
	load := cmp.Or(
		compareLoad(len(s.freeIDs[d]), s.idCount[d], len(s.freeIDs[e]), s.idCount[e]),
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

// repeatsGPU returns 1 if the next id of a device is the second chosen replica
// of the GPU.
func (s *sharedPick) repeatsGPU(d int) int {
	if !s.candidates[s.freeIDs[d][0]].Replica {
		return 0
	}
	return min(s.gpuReplicas[s.gpuOf[d]], 1)
}

// compareLoad is negative if a has the larger share of free ids: devices may
// have different numbers of replicas.
func compareLoad(freeA, allA, freeB, allB int) int {
	return cmp.Compare(freeB*allA, freeA*allB)
}

func (s *sharedPick) markChosen(i int) {
	g := s.gpuOf[s.deviceOf[i]]
	if s.candidates[i].Replica {
		s.gpuReplicas[g]++
	}
	s.gpuTaken[g]++
	if s.gpuTaken[g] > 1 {
		return
	}
	for h := range s.gpuAffinity {
		s.gpuAffinity[h] += s.gpuScore[h][g]
	}
}
