package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// replicaIDs returns the ids of a GPU's replicas.
func replicaIDs(id string, n int) []string {
	all := []string{}
	for i := range n {
		all = append(all, fmt.Sprintf("%s::%d", id, i))
	}
	return all
}

// configMapFile is a file of a ConfigMap as the kubelet mounts it: a link through ..data, which is replaced by a rename.
type configMapFile struct {
	dir     string
	version int
}

func newConfigMap(t *testing.T, n *node.RealNode, content string) *configMapFile {
	t.Helper()
	dir, err := os.MkdirTemp(n.Logs, "config-")
	must(t, err)
	c := &configMapFile{dir: dir}
	must(t, os.Symlink("..data/config.yaml", c.path()))
	c.write(t, content)
	return c
}

func (c *configMapFile) path() string { return filepath.Join(c.dir, "config.yaml") }

// write replaces the content as the kubelet does.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/atomic_writer.go
func (c *configMapFile) write(t *testing.T, content string) {
	t.Helper()
	c.version++
	version, fresh := fmt.Sprintf("..version-%d", c.version), filepath.Join(c.dir, "..data_tmp")
	must(t, os.Mkdir(filepath.Join(c.dir, version), 0o755))
	must(t, os.WriteFile(filepath.Join(c.dir, version, "config.yaml"), []byte(content), 0o644))
	must(t, os.Symlink(version, fresh))
	must(t, os.Rename(fresh, filepath.Join(c.dir, "..data")))
	must(t, os.RemoveAll(filepath.Join(c.dir, fmt.Sprintf("..version-%d", c.version-1))))
}

// timeSlicingConfig returns a config with this number of replicas of each GPU, and more lines of timeSlicing.
func timeSlicingConfig(replicas int, more ...string) string {
	text := "version: v1\nsharing:\n  timeSlicing:\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	return text + fmt.Sprintf("    resources:\n    - {name: %s, replicas: %d}\n", gpuResource, replicas)
}

// TestTimeSlicing checks pods that share GPUs, with each policy, and changes of the config.
func TestTimeSlicing(t *testing.T) {
	n := startNode(t, node.Options{})
	t.Run("replicas", func(t *testing.T) { replicasOfOneGPU(t, n) })
	t.Run("distinct", func(t *testing.T) { distinctPolicy(t, n) })
	t.Run("changes", func(t *testing.T) { configChanges(t, n) })
}

// replicasOfOneGPU checks four pods that share a GPU, and the rejection of pods that request too many replicas.
func replicasOfOneGPU(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, timeSlicingConfig(4, "failRequestsGreaterThanOne: true"))
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	waitForAllocatable(t, n, replicaIDs(uuid(0), 4)...)
	runRejectedPod(t, n, podWithGPUs("greedy", 2), "UnexpectedAdmissionError", "is shared: a container can request one such device, not 2", uuid(0)+"::")
	d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error { return checkRejection(s, "too_many") })
	expect(t, d.hasLogLine("container rejected", uuid(0)+"::", "not 2"))
	pods := runPodsWithReplicas(t, n, 4)
	expect(t, checkSharedGPU(d.nextScrape(t), waitForOwners(t, n, pods...)))
	runRejectedPod(t, n, podWithGPUs("fifth", 1), "UnexpectedAdmissionError", "Requested: 1, Available: 0")
	for _, pod := range pods {
		removePod(t, n, pod)
	}
	d.scrapeUntil(t, "the GPU is idle", func(s metricsScrape) error { return checkSharedGPU(s, nil) })
	d.stop(t)
	waitForAllocatable(t, n)
}

// checkRejection returns an error unless one rejection is counted, with this reason.
func checkRejection(s metricsScrape, reason string) error {
	return errors.Join(checkRejections(s, 1), s.wantValue(1, "podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": reason}))
}

// checkRejections returns an error unless this number of rejections is counted.
func checkRejections(s metricsScrape, want float64) error {
	if got := s.sum("podgauge_plugin_rejections_total", nil); got != want {
		return fmt.Errorf("rejections: got %v, want %v", got, want)
	}
	return nil
}

// runPodsWithReplicas runs pods with a replica each, which must differ.
func runPodsWithReplicas(t *testing.T, n *node.RealNode, count int) (pods []node.StaticPod) {
	t.Helper()
	for i := range count {
		pod := podWithGPUs(fmt.Sprintf("replica-%d", i), 1)
		runPod(t, n, pod)
		gpu, _, _ := strings.Cut(waitForDevices(t, n, pod)[0], "::")
		checkVisibleDevices(t, n, pod, gpu)
		pods = append(pods, pod)
	}
	if owners := waitForOwners(t, n, pods...); len(owners) != count {
		t.Errorf("owners of replicas: got %v, want %d", owners, count)
	}
	return pods
}

// checkSharedGPU returns an error unless a scrape has these owners of replicas of GPU 0, and the GPU's own series have no owner.
func checkSharedGPU(s metricsScrape, owners map[string]node.OwnerKey) error {
	gpu := seriesLabels{"uuid": uuid(0)}
	wrong := []error{
		s.checkNoOwnerExceptInfo(), s.wantValue(float64(min(1, len(owners))), "nvidia_gpu_allocated", gpu),
		s.wantCount(len(owners), "nvidia_gpu_allocation_info", nil),
	}
	for _, family := range ownerFamilies {
		wrong = append(wrong, s.wantCount(1, family, gpu))
	}
	for replica, owner := range owners {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", allocationLabels(replica, owner)))
	}
	return errors.Join(wrong...)
}

// allocationLabels returns the labels of the allocation of a GPU or replica.
func allocationLabels(id string, owner node.OwnerKey) seriesLabels {
	labels := ownerLabels(owner)
	labels["uuid"], _, _ = strings.Cut(id, "::")
	labels["device_id"], labels["resource"], labels["mig_uuid"] = id, gpuResource, ""
	return labels
}

// distinctPolicy checks --shared-devices-allocation-policy=distinct: a request for two replicas is rejected with one GPU, and gets
// replicas of two GPUs after a second GPU was added.
func distinctPolicy(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, timeSlicingConfig(3))
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--config-file="+config.path(), "--shared-devices-allocation-policy=distinct")
	waitForAllocatable(t, n, replicaIDs(uuid(0), 3)...)
	pair := podWithGPUs("pair", 2)
	runRejectedPod(t, n, pair, "UnexpectedAdmissionError", "is of the same GPU as", uuid(0)+"::")
	d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error { return checkRejection(s, "same_gpu") })
	must(t, m.Set("gpus 2"))
	took := waitForAllocatable(t, n, slices.Concat(replicaIDs(uuid(0), 3), replicaIDs(uuid(1), 3))...)
	measureDurations(t, "new GPU → allocatable", 15*time.Second, took)
	runPod(t, n, pair)
	checkVisibleDevices(t, n, pair, strings.Join(uuids(2), ","))
	removePod(t, n, pair)
	d.stop(t)
	waitForAllocatable(t, n)
}

// configChanges configures replicas of an allocated GPU, and then one GPU without replicas. podgauge is not restarted.
func configChanges(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 2").start(t, n, "--config-file="+config.path())
	waitForAllocatable(t, n, uuids(2)...)
	old, before, gpuID := runPodWithGPU(t, n, "old")
	check := func(s metricsScrape) error {
		return s.checkOwners(uuids(2), map[string]node.OwnerKey{gpuID: mainContainer(old)})
	}
	d.scrapeUntil(t, "the owner is exported", check)
	registered := d.waitForRegistrations(t, 1)
	scrapes := watchScrapes(t, d, 200*time.Millisecond, check)

	begin := time.Now()
	config.write(t, timeSlicingConfig(2))
	// The device list keeps the allocated GPU with its health: the kubelet reports an unlisted device as healthy.
	replicas := slices.Concat(replicaIDs(uuid(0), 2), replicaIDs(uuid(1), 2))
	waitForAllocatable(t, n, slices.Sorted(slices.Values(append([]string{gpuID}, replicas...)))...)
	measureDurations(t, "new replicas while a pod has the GPU → allocatable", 3*time.Second, time.Since(begin))
	scrapes.stop(t)
	if now := d.waitForRegistrations(t, 1); now != registered {
		t.Errorf("registrations: got %v, want %v", now, registered)
	}
	pods := runPodsWithReplicas(t, n, 4)
	owners := waitForOwners(t, n, append(pods, old)...)
	s := d.nextScrape(t)
	for id, owner := range owners {
		expect(t, s.wantValue(1, "nvidia_gpu_allocation_info", allocationLabels(id, owner)))
	}
	expect(t, checkSameContainer(t.Context(), n, old, before))

	// The kubelet still has the old device list. A pod created now may be rejected, but must not get the whole GPU.
	removePod(t, n, old)
	late := podWithGPUs("late", 1)
	if status := runPodToAnyEnd(t, n, late); status.Phase != "Failed" {
		t.Errorf("devices of a pod beside four pods with all replicas: got %q, want none", waitForDevices(t, n, late))
	}
	must(t, n.DeletePod(late))
	waitForAllocatable(t, n, replicas...)

	// Allocated replicas stay on the device list. The whole GPU is allocatable only after the end of its replicas' allocations.
	removePod(t, n, pods[0])
	owners = waitForOwners(t, n, pods[1:]...)
	waitForAllocatable(t, n, replicas...)
	config.write(t, "version: v1\npodgauge:\n  select:\n    include: [1]\n")
	must(t, d.Signal(syscall.SIGHUP))
	took := waitForAllocatable(t, n, slices.Sorted(maps.Keys(owners))...)
	measureDurations(t, "SIGHUP → new config at the kubelet", 500*time.Millisecond, took)
	left := []string{uuid(1)}
	for _, pod := range pods[1:] {
		if id := waitForDevices(t, n, pod)[0]; strings.HasPrefix(id, uuid(1)) {
			removePod(t, n, pod)
		} else {
			left = append(left, id)
		}
	}
	waitForAllocatable(t, n, slices.Sorted(slices.Values(left))...)
	checkKubeletNotRestarted(t, n)
}
