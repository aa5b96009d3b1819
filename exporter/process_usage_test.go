package exporter

import (
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// memoryOnlyUse returns a usage of which the driver reports only the memory, as under MIG.
func memoryOnlyUse(d device.ID, pid uint32, bytes float64) device.ProcessUsage {
	return device.ProcessUsage{Device: d, PID: pid, MemoryBytes: bytes, SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1}
}

func busyUse(d device.ID, pid uint32, bytes, sm float64) device.ProcessUsage {
	return device.ProcessUsage{Device: d, PID: pid, MemoryBytes: bytes, SM: sm, MemoryController: sm / 2}
}

// TestUsageByContainer covers a time-sliced GPU: the usage of containers and the unattributed usage sum up to the device's.
func TestUsageByContainer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		a, b := device.Owner{Namespace: "n", Pod: "a", Container: "c"}, device.Owner{Namespace: "n", Pod: "b", Container: "c"}
		d.allocate("GPU-0::0=n/a/c", "GPU-0::1=n/b/c", "GPU-0::2=n/idle/c")
		d.processOwners = map[uint32]device.Owner{1: a, 2: a, 3: b, 4: {Namespace: "n", Pod: "stranger", Container: "c"}}
		d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {
			busyUse("GPU-0", 1, 100, 0.25), busyUse("GPU-0", 2, 50, 0.25), busyUse("GPU-0", 3, 30, 0.125), busyUse("GPU-0", 4, 7, 0.0625), busyUse("GPU-0", 5, 3, 0),
		}}
		d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: memoryRow, Value: 200}}
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		of := func(pod string) string { return seriesLabels("GPU-0", "0", "n", pod, "c") }
		noOwner := seriesLabels("GPU-0", "0", "", "", "")
		for _, series := range []string{
			"nvidia_gpu_memory_used_bytes" + noOwner + " 200",
			"nvidia_gpu_container_memory_used_bytes" + of("a") + " 150",
			"nvidia_gpu_container_memory_used_bytes" + of("b") + " 30",
			"nvidia_gpu_container_memory_used_bytes" + of("idle") + " 0",
			"nvidia_gpu_unattributed_memory_used_bytes" + noOwner + " 20",
			"nvidia_gpu_container_sm_utilization_ratio" + of("a") + " 0.5",
			"nvidia_gpu_container_sm_utilization_ratio" + of("b") + " 0.125",
			"nvidia_gpu_unattributed_sm_utilization_ratio" + noOwner + " 0.0625",
			"nvidia_gpu_container_memory_controller_utilization_ratio" + of("a") + " 0.25",
			"nvidia_gpu_container_processes" + of("a") + " 2",
			"nvidia_gpu_container_processes" + of("idle") + " 0",
			"nvidia_gpu_unattributed_processes" + noOwner + " 2",
		} {
			assertSeries(t, text, series)
		}
		assertAbsent(t, text, "stranger") // the device is not allocated to this pod

		d.uses["GPU-0"] = []device.ProcessUsage{memoryOnlyUse("GPU-0", 1, 100)}
		text = scrape(t, newHandler(New(d.sources(), Options{})))
		assertSeries(t, text, "nvidia_gpu_container_memory_used_bytes"+of("a")+" 100")
		assertAbsent(t, text, "nvidia_gpu_container_sm_utilization_ratio") // unknown, so absent and not 0
	})
}

func TestUnknownUsageIsAbsent(t *testing.T) {
	for name, unknown := range map[string]func(*scrapeFixture){
		"processes cannot be resolved":    func(d *scrapeFixture) { d.processesHidden = true },
		"the driver reports no processes": func(d *scrapeFixture) { d.uses = nil },
		"allocations are unknown":         func(d *scrapeFixture) { d.allocations = device.Allocations{} },
	} {
		bubble.Test(t, func(t *testing.T) {
			d := newScrapeFixture(1)
			d.allocate("GPU-0::0=n/a/c", "GPU-0::1=n/b/c")
			d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {busyUse("GPU-0", 1, 100, 0.25)}}
			unknown(d)
			text := scrape(t, newHandler(New(d.sources(), Options{})))
			for _, family := range []string{"nvidia_gpu_container_", "nvidia_gpu_unattributed_"} {
				t.Log(name, family)
				assertAbsent(t, text, family)
			}
		})
	}
}

// TestComputeInstancesShareReadings checks that a GPU instance's readings have an owner only if one container has all compute instances.
func TestComputeInstancesShareReadings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.partition()
		d.statuses[1].GI, d.statuses[2].GI = 1, 1
		d.extraSamples = []device.Sample{{Device: "MIG-0", Metric: memoryRow, Value: 1000}}
		d.processOwners = map[uint32]device.Owner{1: {Namespace: "n", Pod: "a", Container: "c"}, 2: {Namespace: "n", Pod: "b", Container: "c"}}
		d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {memoryOnlyUse("MIG-0", 1, 100), memoryOnlyUse("MIG-1", 2, 200), memoryOnlyUse("MIG-1", 3, 50)}}
		d.allocate("MIG-0=n/a/c", "MIG-1=n/b/c")
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		const used = "nvidia_gpu_memory_used_bytes"
		assertSeries(t, text, used+migSeriesLabels("MIG-0", "", "", "")+" 1000")
		assertSeries(t, text, "nvidia_gpu_healthy"+migSeriesLabels("MIG-0", "n", "a", "c")+" 1")
		assertSeries(t, text, "nvidia_gpu_container_memory_used_bytes"+migSeriesLabels("MIG-0", "n", "a", "c")+" 100")
		assertSeries(t, text, "nvidia_gpu_container_memory_used_bytes"+migSeriesLabels("MIG-1", "n", "b", "c")+" 200")
		assertSeries(t, text, "nvidia_gpu_unattributed_memory_used_bytes"+migSeriesLabels("MIG-0", "", "", "")+" 700")
		assertAbsent(t, text, "nvidia_gpu_unattributed_memory_used_bytes"+migSeriesLabels("MIG-1", "", "", "")) // included in that of MIG-0
		assertSeries(t, text, "nvidia_gpu_unattributed_processes"+migSeriesLabels("MIG-1", "", "", "")+" 1")
		assertAbsent(t, text, "nvidia_gpu_unattributed_processes"+seriesLabels("GPU-0", "0", "", "", ""))

		d.allocate("MIG-0=n/a/c", "MIG-1=n/a/c")
		assertSeries(t, scrape(t, newHandler(New(d.sources(), Options{}))), used+migSeriesLabels("MIG-0", "n", "a", "c")+" 1000")
		d.allocate("MIG-1=n/b/c") // the only owner
		assertSeries(t, scrape(t, newHandler(New(d.sources(), Options{}))), used+migSeriesLabels("MIG-0", "n", "b", "c")+" 1000")
	})
}
