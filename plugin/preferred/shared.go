package preferred

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// Policy says which replicas and slices a container should get.
type Policy uint8

const (
	// Distributed takes each next one from the least loaded device.
	Distributed Policy = iota
	// Packed takes each next one from the most loaded device that has one left.
	Packed
	// Distinct takes no two replicas of one GPU, and no two ids of one GPU, while there is
	// another choice; of those, as Distributed does. When Size is more than there are GPUs,
	// ids of one GPU do stand in an answer: Allocate rejects two replicas of one GPU.
	Distinct
)

// String is the policy's name in flags and config files.
func (p Policy) String() string {
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
func (t *Topology) Shared(r Request, p Policy) []device.OfferedID { return t.shared(t.ask(r), p) }

func (t *Topology) shared(q question, p Policy) []device.OfferedID {
	if q.wanted == len(q.free) {
		return t.filled(q, q.free)
	}
	if q.wanted == 0 {
		return t.filled(q, nil)
	}
	s := t.share(q, p)
	chosen := make([]int, q.wanted)
	for i := range chosen {
		chosen[i] = s.take(s.next())
	}
	return t.filled(q, chosen)
}

// share is an answer in the making. Devices, GPUs and candidates are numbers.
type share struct {
	*Topology
	policy Policy
	free   []int // of each device: ids that can be chosen
	first  []int // of each device: the lowest of them
	then   []int // of each candidate: the next of its device
	// Of each GPU: ids that can be chosen, ids that were, replicas that were, and its score
	// with the other GPUs of which any was.
	gpuFree, taken, replicas, score []int
}

func (t *Topology) share(q question, p Policy) *share {
	devices, gpus := len(t.ids), len(t.gpuIDs)
	numbers := make([]int, 2*devices+len(t.candidates)+4*gpus)
	part := func(n int) []int {
		var p []int
		p, numbers = numbers[:n:n], numbers[n:]
		return p
	}
	s := &share{
		Topology: t, policy: p,
		free: part(devices), first: part(devices), then: part(len(t.candidates)),
		gpuFree: part(gpus), taken: part(gpus), replicas: part(gpus), score: part(gpus),
	}
	for _, i := range slices.Backward(q.free) {
		d := t.device[i]
		s.then[i], s.first[d] = s.first[d], i
		s.free[d]++
		s.gpuFree[t.gpu[d]]++
	}
	for _, i := range q.must {
		s.join(i)
	}
	return s
}

// next is the device from which one should be taken; there is one.
func (s *share) next() int {
	next := -1
	for d, free := range s.free {
		if free > 0 && (next < 0 || s.compare(d, next) < 0) {
			next = d
		}
	}
	return next
}

// compare is negative when device d goes before device e.
func (s *share) compare(d, e int) int {
	g, h := s.gpu[d], s.gpu[e]
	load := cmp.Or(
		compareLoad(s.free[d], s.ids[d], s.free[e], s.ids[e]),
		compareLoad(s.gpuFree[g], s.gpuIDs[g], s.gpuFree[h], s.gpuIDs[h]),
	)
	repeat := cmp.Compare(s.taken[g], s.taken[h])
	near := cmp.Compare(s.score[h], s.score[g])
	switch s.policy {
	case Packed:
		return cmp.Or(-load, -repeat, near)
	case Distinct:
		return cmp.Or(compareBool(s.repeats(d), s.repeats(e)), repeat, load, near)
	default:
		return cmp.Or(load, repeat, near)
	}
}

// repeats reports whether an id of device d would be the second replica of its GPU.
func (s *share) repeats(d int) bool {
	return s.replicas[s.gpu[d]] > 0 && s.candidates[s.first[d]].Replica
}

// compareLoad is negative when a has the larger part of its ids free. Devices may
// have different numbers of replicas.
func compareLoad(freeA, allA, freeB, allB int) int { return cmp.Compare(freeB*allA, freeA*allB) }

// take returns the lowest candidate that the device has left.
func (s *share) take(d int) int {
	i := s.first[d]
	s.first[d] = s.then[i]
	s.free[d]--
	s.gpuFree[s.gpu[d]]--
	s.join(i)
	return i
}

// join counts a candidate as chosen.
func (s *share) join(i int) {
	g := s.gpu[s.device[i]]
	if s.candidates[i].Replica {
		s.replicas[g]++
	}
	if s.taken[g]++; s.taken[g] > 1 {
		return
	}
	for h := range s.score {
		s.score[h] += s.near[h*len(s.score)+g]
	}
}
