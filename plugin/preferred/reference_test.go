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

// fuzzedRequest builds a machine and a request from bytes, with all faults:
// unknown ids, ids without a device or of two GPUs, links of unknown GPUs.
func fuzzedRequest(b []byte) (machine, preferred.AllocationRequest) {
	next := func() int {
		if len(b) == 0 {
			return 0
		}
		n := int(b[0])
		b = b[1:]
		return n
	}
	id := func(n int) device.AdvertisedID {
		return []device.AdvertisedID{
			device.AdvertisedID(gpu(n % 32)), device.AdvertisedID(fmt.Sprintf("GPU-%d::%d", n%4, n/8)),
			device.AdvertisedID(fmt.Sprintf("MIG-%d", n%16)), "",
		}[n/64]
	}
	var m machine
	for range next() % 40 {
		n := next()
		c := preferred.Candidate{ID: id(n), GPU: gpu(n % 8), Index: n%8 - n/250, NUMANode: n%3 - 1}
		if c.Device = c.ID.Device(); n%31 == 0 {
			c.Device = ""
		}
		if !slices.ContainsFunc(m.candidates, func(other preferred.Candidate) bool { return other.ID == c.ID }) {
			m.candidates = append(m.candidates, c)
		}
	}
	for range next() % 64 {
		n := next()
		m.links = append(m.links, device.Link{A: gpu(n % 9), B: gpu(n / 16), NVLinks: n % 7, Path: device.Path(n % 7)})
	}
	r := preferred.AllocationRequest{Size: next() - 8}
	for range next() % 8 {
		r.Must = append(r.Must, id(next()))
	}
	for len(b) > 0 {
		r.Available = append(r.Available, id(next()))
	}
	return m, r
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{8, 0, 1, 2, 3, 4, 5, 6, 7, 4, 0, 17, 34, 51, 11, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7})
	f.Add([]byte{9, 64, 72, 80, 65, 73, 81, 128, 255, 250, 2, 3, 240, 12, 2, 64, 72, 65, 73, 81, 81, 250, 200, 31})
	random := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		seed := make([]byte, 20+random.IntN(200))
		for i := range seed {
			seed[i] = byte(random.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, r := fuzzedRequest(b)
		if len(b) > 0 && b[0]%2 == 1 {
			r.Reject = func(id device.AdvertisedID) bool { return len(id)%2 == int(b[0]/2)%2 }
		}
		top := m.topology()
		random := rand.New(rand.NewPCG(uint64(len(b)), 9))
		other, shuffled := m.shuffled(random).topology(), r
		shuffled.Must, shuffled.Available = shuffle(random, r.Must), shuffle(random, r.Available)
		for _, p := range policies {
			got := top.Prefer(r, p)
			checkInvariants(t, m, r, string(p), got, other.Prefer(shuffled, p))
		}
	})
}

// checkInvariants checks the properties of every result.
func checkInvariants(t *testing.T, m machine, r preferred.AllocationRequest, name string, got, shuffled []device.AdvertisedID) {
	t.Helper()
	known := func(ids []device.AdvertisedID) []device.AdvertisedID {
		return slices.Compact(sorted(slices.DeleteFunc(slices.Clone(ids),
			func(id device.AdvertisedID) bool { return !slices.Contains(m.ids(), id) })))
	}
	all, must := known(append(slices.Clone(r.Available), r.Must...)), known(r.Must)
	if want := min(max(r.Size, 0), len(all)); len(got) != want {
		t.Errorf("%s: %+v: got %d ids %q, want %d", name, r, len(got), got, want)
	}
	if len(slices.Compact(sorted(got))) != len(got) {
		t.Errorf("%s: %+v: got a repeated id in %q", name, r, got)
	}
	for i, id := range got {
		if _, requested := slices.BinarySearch(all, id); !requested {
			t.Errorf("%s: %+v: %q was not requested", name, r, id)
		}
		if _, required := slices.BinarySearch(must, id); required != (i < len(must)) {
			t.Errorf("%s: %+v: got %q, want Must first", name, r, got)
		}
	}
	if !slices.Equal(got, shuffled) {
		t.Errorf("%s: %+v: got %q, but %q for a different order", name, r, got, shuffled)
	}
}
