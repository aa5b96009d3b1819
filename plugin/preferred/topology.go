package preferred

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// Candidate is an id of the device list and the device.
type Candidate struct {
	ID        device.AdvertisedID
	Device    device.ID
	GPU       device.GPU
	Index     int  // of the GPU
	NUMANode  int  // -1 if unknown
	Replica   bool // an id of a shared device
	Allocated bool // withdrawn but still allocated: a load on the device, never chosen
}

// Topology holds candidates and the scores of GPUs. A Topology is immutable, so
// any number of goroutines may use it.
//
// The zero Topology has no candidate: all ids are unknown.
type Topology struct {
	candidates []Candidate                 // without allocated candidates; by GPU index, GPU, device, replica
	index      map[device.AdvertisedID]int // into candidates
	deviceOf   []int                       // by candidate
	gpuOf      []int                       // by device
	idCount    []int                       // ids by device
	gpuIDCount []int                       // ids by GPU
	gpuScore   [][]int                     // of two GPUs
}

// New returns the topology of candidates, each with a different id, and links
// in any order. Links of GPUs without a candidate are ignored.
func New(candidates []Candidate, links []device.Link) *Topology {
	t := &Topology{index: make(map[device.AdvertisedID]int, len(candidates))}
	devices, gpus := map[device.ID]int{}, map[device.GPU]int{}
	var numaNodes []int // by GPU
	for _, c := range slices.SortedFunc(slices.Values(candidates), compareCandidates) {
		g, found := gpus[c.GPU]
		if !found {
			g, gpus[c.GPU] = len(gpus), len(gpus)
			numaNodes, t.gpuIDCount = append(numaNodes, c.NUMANode), append(t.gpuIDCount, 0)
		}
		d, found := devices[c.Device]
		if !found {
			d, devices[c.Device] = len(devices), len(devices)
			t.gpuOf, t.idCount = append(t.gpuOf, g), append(t.idCount, 0)
		}
		t.idCount[d]++
		t.gpuIDCount[t.gpuOf[d]]++
		if !c.Allocated {
			t.index[c.ID] = len(t.candidates)
			t.candidates, t.deviceOf = append(t.candidates, c), append(t.deviceOf, d)
		}
	}
	t.gpuScore = pairScores(gpus, numaNodes, links)
	return t
}

// scoreBetween returns the score of two candidates' GPUs.
func (t *Topology) scoreBetween(i, j int) int {
	return t.gpuScore[t.gpuOf[t.deviceOf[i]]][t.gpuOf[t.deviceOf[j]]]
}

// compareCandidates is a total order: the order of New's arguments does not
// matter. Replica 2 is before replica 10.
func compareCandidates(a, b Candidate) int {
	return cmp.Or(
		cmp.Compare(a.Index, b.Index), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device),
		cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID),
	)
}

const nvLinkScore = 100 // above every path: NVLinks count more than any path

// pathScores are the scores of two GPUs without NVLinks, in the steps of
// NVIDIA's go-gpuallocator.
var pathScores = [...]int{
	device.PathUnknown:          0,
	device.PathSameBoard:        60,
	device.PathSingleSwitch:     50,
	device.PathMultipleSwitches: 40,
	device.PathHostBridge:       30,
	device.PathNUMANode:         20,
	device.PathSystem:           10,
}

// pairScores returns the symmetric matrix of scores. The diagonal is 0.
//
// Of several links of a pair, the fewer NVLinks and the farther path count: a
// link with a side that is down is down.
func pairScores(gpus map[device.GPU]int, numaNodes []int, links []device.Link) [][]int {
	pairs := map[[2]int]device.Link{}
	for _, l := range links {
		a, knownA := gpus[l.A]
		b, knownB := gpus[l.B]
		if !knownA || !knownB {
			continue
		}
		pair := [2]int{min(a, b), max(a, b)}
		if earlier, found := pairs[pair]; found {
			l.NVLinks, l.Path = min(l.NVLinks, earlier.NVLinks), max(l.Path, earlier.Path)
		}
		pairs[pair] = l
	}
	n := len(numaNodes)
	scores := make([][]int, n)
	for a := range n {
		scores[a] = make([]int, n)
		for b := range a {
			l := pairs[[2]int{b, a}]
			if l.Path == device.PathUnknown && numaNodes[a] >= 0 && numaNodes[b] >= 0 {
				l.Path = device.PathSystem
				if numaNodes[a] == numaNodes[b] {
					l.Path = device.PathNUMANode
				}
			}
			scores[a][b] = nvLinkScore*l.NVLinks + pathScores[l.Path]
			scores[b][a] = scores[a][b]
		}
	}
	return scores
}
