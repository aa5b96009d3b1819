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
	ID       device.OfferedID
	Device   device.ID
	GPU      device.GPU
	Index    int // the GPU's
	NUMANode int // -1 when unknown
	// Replica says that the id is one of several of its device. With the policy Distinct a
	// container must not get two replicas of one GPU.
	Replica bool
	// Held says that the id is offered no more, and a container has it still: it is
	// never chosen, and a load on its device.
	Held bool
}

// Request is the kubelet's question for one container: Size ids, of which those
// in Must are settled and the others are to come from Available. Unknown ids,
// repeated ones, and sizes that cannot be met are allowed.
//
// An answer has what must be, then what was chosen, each by index and replica. It
// has Size ids, or fewer where there are no more.
type Request struct {
	Available, Must []device.OfferedID
	Size            int
	// Reject reports whether Allocate rejects an id in a request of this size. The answer for
	// one id of a device holds for all ids of it. An answer has rejected ids only if there are
	// not enough others. Nil rejects none.
	Reject func(device.OfferedID) bool
}

// Topology is the candidates and how near their GPUs are to each other. It never
// changes, so any number of goroutines may ask it. The zero Topology knows no
// device: it answers with what is available, in the order of the ids.
type Topology struct {
	candidates []Candidate              // by GPU index, GPU, device, replica
	at         map[device.OfferedID]int // into candidates; none has those that are Held
	device     []int                    // of each candidate, by number
	example    []int                    // of each device: its first candidate, -1 if all are Held
	gpu        []int                    // of each device, by number
	ids        []int                    // how many each device has
	gpuIDs     []int                    // how many each GPU has
	near       []int                    // score of GPUs g and h at g*len(gpuIDs)+h
}

// New takes candidates and links in any order; of two candidates with one id, one
// counts. Links of GPUs that are no candidates are ignored.
func New(candidates []Candidate, links []device.Link) *Topology {
	t := &Topology{at: make(map[device.OfferedID]int, len(candidates))}
	candidates = slices.Clone(candidates)
	slices.SortFunc(candidates, compareCandidates)
	devices, gpus, held := map[device.ID]int{}, map[device.GPU]int{}, map[device.OfferedID]bool{}
	var nodes []int // of each GPU
	for _, c := range candidates {
		if _, again := t.at[c.ID]; again || held[c.ID] {
			continue
		}
		g := number(gpus, c.GPU)
		if g == len(nodes) {
			nodes, t.gpuIDs = append(nodes, c.NUMANode), append(t.gpuIDs, 0)
		}
		d := number(devices, c.Device)
		if d == len(t.gpu) {
			t.gpu, t.ids, t.example = append(t.gpu, g), append(t.ids, 0), append(t.example, -1)
		}
		t.ids[d]++
		t.gpuIDs[t.gpu[d]]++
		if c.Held {
			held[c.ID] = true
			continue
		}
		t.at[c.ID] = len(t.candidates)
		if t.example[d] < 0 {
			t.example[d] = len(t.candidates)
		}
		t.candidates, t.device = append(t.candidates, c), append(t.device, d)
	}
	t.near = scores(gpus, nodes, links)
	return t
}

// number is a key's number, in the order in which keys were first asked for.
func number[K comparable](numbers map[K]int, key K) int {
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
		compareIDs(a.ID, b.ID), cmp.Compare(a.NUMANode, b.NUMANode), compareBool(a.Held, b.Held), compareBool(a.Replica, b.Replica),
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

// part reports whether a candidate stands for a part of its GPU.
func (c Candidate) part() bool { return c.Replica || string(c.Device) != string(c.GPU) }

// compareIDs puts replica 2 before replica 10.
func compareIDs(a, b device.OfferedID) int {
	deviceA, deviceB := a.Device(), b.Device()
	return cmp.Or(strings.Compare(string(deviceA), string(deviceB)), cmp.Compare(len(a), len(b)), strings.Compare(string(a), string(b)))
}

// Prefer chooses as Shared does if replicas or MIG devices can be chosen, and otherwise as
// Aligned does.
func (t *Topology) Prefer(r Request, p Policy) []device.OfferedID {
	q := t.ask(r)
	if slices.ContainsFunc(q.free, func(i int) bool { return t.candidates[i].part() }) {
		return t.shared(q, p)
	}
	return t.aligned(q)
}

// question is a Request in terms of the topology: candidates by number, in order,
// each once.
type question struct {
	must, free   []int
	rejected     []int              // available, and Allocate rejects them
	answer       []device.OfferedID // what must be, known ids first
	strangers    []device.OfferedID // available, and no candidates
	size, wanted int                // ids in all, and candidates to be chosen from free
}

// ask sorts out a request.
func (t *Topology) ask(r Request) question {
	q := question{size: min(r.Size, len(r.Available)+len(r.Must))}
	if q.size <= 0 {
		return question{}
	}
	const available, must = 1, 2
	seen := make([]uint8, len(t.candidates))
	q.strangers = t.mark(seen, r.Available, available)
	unknown := t.mark(seen, r.Must, must)
	numbers := make([]int, 0, 2*len(seen))
	q.must, q.free = numbers[:0:len(seen)], numbers[len(seen):len(seen)]
	q.answer = make([]device.OfferedID, 0, q.size)
	rejects := t.rejects(r)
	for i, s := range seen {
		switch {
		case s == available && rejects != nil && rejects[t.device[i]]:
			q.rejected = append(q.rejected, i)
		case s == available:
			q.free = append(q.free, i)
		case s == must:
			q.must = append(q.must, i)
			q.answer = append(q.answer, t.candidates[i].ID)
		}
	}
	q.strangers = slices.DeleteFunc(q.strangers, func(id device.OfferedID) bool {
		_, settled := slices.BinarySearchFunc(unknown, id, compareIDs)
		return settled
	})
	q.answer = append(q.answer, unknown...)
	q.wanted = min(max(q.size-len(q.answer), 0), len(q.free))
	return q
}

// rejects reports for each device whether Allocate rejects its ids.
func (t *Topology) rejects(r Request) []bool {
	if r.Reject == nil {
		return nil
	}
	rejects := make([]bool, len(t.example))
	for d, i := range t.example {
		rejects[d] = i >= 0 && r.Reject(t.candidates[i].ID)
	}
	return rejects
}

// mark notes which candidates are among the ids, and returns the ids that are
// none's, in order, each once.
func (t *Topology) mark(seen []uint8, ids []device.OfferedID, as uint8) (unknown []device.OfferedID) {
	for _, id := range ids {
		if i, known := t.at[id]; known {
			seen[i] = as
		} else {
			unknown = append(unknown, id)
		}
	}
	slices.SortFunc(unknown, compareIDs)
	return slices.Compact(unknown)
}

// filled is the answer with the chosen candidates, and with rejected ones and strangers where
// these are not enough.
func (t *Topology) filled(q question, chosen []int) []device.OfferedID {
	slices.Sort(chosen)
	for _, i := range append(chosen, q.rejected...) {
		q.answer = append(q.answer, t.candidates[i].ID)
	}
	q.answer = append(q.answer, q.strangers...)
	return q.answer[:min(q.size, len(q.answer))]
}

// between is the score of two devices' GPUs.
func (t *Topology) between(d, e int) int {
	return t.near[t.gpu[d]*len(t.gpuIDs)+t.gpu[e]]
}
