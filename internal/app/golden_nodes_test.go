package app

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Each kind of node has its golden file: what its GPUs have is shown, and what they
// have not is not there.

// TestGoldenH100 has a whole node of them, of which one pod has four GPUs, another one,
// and nobody the rest.
func TestGoldenH100(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: sim.Named("h100", nvml.Metrics(), standing)})
	ids := w.machine.IDs()
	w.untilAllocatable(resource, len(w.machine.IDs()))
	w.place(pod("research", "train", 4), ids[:4]...)
	w.place(pod("serving", "embed", 1), ids[4])
	for _, id := range ids[:4] {
		w.machine.Busy(id, 0.9)
	}
	w.until(`nvidia_gpu_allocated{container="",gpu="7"`, " 0")
	w.untilCounted(resource, len(w.machine.IDs()))
	w.shows("h100", `nvidia_gpu_power_watts{container="main",gpu="3"`, " 637")
	w.showsPage("h100")
}

// TestGoldenA100MIG has whole GPUs and slices of all kinds, held and not: pods on two
// compute instances of one GPU instance, and on one of seven GPU instances.
func TestGoldenA100MIG(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: sim.Named("a100", nvml.Metrics(), standing)}, "--mig-strategy=mixed")
	ids := w.machine.IDs()
	w.untilAllocatable("nvidia.com/mig-1g.10gb", 7)
	w.untilAllocatable("nvidia.com/mig-1c.3g.40gb", 1)
	w.untilAllocatable("nvidia.com/mig-2c.3g.40gb", 1)
	w.untilAllocatable(resource, 1)
	w.place(podOf("lab", "notebook", "nvidia.com/mig-1g.10gb", 1), ids[2])
	w.run(podOf("lab", "small", "nvidia.com/mig-1c.3g.40gb", 1))
	w.run(podOf("lab", "large", "nvidia.com/mig-2c.3g.40gb", 1))
	w.run(pod("research", "train", 1))
	w.machine.Busy(ids[2], 0.5)
	w.until(`nvidia_gpu_allocated{container="",gpu="0"`, " 0")
	w.until(`nvidia_gpu_allocated{container="main",gpu="1"`, " 1")
	w.untilCounted("nvidia.com/mig-1g.10gb", 7)
	w.untilCounted("nvidia.com/mig-1c.3g.40gb", 1)
	w.untilCounted("nvidia.com/mig-2c.3g.40gb", 1)
	w.untilCounted(resource, 1)
	w.shows("a100_mig", `nvidia_gpu_allocated{container="main",gpu="3"`, " 1")
	w.showsPage("a100_mig")
}

// TestGoldenB200 has superchips of an NVL72 rack, one of them partitioned.
func TestGoldenB200(t *testing.T) {
	t.Parallel()
	m := machineWith(sim.GB200, sim.GB200)
	m.Partition(m.GPUs()[1], "3g.93gb", "3g.93gb")
	w := newWorldOf(t, setting{machine: m}, "--mig-strategy=mixed")
	w.untilAllocatable("nvidia.com/mig-3g.93gb", 2)
	w.untilAllocatable(resource, 1)
	w.run(pod("research", "train", 1))
	w.run(podOf("serving", "both", "nvidia.com/mig-3g.93gb", 2))
	w.machine.Busy(m.IDs()[0], 1)
	w.until(`nvidia_gpu_allocated{container="main",gpu="1"`, " 1")
	w.untilCounted("nvidia.com/mig-3g.93gb", 2)
	w.untilCounted(resource, 1)
	w.shows("b200_nvl", `nvidia_gpu_power_watts{container="main",gpu="0"`, " 1200")
}

// TestGoldenMixed has one GPU of each kind, all of them one pod's.
func TestGoldenMixed(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: sim.Named("mixed", nvml.Metrics(), standing)})
	w.untilAllocatable(resource, len(w.machine.IDs()))
	w.run(kubelet.Pod{Namespace: "lab", Name: "all", Containers: []kubelet.Container{{Name: "main", Limits: map[string]int{resource: len(w.machine.IDs())}}}})
	w.untilCounted(resource, len(w.machine.IDs()))
	w.shows("mixed", `nvidia_gpu_allocated{container="main",gpu="3"`, " 1")
}

// TestNoMIGDevices has a GPU in MIG mode of which nothing can be allocated.
func TestNoMIGDevices(t *testing.T) {
	t.Parallel()
	m := machineWith(sim.H100, sim.H100)
	m.Partition(m.GPUs()[1])
	w := newWorldOf(t, setting{machine: m}, "--mig-strategy=mixed")
	w.untilAllocatable(resource, 1)
	w.until(`nvidia_gpu_unallocatable_info{`, " 1")
	var out bytes.Buffer
	if status := run(t.Context(), testPlatform{}, []string{"status", "--url=" + w.url}, nothing, &out, &out); status != exitOK || !strings.Contains(out.String(), "no_mig_devices") {
		t.Errorf("status %d:\n%s", status, out.String())
	}
	m.Partition(m.GPUs()[1], "1g.10gb")
	w.untilAllocatable("nvidia.com/mig-1g.10gb", 1)
	w.untilScrape("no reason", func(text string) bool { return !strings.Contains(text, "nvidia_gpu_unallocatable_info") })
}

// TestGoldenLinks shows single NVLinks.
func TestGoldenLinks(t *testing.T) {
	t.Parallel()
	m := sim.NewMachineOf(nvml.MetricsPerLink(), standing, sim.H100, sim.GB200)
	w := newWorldOf(t, setting{machine: m}, "--metrics.nvlink-links", "--metrics.include=nvidia_gpu_nvlink_*")
	w.untilAllocatable(resource, len(w.machine.IDs()))
	w.run(pod("research", "train", len(m.IDs())))
	w.shows("nvlink_links", `nvidia_gpu_nvlink_link_transmit_bytes_total{container="main",gpu="1",link="17"`, " 0")
}

// TestGoldenDCGM shows dcgm-exporter's families of whole GPUs and of a slice.
func TestGoldenDCGM(t *testing.T) {
	t.Parallel()
	m := machineWith(sim.H100, sim.H100, sim.T4)
	m.Partition(m.GPUs()[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
	w := newWorldOf(t, setting{machine: m}, "--metrics.dcgm", "--metrics.include=DCGM_*", "--mig-strategy=mixed")
	w.untilAllocatable("nvidia.com/mig-3g.40gb", 1)
	w.untilAllocatable(resource, 2)
	w.run(podOf("lab", "slice", "nvidia.com/mig-3g.40gb", 1))
	w.run(pod("research", "train", 2))
	w.until(`DCGM_FI_DEV_POWER_USAGE{DCGM_FI_DRIVER_VERSION="580.95.05",GPU_I_ID="2"`, " 70")
	w.shows("dcgm", `DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_DRIVER_VERSION="580.95.05",Hostname="node-a",UUID="`+string(m.GPUs()[0])+`"`, " 0")
}

// TestGoldenStableSeries has pods on the series of allocations alone.
func TestGoldenStableSeries(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: machineWith(sim.T4)}, "--metrics.pod-labels=allocation")
	w.untilAllocatable(resource, 1)
	w.run(pod("research", "train", 1))
	w.until(`nvidia_gpu_allocated{container="",gpu="0"`, " 1")
	w.untilCounted(resource, 1)
	w.shows("pod_labels_allocation", `nvidia_gpu_allocation_info{container="main"`, " 1")
}

// TestGoldenLimit has more series than are let through.
func TestGoldenLimit(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: machineWith(sim.T4)}, "--metrics.series-limit=10")
	w.untilAllocatable(resource, 1)
	w.run(pod("research", "train", 1))
	w.shows("series_limit", "podgauge_series ", " 17")
}

// TestGoldenReleased has a driver that podgauge was told to let go of: a pod keeps its device, of
// which there are no readings.
func TestGoldenReleased(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, setting{machine: machineWith(sim.T4)}, "--metrics.include=nvidia_gpu_al*,nvidia_gpu_*health*,nvidia_gpu_power*,nvidia_gpu_energy*,podgauge_nvml_up")
	w.untilAllocatable(resource, 1)
	w.run(pod("research", "train", 1))
	w.until(`nvidia_gpu_energy_joules_total{container="main",gpu="0"`, " 0")
	w.orders <- syscall.SIGUSR1
	w.shows("released", "podgauge_nvml_up", " 0")
	w.orders <- syscall.SIGUSR2
	w.until(`nvidia_gpu_healthy{container="main",gpu="0"`, " 1")
}
