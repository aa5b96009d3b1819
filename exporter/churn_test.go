package exporter

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// nvlinkFixture returns 8 GPUs with the counters of --metrics.nvlink-links on an H100, and other counters.
func nvlinkFixture() *scrapeFixture {
	d := newScrapeFixture(8)
	for link := range 18 {
		for _, name := range []string{"nvidia_gpu_nvlink_link_transmit_bytes_total", "nvidia_gpu_nvlink_link_receive_bytes_total"} {
			d.metrics = append(d.metrics, device.Metric{Name: name, Help: "Data.", Kind: device.OwnerCounter, Labels: []device.Label{{Name: "link", Value: strconv.Itoa(link)}}})
		}
	}
	for reason := range 13 {
		d.metrics = append(d.metrics, device.Metric{Name: "nvidia_gpu_throttle_seconds_total", Help: "Time.", Kind: device.OwnerCounter, Labels: []device.Label{{Name: "reason", Value: strconv.Itoa(reason)}}})
	}
	for _, s := range d.statuses {
		for row := len(testMetrics); row < len(d.metrics); row++ {
			d.extraSamples = append(d.extraSamples, device.Sample{Device: s.ID, Metric: row, Value: float64(row)})
		}
	}
	return d
}

// BenchmarkScrapeAfterAnHourOfPods measures a collection and the memory in use after 3,600 pods.
func BenchmarkScrapeAfterAnHourOfPods(b *testing.B) {
	for _, pods := range []int{8, 3600} {
		b.Run(fmt.Sprint(pods, " pods"), func(b *testing.B) {
			d := nvlinkFixture()
			e := New(d.sources(), Options{})
			collect := func() {
				<-e.collection(d.started, e.isReusable).done
			}
			for n := range pods {
				d.allocate(fmt.Sprintf("GPU-%d=team/train-%d-of-a-job/main", n%8, n))
				collect()
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			for b.Loop() {
				d.allocate("GPU-0=team/last/main")
				collect()
			}
			b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB")
			e.Drain()
		})
	}
}
