package preferred_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// pairScore returns the score of a pair from the table of the ADR.
func pairScore(m machine, a, b preferred.Candidate) int {
	nvlinks, path, found := 0, device.PathUnknown, false
	for _, l := range m.links {
		if l.A == a.GPU && l.B == b.GPU || l.A == b.GPU && l.B == a.GPU {
			if !found || l.NVLinks < nvlinks {
				nvlinks = l.NVLinks
			}
			if l.Path <= device.PathSystem && l.Path > path {
				path = l.Path
			}
			found = true
		}
	}
	points := map[device.Path]int{
		device.PathSameBoard: 60, device.PathSingleSwitch: 50, device.PathMultipleSwitches: 40,
		device.PathHostBridge: 30, device.PathNUMANode: 20, device.PathSystem: 10,
	}[path]
	if path == device.PathUnknown && a.NUMANode >= 0 && b.NUMANode >= 0 {
		points = 10
		if a.NUMANode == b.NUMANode {
			points = 20
		}
	}
	return 100*nvlinks + points
}

// referenceWholeGPUs scores every set of GPUs by the three sums of the ADR, in
// the most obvious way, without unknown ids.
func referenceWholeGPUs(m machine, r preferred.AllocationRequest) []device.AdvertisedID {
	var must, available []int // candidates
	for i, c := range m.candidates {
		switch {
		case slices.Contains(r.Must, c.ID):
			must = append(must, i)
		case slices.Contains(r.Available, c.ID):
			available = append(available, i)
		}
	}
	if len(must) >= max(r.Size, 0) {
		return names(m, must[:max(r.Size, 0)])
	}
	points := make([][]int, len(m.candidates))
	for i, a := range m.candidates {
		for _, b := range m.candidates {
			points[i] = append(points[i], pairScore(m, a, b))
		}
	}
	var best []int
	var most [2]int
	for mask := range 1 << len(available) {
		if bits.OnesCount(uint(mask)) != min(r.Size-len(must), len(available)) {
			continue
		}
		set, rest := slices.Clone(must), []int{}
		for x, i := range available {
			if mask>>x&1 == 1 {
				set = append(set, i)
			} else {
				rest = append(rest, i)
			}
		}
		slices.Sort(set)
		inside, cut := 0, 0
		for x, i := range set {
			for _, j := range set[x+1:] {
				inside += points[i][j]
			}
			for _, j := range rest {
				cut += points[i][j]
			}
		}
		worth := [2]int{inside, -cut}
		if c := slices.Compare(worth[:], most[:]); best == nil || c > 0 || c == 0 && slices.Compare(set, best) < 0 {
			best, most = set, worth
		}
	}
	return names(m, best)
}

func names(m machine, candidates []int) []device.AdvertisedID {
	var ids []device.AdvertisedID
	for _, i := range candidates {
		ids = append(ids, m.candidates[i].ID)
	}
	return ids
}

func sorted(ids []device.AdvertisedID) []device.AdvertisedID {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return ids
}

func TestWholeGPUsEqualTheReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 600 {
		m := random(r, 1+r.IntN(9))
		if round%50 == 0 {
			m = random(r, 10)
		}
		top := m.topology()
		for size := range len(m.candidates) + 2 {
			req := preferred.AllocationRequest{Size: size}
			for _, c := range m.candidates {
				if r.IntN(5) > 0 {
					req.Available = append(req.Available, c.ID)
				}
				if r.IntN(8) == 0 {
					req.Must = append(req.Must, c.ID)
				}
			}
			got, want := top.Prefer(req, preferred.Distributed), referenceWholeGPUs(m, req)
			if !slices.Equal(sorted(got), sorted(want)) {
				t.Fatalf("round %d, %d GPUs, links %v\n%+v\ngot  %v\nwant %v", round, len(m.candidates), m.links, req,
					got, want)
			}
		}
	}
}

// referenceShared chooses replicas as in the ADR, and recounts everything for
// each id.
func referenceShared(m machine, r preferred.AllocationRequest, p preferred.AllocationPolicy) []device.AdvertisedID {
	var chosen []preferred.Candidate
	available := map[device.AdvertisedID]bool{}
	for _, c := range m.candidates {
		switch {
		case c.Allocated: // a load on the device
		case slices.Contains(r.Must, c.ID):
			chosen = append(chosen, c)
		case slices.Contains(r.Available, c.ID) && (r.Reject == nil || !r.Reject(c.ID)):
			available[c.ID] = true
		}
	}
	musts := len(chosen)
	for len(chosen) < r.Size && len(available) > 0 {
		var next preferred.Candidate
		var nextKey []float64
		for i, c := range m.candidates { // in order of index and replica
			key := append(referenceKey(m, available, chosen, c, p), float64(i))
			if available[c.ID] && (nextKey == nil || slices.Compare(key, nextKey) < 0) {
				next, nextKey = c, key
			}
		}
		delete(available, next.ID)
		chosen = append(chosen, next)
	}
	slices.SortFunc(chosen[musts:], func(a, b preferred.Candidate) int {
		return slices.Index(m.candidates, a) - slices.Index(m.candidates, b)
	})
	return machine{candidates: chosen[:min(len(chosen), r.Size)]}.ids()
}

func referenceKey(
	m machine, available map[device.AdvertisedID]bool, chosen []preferred.Candidate, c preferred.Candidate, p preferred.AllocationPolicy,
) []float64 {
	var onDevice, onGPU, availableOnDevice, availableOnGPU, replicas, repeats, near float64
	for _, o := range m.candidates {
		if o.GPU == c.GPU {
			onGPU++
			if available[o.ID] {
				availableOnGPU++
			}
		}
		if o.Device == c.Device {
			onDevice++
			if available[o.ID] {
				availableOnDevice++
			}
		}
	}
	counted := map[device.GPU]bool{}
	for _, o := range chosen {
		if o.GPU == c.GPU {
			repeats++
			if c.Replica && o.Replica {
				replicas = 1
			}
		} else if !counted[o.GPU] {
			counted[o.GPU] = true
			near += float64(pairScore(m, c, o))
		}
	}
	device, gpu := 1-availableOnDevice/onDevice, 1-availableOnGPU/onGPU
	switch p {
	case preferred.Packed:
		return []float64{-device, -gpu, -repeats, -near}
	case preferred.Distinct:
		return []float64{replicas, repeats, device, gpu, -near}
	default:
		return []float64{device, gpu, repeats, -near}
	}
}

var policies = []preferred.AllocationPolicy{preferred.Distributed, preferred.Packed, preferred.Distinct}

func TestSharedEqualsTheReference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 200 {
		m := random(r, 1+r.IntN(4))
		switch round % 5 {
		case 0:
			m = m.replicated(1 + r.IntN(12)) // replica 2 comes before replica 10
		case 1:
			m = m.partitioned(1 + r.IntN(4))
		case 2:
			m = m.partitioned(2).replicated(1 + r.IntN(3))
		case 3: // different numbers of replicas, and withdrawn ids of whole GPUs that are still allocated
			whole := m.candidates
			m = m.replicated(4)
			m.candidates = slices.DeleteFunc(m.candidates, func(preferred.Candidate) bool { return r.IntN(4) == 0 })
			for _, c := range whole {
				c.Allocated = true
				if r.IntN(2) == 0 {
					m.candidates = append(m.candidates, c)
				}
			}
		case 4: // MIG devices, some of them shared
			m = m.partitioned(3)
			m.candidates = slices.Concat(machine{candidates: m.candidates[:2]}.replicated(2).candidates,
				m.candidates[2:])
		}
		top := m.topology()
		for range 10 {
			var req preferred.AllocationRequest
			var rejected device.ID
			if len(m.candidates) > 0 && r.IntN(3) == 0 {
				rejected = m.candidates[r.IntN(len(m.candidates))].Device
				req.Reject = func(id device.AdvertisedID) bool { return id.Device() == rejected }
			}
			accepted := 0
			for _, c := range m.candidates {
				if r.IntN(3) > 0 {
					req.Available = append(req.Available, c.ID)
					if c.Device != rejected && !c.Allocated {
						accepted++
					}
				}
				if r.IntN(12) == 0 {
					req.Must = append(req.Must, c.ID)
				}
			}
			req.Size = min(r.IntN(len(m.candidates)+2), accepted) // the reference returns no rejected ids
			for _, p := range policies {
				got, want := top.Prefer(req, p), referenceShared(m, req, p)
				if !slices.Equal(got, want) {
					t.Fatalf("round %d, %s, %+v\n%s\ngot  %v\nwant %v", round, p, req, fmt.Sprint(m), got, want)
				}
			}
		}
	}
}
