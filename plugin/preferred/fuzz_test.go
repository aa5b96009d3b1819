package preferred_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

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
