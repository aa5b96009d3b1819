package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestTopologyManager checks that the kubelet allocates CPUs and GPUs of a container on one NUMA node, or rejects the pod. The node
// simulates two NUMA nodes for the kubelet and podgauge.
func TestTopologyManager(t *testing.T) {
	skipWithoutNUMA(t)
	n := newNode(t, node.Options{KubeletConfig: map[string]any{
		"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
	}})
	m := newMachine(t, n, "gpus 4")
	simulateNUMA(t, n, map[int]int{0: 0, 1: 0, 2: 1, 3: 1})
	startKubelet(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(4)...)

	// CPU 0 is reserved for the system, and the only CPU on the NUMA node of GPUs 0 and 1.
	aligned := podWithGPUs("aligned", 1)
	aligned.Containers[0].Limits["cpu"], aligned.Containers[0].Limits["memory"] = 1, 64<<20
	runPod(t, n, aligned)
	if gpu := indexOf(t, waitForDevices(t, n, aligned)[0]); gpu != 2 {
		t.Errorf("GPU of a pod with a CPU of NUMA node 1: got %d, want 2", gpu)
	}
	if cpus := allowedCPUs(t, n, aligned); slices.Contains(cpus, "0") || len(cpus) != 1 {
		t.Errorf("CPUs of the pod: got %q, want one other than 0", cpus)
	}
	unaligned := podWithGPUs("unaligned", 3)
	runRejectedPod(t, n, unaligned, "TopologyAffinityError", "Topology locality")
	pair := podWithGPUs("pair", 2)
	runPod(t, n, pair)
	if ids := waitForDevices(t, n, pair); !slices.Equal(ids, uuids(2)) {
		t.Errorf("GPUs of a pod with two GPUs: got %q, want %q of one NUMA node", ids, uuids(2))
	}
	removePod(t, n, pair)
	// Three GPUs are unallocated, as many as the pod requests.
	runRejectedPod(t, n, unaligned, "TopologyAffinityError", "Topology locality")

	s := d.nextScrape(t)
	wrong := []error{s.checkNoWrongOwner(map[string]node.OwnerKey{uuid(2): mainContainer(aligned)}), checkRejections(s, 0)}
	for i := range 4 {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_info", seriesLabels{"uuid": uuid(i), "numa_node": fmt.Sprint(i / 2)}))
	}
	expect(t, errors.Join(wrong...))
}

// simulateNUMA simulates two NUMA nodes, the first with CPU 0 and the second with the other CPUs, and assigns GPUs to NUMA nodes.
func simulateNUMA(t *testing.T, n *node.RealNode, numaNodes map[int]int) {
	t.Helper()
	script := `
mount -t tmpfs tmpfs /sys/devices/system/node
for id in 0 1; do
	mkdir -p /sys/devices/system/node/node$id/hugepages
	echo "Node $id MemTotal: 4194304 kB" >/sys/devices/system/node/node$id/meminfo
done
echo 10 20 >/sys/devices/system/node/node0/distance
echo 20 10 >/sys/devices/system/node/node1/distance
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
	if [ "${cpu##*/}" = cpu0 ]; then id=0; else id=1; fi
	ln -s "$cpu" /sys/devices/system/node/node$id/
done
mount -t tmpfs tmpfs /sys/bus/pci/devices
`
	for gpu, id := range numaNodes {
		pci := fmt.Sprintf("0000:%02x:00.0", 0x10+gpu) // the stand-in library's PCI address
		script += fmt.Sprintf("mkdir /sys/bus/pci/devices/%s\necho %d >/sys/bus/pci/devices/%s/numa_node\n", pci, id, pci)
	}
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}
