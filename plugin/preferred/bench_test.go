package preferred_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// benchSlowest benchmarks choose for each size and reports the mean of the slowest size.
func benchSlowest(b *testing.B, sizes []int, choose func(size int)) {
	b.ReportAllocs()
	spent := make([]time.Duration, len(sizes))
	for b.Loop() {
		for i, size := range sizes {
			begin := time.Now()
			choose(size)
			spent[i] += time.Since(begin)
		}
	}
	best := slices.Index(spent, slices.Max(spent))
	b.ReportMetric(float64(spent[best].Nanoseconds())/float64(b.N), "ns/worst")
	b.ReportMetric(float64(sizes[best]), "size")
}

// BenchmarkWholeGPUs covers every size of every machine, with all GPUs available. B/op and allocs/op are sums over all sizes.
func BenchmarkWholeGPUs(b *testing.B) {
	for _, c := range []struct {
		name string
		machine
		must int
	}{
		{"8", dgx1V(), 0},
		{"8-must-2", dgx1V(), 2},
		{"16", dgx2(), 0},
		{"16-must-3", dgx2(), 3},
		{"16-bridged", bridged(16), 0},
		{"20-bridged", bridged(20), 0},
	} {
		top, ids := c.topology(), c.ids()
		var sizes []int
		for size := c.must + 1; size <= len(ids); size++ {
			sizes = append(sizes, size)
		}
		b.Run(c.name, func(b *testing.B) {
			benchSlowest(b, sizes, func(size int) {
				top.Prefer(preferred.AllocationRequest{Available: ids, Must: ids[:c.must], Size: size}, preferred.Distributed)
			})
		})
	}
}

func BenchmarkShared(b *testing.B) {
	for _, c := range []struct {
		name string
		machine
	}{
		{"8x64-replicas", dgxH100().replicated(64)},
		{"56-mig-devices", dgxH100().partitioned(7)},
	} {
		top, ids := c.topology(), c.ids()
		for _, p := range policies {
			b.Run(fmt.Sprintf("%s/%s", c.name, p), func(b *testing.B) {
				benchSlowest(b, []int{2, 8, len(ids) / 2, len(ids) - 1}, func(size int) {
					top.Prefer(preferred.AllocationRequest{Available: ids, Must: ids[:1], Size: size}, p)
				})
			})
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for name, m := range map[string]machine{"16": dgx2(), "8x64-replicas": dgxH100().replicated(64)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.topology()
			}
		})
	}
}

// TestPreferAllocations checks that the search itself allocates nothing, for 184,756 sets as for a single one.
func TestPreferAllocations(t *testing.T) {
	small, large := bridged(8), bridged(20)
	replicas, parts := dgxH100().replicated(64), dgxH100().partitioned(7)
	for _, c := range []struct {
		name   string
		ids    []device.AdvertisedID
		choose func(preferred.AllocationRequest)
		size   int
		want   float64
	}{
		{"1 of 8", small.ids(), wholeGPUsOf(small), 1, 4},
		{"4 of 8", small.ids(), wholeGPUsOf(small), 4, 4},
		{"10 of 20", large.ids(), wholeGPUsOf(large), 10, 4},
		{"1 of 512 replicas", replicas.ids(), distributedOf(replicas), 1, 5},
		{"300 of 512 replicas", replicas.ids(), distributedOf(replicas), 300, 6},
		{"28 of 56 MIG devices", parts.ids(), distributedOf(parts), 28, 6},
	} {
		r := preferred.AllocationRequest{Available: c.ids, Size: c.size}
		if got := testing.AllocsPerRun(20, func() { c.choose(r) }); got > c.want {
			t.Errorf("%s: got %v allocations, want %v", c.name, got, c.want)
		} else {
			t.Logf("%s: %v allocations", c.name, got)
		}
	}
}

func wholeGPUsOf(m machine) func(preferred.AllocationRequest) {
	top := m.topology()
	return func(r preferred.AllocationRequest) { top.Prefer(r, preferred.Distributed) }
}

func distributedOf(m machine) func(preferred.AllocationRequest) {
	top := m.topology()
	return func(r preferred.AllocationRequest) { top.Prefer(r, preferred.Distributed) }
}
