package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// Each kind of node has a golden file: metrics that the GPUs lack are absent.

// TestGoldenH100 covers H100s: four GPUs allocated to a pod, one to another pod, the others unallocated, and errors of an NVSwitch.
func TestGoldenH100(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: sim.NewNamedMachine("h100", metric.Metrics(), fixedClock)})
	ids := w.machine.AllocatableIDs()
	for _, message := range []string{
		"20034, Fatal, Link 30 LTSSM Fault Up", "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "22003, Fatal, Link 00 MINION HALT",
		"26006, SOE HALTED",
	} {
		require.NoError(t, w.machine.ReportSwitchError(1, message))
	}
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

// TestGoldenDCGM covers dcgm-exporter's families of whole GPUs and of a MIG device, in both generations of names.
func TestGoldenDCGM(t *testing.T) {
	t.Parallel()
	for golden, c := range map[string]struct{ flag, labels string }{
		"dcgm":    {"--metrics.dcgm", `DCGM_FI_DRIVER_VERSION="580.95.05",Hostname="node-a",UUID="`},
		"dcgm_49": {"--metrics.dcgm=4.9", `DCGM_FI_SYSTEM_DRIVER_VERSION="580.95.05",UUID="`},
	} {
		t.Run(golden, func(t *testing.T) {
			t.Parallel()
			m := newMachine(sim.H100, sim.H100, sim.T4)
			m.Partition(m.GPUs()[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
			w := newTestAppWith(t, testSetup{machine: m}, c.flag, "--metrics.set=none", "--mig-strategy=mixed")
			w.waitAllocatable("nvidia.com/mig-3g.40gb", 1)
			w.waitAllocatable(gpuResource, 2)
			w.runPod(newPod("lab", "slice", "nvidia.com/mig-3g.40gb", 1))
			w.runPod(gpuPod("research", "train", 2))
			w.checkScrape(golden, `DCGM_FI_PROF_PCIE_TX_BYTES{`+c.labels+string(m.GPUs()[0])+`"`, " 0")
		})
	}
}

// countersFile has a field of each kind, fields without a reading, and wrong lines.
const countersFile = `# Format
dcgm_gpu_temp,                        gauge,   GPU temperature (in C).
DCGM_FI_DEV_POWER_VIOLATION,          counter, Throttling duration due to power constraints (in ns).
DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL, counter, "The same, in seconds."
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS ,  gauge,   "Reasons, as bits."
DCGM_FI_DEV_BAR1_FREE,                gauge,   BAR1 memory free (in MB)
DCGM_FI_DEV_FB_USED_RATIO,            gauge,   Memory used, of the memory not reserved
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL,        counter, Single-bit volatile ECC errors
DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION,  gauge,   Recovery action
DCGM_FI_DEV_NVLINK_BANDWIDTH_L17,     gauge,   NVLink 17
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_L0_TOTAL, counter, Replays of NVLink 0
DCGM_FI_PROF_SM_ACTIVE,               gauge,   SM active
DCGM_FI_DEV_NVML_INDEX,               gauge,   Index
DCGM_FI_DEV_SERIAL,                   label,   Serial number
DCGM_FI_DEV_PCIE_MAX_LINK_GEN,        label,   PCIe generation
DCGM_FI_DEV_BRAND,                    label,   Brand
DCGM_FI_DEV_NAME,                     gauge,   Model
DCGM_EXP_XID_ERRORS_COUNT,            gauge,   Xids in a window
DCGM_FI_PROF_NVDEC0_ACTIVE,           gauge,   Decoder 0
DCGM_FI_DEV_GPU_TMEP,                 gauge,   A typing mistake
DCGM_FI_DEV_GPU_TEMP,                 gage,    Another one
dcgm_gpu_temp,                        gauge,   Again
DCGM_FI_DEV_SM_CLOCK
`

// TestGoldenCounters covers the families of a counters file, and the fields and lines that are not served.
func TestGoldenCounters(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "counters.csv")
	require.NoError(t, os.WriteFile(file, []byte(countersFile), 0o600))
	m := sim.NewMachineWithModels(metric.MetricsPerLink(), fixedClock, sim.H100)
	w := newTestAppWith(t, testSetup{machine: m}, "--metrics.dcgm-counters="+file, "--metrics.set=none", "--metrics.include=podgauge_dcgm_*")
	w.waitAllocatable(gpuResource, 1)
	w.runPod(gpuPod("research", "train", 1))
	w.checkScrape("dcgm_counters", `DCGM_FI_DEV_NVLINK_BANDWIDTH_L17{`, " 0")
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
