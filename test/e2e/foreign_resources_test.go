package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// nicResource is a resource of another vendor's plugin.
const nicResource = "nics.test/fast"

// TestForeignResources checks the metrics of another plugin's devices, exclusive CPUs and reserved memory, also after a kubelet restart
// without the other plugin.
func TestForeignResources(t *testing.T) {
	skipWithoutNUMA(t)
	n := startNode(t, node.Options{KubeletConfig: map[string]any{
		"cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
		"memoryManagerPolicy": "Static", "systemReserved": map[string]any{"memory": "100Mi"},
		"reservedMemory": []any{map[string]any{"numaNode": 0, "limits": map[string]any{"memory": "100Mi"}}},
	}})
	onNodes := deviceplugin.OnNUMANodes
	servePlugin(t, n, "nics.sock", nicResource, onNodes("eth-a", 0), onNodes("eth-b", 0, 1), deviceplugin.Healthy("eth-c")[0])
	d := newMachine(t, n, "gpus 2").start(t, n)
	waitForResources(t, n, idsByResource{gpuResource: uuids(2), nicResource: {"eth-a", "eth-b", "eth-c"}})
	d.scrapeUntil(t, "the devices are exported without allocations", func(s metricsScrape) error {
		wrong := []error{s.wantCount(0, "podgauge_resource_allocation_info", nil), s.wantCount(0, "podgauge_container_exclusive_cpus", nil)}
		for id, numa := range map[string]string{"eth-a": "0", "eth-b": "0,1", "eth-c": ""} {
			wrong = append(wrong, s.wantValue(1, "podgauge_resource_device_info", seriesLabels{"resource": nicResource, "device_id": id, "numa_node": numa}))
		}
		return errors.Join(wrong...)
	})

	pinned, unpinned := podWithResource("pinned", nicResource, 2), podWithResource("unpinned", nicResource, 1)
	const memory = 64 << 20
	pinned.Containers[0].Limits["cpu"], pinned.Containers[0].Limits["memory"] = 1, memory
	runPod(t, n, pinned)
	runPod(t, n, unpinned)
	owners := waitForOwners(t, n, pinned, unpinned)
	exclusive := strings.Join(allowedCPUs(t, n, pinned), ",")
	allocated := func(s metricsScrape) error {
		owner := ownerLabels(mainContainer(pinned))
		withCPUs := ownerLabels(mainContainer(pinned))
		withCPUs["cpus"] = exclusive
		wrong := []error{
			s.wantCount(len(owners), "podgauge_resource_allocation_info", seriesLabels{"resource": nicResource}),
			s.wantCount(1, "podgauge_container_exclusive_cpus", nil), s.wantValue(1, "podgauge_container_exclusive_cpus", owner),
			s.wantValue(1, "podgauge_container_exclusive_cpus_info", withCPUs), s.wantValue(memory, "podgauge_container_reserved_memory_bytes", owner),
		}
		for id, owner := range owners {
			with := ownerLabels(owner)
			with["resource"], with["device_id"] = nicResource, id
			wrong = append(wrong, s.wantValue(1, "podgauge_resource_allocation_info", with))
		}
		if shared := s.sum("podgauge_allocatable_cpus", nil) - 1; s.sum("podgauge_shared_cpus", nil) != shared {
			wrong = append(wrong, fmt.Errorf("shared CPUs: got %v, want %v", s.sum("podgauge_shared_cpus", nil), shared))
		}
		return errors.Join(wrong...)
	}
	begin := time.Now()
	d.scrapeUntil(t, "the allocations are exported", allocated)
	measureDurations(t, "allocations of other devices, CPUs and memory → exported", 2*time.Second, time.Since(begin))
	for _, cpu := range allowedCPUs(t, n, unpinned) { // by the kernel
		if cpu == exclusive {
			t.Errorf("exclusive CPU %s is allowed for another pod", cpu)
		}
	}
	removePod(t, n, unpinned)
	owners = waitForOwners(t, n, pinned)
	begin = time.Now()
	d.scrapeUntil(t, "the end of an allocation is exported", allocated)
	measureDurations(t, "end of an allocation → exported", 2*time.Second, time.Since(begin))

	// The other plugin does not register again, so the owners of its devices are only in the kubelet's checkpoint.
	stopKubelet(t, n, syscall.SIGTERM)
	startKubelet(t, n)
	waitForAllocatable(t, n, uuids(2)...)
	waitForOwners(t, n, pinned)
	begin = time.Now()
	d.scrapeUntil(t, "the allocations are exported after a kubelet restart", allocated)
	measureDurations(t, "kubelet restart, other plugin not registered → its allocations exported", 15*time.Second, time.Since(begin))
	d.checkNoWarnings(t)
}

// TestGooglePlugin checks the owners of devices beside Google's plugin, which has ids of its own: GPUs by minor number, GPU instances, and
// replicas of both; also after a kubelet restart.
func TestGooglePlugin(t *testing.T) {
	n := startNode(t, node.Options{})
	mig := newMIGDevices(2, "3g.40gb", "1g.10gb")
	ids := map[string]seriesLabels{
		"nvidia5":       {"uuid": uuid(0), "mig_uuid": "", "device_id": uuid(0)}, // by its minor number, not by its index
		"nvidia1/vgpu3": {"uuid": uuid(1), "mig_uuid": "", "device_id": uuid(1) + "::3"},
	}
	for i, device := range mig {
		id := fmt.Sprintf("nvidia2/gi%d", device.gi)
		advertised := device.uuid()
		if i > 0 {
			id, advertised = id+"/vgpu0", advertised+"::0"
		}
		ids[id] = seriesLabels{"uuid": uuid(2), "mig_uuid": device.uuid(), "device_id": advertised}
	}
	all := slices.Sorted(maps.Keys(ids))
	servePlugin(t, n, "nvidiaGPU-1.sock", gpuResource, deviceplugin.Healthy(all...)...)
	waitForResources(t, n, idsByResource{gpuResource: all})
	scenario := append([]string{"gpus 4", "gpu 0 minor 5"}, scenarioLines(mig)...)
	d := newMachine(t, n, scenario...).start(t, n, "--device-plugin=false")

	pods := []node.StaticPod{}
	for i := range all {
		pods = append(pods, podWithGPUs(fmt.Sprintf("pod-%d", i), 1))
		runPod(t, n, pods[i])
	}
	owners := waitForOwners(t, n, pods...)
	haveOwners := func(s metricsScrape) error {
		wrong := []error{
			s.wantCount(len(all), "nvidia_gpu_allocation_info", nil), s.wantValue(0, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(3)}),
		}
		for id, owner := range owners {
			with := ownerLabels(owner)
			maps.Copy(with, ids[id])
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", with))
			delete(with, "device_id")
			wrong = append(wrong, s.wantCount(1, "nvidia_gpu_memory_used_bytes", with))
		}
		return errors.Join(wrong...)
	}
	d.scrapeUntil(t, "the devices have owners", haveOwners)
	stopKubelet(t, n, syscall.SIGTERM)
	startKubelet(t, n)
	waitForOwners(t, n, pods...)
	d.scrapeUntil(t, "the devices have owners after a kubelet restart", haveOwners)
}

// skipWithoutNUMA skips a test of CPUs and memory of NUMA nodes in the guest, whose kernel, user-mode Linux, has neither NUMA nodes nor
// cpusets.
func skipWithoutNUMA(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/devices/system/node"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this kernel has no NUMA nodes and no cpusets")
	}
}

// checkNoWarnings checks that podgauge's log has no warnings and errors, except for the kubelet's restart.
func (d *podgaugeProcess) checkNoWarnings(t *testing.T) {
	t.Helper()
	for _, line := range append(d.logLines(t, "level=WARN"), d.logLines(t, "level=ERROR")...) {
		if !strings.Contains(line, "pod-resources API unavailable") {
			t.Errorf("podgauge logged: %s", line)
		}
	}
}
