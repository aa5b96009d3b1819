package app_test

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
)

// Each kind of node has a golden file: metrics that the GPUs lack are absent.

// TestGoldenH100 covers H100s: four GPUs allocated to a pod, one to another pod, the others unallocated.
func TestGoldenH100(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: sim.NewNamedMachine("h100", metric.Metrics(), fixedClock)})
	ids := w.machine.AllocatableIDs()
	w.waitAllocatable(gpuResource, len(w.machine.AllocatableIDs()))
	w.runPodOn(gpuPod("research", "train", 4), ids[:4]...)
	w.runPodOn(gpuPod("serving", "embed", 1), ids[4])
	for _, id := range ids[:4] {
		w.machine.SetUtilization(id, 0.9)
	}
	w.waitLine(`nvidia_gpu_allocated{container="",gpu="7"`, " 0")
	w.waitCounted(gpuResource, len(w.machine.AllocatableIDs()))
	w.checkScrape("h100", `nvidia_gpu_power_watts{container="main",gpu="3"`, " 637")
	w.checkPage("h100")
}

// TestGoldenA100MIG covers whole GPUs and MIG devices of all kinds, allocated and unallocated: two compute instances of one GPU instance,
// and one of seven GPU instances.
func TestGoldenA100MIG(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: sim.NewNamedMachine("a100", metric.Metrics(), fixedClock)}, "--mig-strategy=mixed")
	ids := w.machine.AllocatableIDs()
	w.waitAllocatable("nvidia.com/mig-1g.10gb", 7)
	w.waitAllocatable("nvidia.com/mig-1c.3g.40gb", 1)
	w.waitAllocatable("nvidia.com/mig-2c.3g.40gb", 1)
	w.waitAllocatable(gpuResource, 1)
	w.runPodOn(newPod("lab", "notebook", "nvidia.com/mig-1g.10gb", 1), ids[2])
	w.runPod(newPod("lab", "small", "nvidia.com/mig-1c.3g.40gb", 1))
	w.runPod(newPod("lab", "large", "nvidia.com/mig-2c.3g.40gb", 1))
	w.runPod(gpuPod("research", "train", 1))
	w.machine.SetUtilization(ids[2], 0.5)
	w.waitLine(`nvidia_gpu_allocated{container="",gpu="0"`, " 0")
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="1"`, " 1")
	w.waitCounted("nvidia.com/mig-1g.10gb", 7)
	w.waitCounted("nvidia.com/mig-1c.3g.40gb", 1)
	w.waitCounted("nvidia.com/mig-2c.3g.40gb", 1)
	w.waitCounted(gpuResource, 1)
	w.checkScrape("a100_mig", `nvidia_gpu_allocated{container="main",gpu="3"`, " 1")
	w.checkPage("a100_mig")
}

// TestGoldenB200 covers superchips of an NVL72 rack, one of them partitioned.
func TestGoldenB200(t *testing.T) {
	t.Parallel()
	m := newMachine(sim.GB200, sim.GB200)
	m.Partition(m.GPUs()[1], "3g.93gb", "3g.93gb")
	w := newTestAppWith(t, testSetup{machine: m}, "--mig-strategy=mixed")
	w.waitAllocatable("nvidia.com/mig-3g.93gb", 2)
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.runPod(newPod("serving", "both", "nvidia.com/mig-3g.93gb", 2))
	w.machine.SetUtilization(m.AllocatableIDs()[0], 1)
	w.waitLine(`nvidia_gpu_allocated{container="main",gpu="1"`, " 1")
	w.waitCounted("nvidia.com/mig-3g.93gb", 2)
	w.waitCounted(gpuResource, 1)
	w.checkScrape("b200_nvl", `nvidia_gpu_power_watts{container="main",gpu="0"`, " 1200")
}

// TestGoldenMixed covers one GPU of each kind, all allocated to one pod.
func TestGoldenMixed(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: sim.NewNamedMachine("mixed", metric.Metrics(), fixedClock)})
	w.waitAllocatable(gpuResource, len(w.machine.AllocatableIDs()))
	w.runPod(gpuPod("lab", "all", len(w.machine.AllocatableIDs())))
	w.waitCounted(gpuResource, len(w.machine.AllocatableIDs()))
	w.checkScrape("mixed", `nvidia_gpu_allocated{container="main",gpu="3"`, " 1")
}

// TestNoMIGDevices covers a MIG-enabled GPU without MIG devices.
func TestNoMIGDevices(t *testing.T) {
	t.Parallel()
	m := newMachine(sim.H100, sim.H100)
	m.Partition(m.GPUs()[1])
	w := newTestAppWith(t, testSetup{machine: m}, "--mig-strategy=mixed")
	w.waitAllocatable(gpuResource, 1)
	w.waitLine(`nvidia_gpu_unallocatable_info{`, " 1")
	if out, errs, _ := runCLI(t, "status", "--url="+w.url); !strings.Contains(out, "no_mig_devices") {
		t.Errorf("got %s%s", out, errs)
	}
	m.Partition(m.GPUs()[1], "1g.10gb")
	w.waitAllocatable("nvidia.com/mig-1g.10gb", 1)
	w.waitScrape("no reason", func(text string) bool { return !strings.Contains(text, "nvidia_gpu_unallocatable_info") })
}

// TestGoldenLinks covers single NVLinks.
func TestGoldenLinks(t *testing.T) {
	t.Parallel()
	m := sim.NewMachineWithModels(metric.MetricsPerLink(), fixedClock, sim.H100, sim.GB200)
	w := newTestAppWith(t, testSetup{machine: m}, "--metrics.nvlink-links", "--metrics.set=none", "--metrics.include=nvidia_gpu_nvlink_*")
	w.waitAllocatable(gpuResource, len(w.machine.AllocatableIDs()))
	w.runPod(gpuPod("research", "train", len(m.AllocatableIDs())))
	w.checkScrape("nvlink_links", `nvidia_gpu_nvlink_link_transmit_bytes_total{container="main",gpu="1",link="17"`, " 0")
}

// TestGoldenDCGM covers dcgm-exporter's families of whole GPUs and of a MIG device.
func TestGoldenDCGM(t *testing.T) {
	t.Parallel()
	m := newMachine(sim.H100, sim.H100, sim.T4)
	m.Partition(m.GPUs()[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
	w := newTestAppWith(t, testSetup{machine: m}, "--metrics.dcgm", "--metrics.set=none", "--metrics.include=DCGM_*", "--mig-strategy=mixed")
	w.waitAllocatable("nvidia.com/mig-3g.40gb", 1)
	w.waitAllocatable(gpuResource, 2)
	w.runPod(newPod("lab", "slice", "nvidia.com/mig-3g.40gb", 1))
	w.runPod(gpuPod("research", "train", 2))
	w.waitLine(`DCGM_FI_DEV_POWER_USAGE{DCGM_FI_DRIVER_VERSION="580.95.05",GPU_I_ID="2"`, " 70")
	w.checkScrape("dcgm", `DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_DRIVER_VERSION="580.95.05",Hostname="node-a",UUID="`+string(m.GPUs()[0])+`"`, " 0")
}

// TestGoldenStableSeries covers pod labels on allocation series only.
func TestGoldenStableSeries(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.pod-labels=allocation")
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`nvidia_gpu_allocated{container="",gpu="0"`, " 1")
	w.waitCounted(gpuResource, 1)
	w.checkScrape("pod_labels_allocation", `nvidia_gpu_allocation_info{claim="",container="main"`, " 1")
}

// TestGoldenLimit covers more series than the limit.
func TestGoldenLimit(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.series-limit=10")
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.checkScrape("series_limit", "podgauge_series ", " 17")
}

// TestGoldenReleased covers a released driver: a pod keeps its device, and the device has no readings. A repeated command
// changes nothing.
func TestGoldenReleased(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.set=none", "--metrics.include=nvidia_gpu_al*,nvidia_gpu_*health*,nvidia_gpu_power*,nvidia_gpu_energy*,podgauge_nvml_up,podgauge_*_gpus", "--expected-gpus=2")
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`nvidia_gpu_energy_joules_total{container="main",gpu="0"`, " 0")
	for range 2 {
		w.driver(dir, "release")
		if !w.machine.Closed() {
			t.Error("the driver is not closed")
		}
	}
	w.checkScrape("released", "podgauge_nvml_up", " 0")
	w.waitAllocatable(gpuResource, 0)
	for range 2 {
		w.driver(dir, "resume")
	}
	w.waitLine(`nvidia_gpu_healthy{container="main",gpu="0"`, " 1")
	w.waitAllocatable(gpuResource, 1)
}
