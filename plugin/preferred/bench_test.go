package preferred_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/plugin/preferred"
)

// benchSlowest benchmarks choose for each size and reports the mean of the
// slowest size.
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

// BenchmarkWholeGPUs covers every size of every machine, with all GPUs
// available. B/op and allocs/op are sums over all sizes.
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
				top.Prefer(preferred.AllocationRequest{Available: ids, Must: ids[:c.must], Size: size},
					preferred.Distributed)
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
