package e2e

import (
	"context"
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
	c := &configMapFile{dir: filepath.Join(n.Logs, "config")}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/config.yaml", c.path()); err != nil {
		t.Fatal(err)
	}
	c.write(t, content)
	return c
}

func (c *configMapFile) path() string { return filepath.Join(c.dir, "config.yaml") }

// write replaces the content as the kubelet does.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/atomic_writer.go
func (c *configMapFile) write(t *testing.T, content string) {
	t.Helper()
	c.version++
	version, fresh, data := fmt.Sprintf("..version-%d", c.version), filepath.Join(c.dir, "..data_tmp"), filepath.Join(c.dir, "..data")
	old, _ := os.Readlink(data)
	err := errors.Join(os.Mkdir(filepath.Join(c.dir, version), 0o755),
		os.WriteFile(filepath.Join(c.dir, version, "config.yaml"), []byte(content), 0o644),
		os.Symlink(version, fresh), os.Rename(fresh, data))
	if old != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.dir, old)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// timeSlicingConfig returns a config with this number of replicas of each GPU, and more lines of timeSlicing.
func timeSlicingConfig(replicas int, more ...string) string {
	text := "version: v1\nsharing:\n  timeSlicing:\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	return text + fmt.Sprintf("    resources:\n    - {name: %s, replicas: %d}\n", gpuResource, replicas)
}

// checkSharedGPU returns an error unless each pod has an allocation of a replica, and the GPU's own series have no owner.
func checkSharedGPU(s metricsScrape, id string, pods map[string]node.StaticPod) error {
	wrong := []error{s.checkNoOwnerExceptInfo()}
	for _, family := range ownerFamilies {
		if found := findSamples(s.series[family], seriesLabels{"uuid": id}); len(found) != 1 {
			wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want 1", family, len(found)))
		}
	}
	wrong = append(wrong, s.wantValue(float64(min(1, len(pods))), "nvidia_gpu_allocated", seriesLabels{"uuid": id}))
	for replica, pod := range pods {
		with := ownerLabels(mainContainer(pod))
		with["uuid"], with["device_id"], with["resource"], with["mig_uuid"] = id, replica, gpuResource, ""
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", with))
	}
	if n := len(s.series["nvidia_gpu_allocation_info"]); n != len(pods) {
		wrong = append(wrong, fmt.Errorf("number of series nvidia_gpu_allocation_info: got %d, want %d", n, len(pods)))
	}
	return errors.Join(wrong...)
}

// checkNoOwnerExceptInfo returns an error if a series has an owner, except for series of allocations and of containers.
func (s metricsScrape) checkNoOwnerExceptInfo() error {
	others := metricsScrape{series: map[string][]scrapedSample{}}
	for name, samples := range s.series {
		if name != "nvidia_gpu_allocation_info" && !strings.HasPrefix(name, containerPrefix) {
			others.series[name] = samples
		}
	}
	return others.checkNoWrongOwner(nil)
}

// TestTimeSlicing checks four pods that share a GPU, and the rejection of pods that request too many replicas.
func TestTimeSlicing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, timeSlicingConfig(4, "failRequestsGreaterThanOne: true"))
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})

	greedy := podWithResource("greedy", gpuResource, 2)
	runRejectedPod(ctx, t, n, greedy, "UnexpectedAdmissionError", "is shared: a container can request one such device, not 2", uuid(0)+"::")
	d.scrapeUntil(ctx, t, "the rejection is counted", func(s metricsScrape) error {
		rejections := seriesLabels{"resource": gpuResource, "reason": "too_many"}
		return errors.Join(s.wantValue(1, "podgauge_plugin_rejections_total", rejections), checkRejections(s, 1))
	})
	if lines := d.logLines(t, "container rejected", uuid(0)+"::", "not 2"); len(lines) != 1 {
		t.Errorf("log lines about the rejection: got %q, want one", lines)
	}

	pods := map[string]node.StaticPod{}
	for i := range 4 {
		pod := podWithResource(fmt.Sprintf("replica-%d", i), gpuResource, 1)
		runPod(ctx, t, n, pod)
		replica := waitForDevices(ctx, t, n, pod)[0]
		if pods[replica].Name != "" {
			t.Errorf("replica %s is allocated to pods %s and %s", replica, pods[replica].Name, pod.Name)
		}
		pods[replica] = pod
		checkVisibleDevices(ctx, t, n, pod, uuid(0))
	}
	if err := checkSharedGPU(d.nextScrape(ctx, t), uuid(0), pods); err != nil {
		t.Error(err)
	}
	runRejectedPod(ctx, t, n, podWithResource("fifth", gpuResource, 1), "UnexpectedAdmissionError", "Requested: 1, Available: 0")
	for replica, pod := range pods {
		removePod(ctx, t, n, pod)
		delete(pods, replica)
	}
	d.scrapeUntil(ctx, t, "the GPU is idle", func(s metricsScrape) error { return checkSharedGPU(s, uuid(0), nil) })
}

// TestDistinctPolicy checks --shared-devices-allocation-policy=distinct: a request for two replicas is rejected with one GPU, and gets
// replicas of two GPUs after a second GPU was added.
func TestDistinctPolicy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	config := newConfigMap(t, n, timeSlicingConfig(3))
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--config-file="+config.path(), "--shared-devices-allocation-policy=distinct")
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 3)})
	pair := podWithResource("pair", gpuResource, 2)
	runRejectedPod(ctx, t, n, pair, "UnexpectedAdmissionError", "is of the same GPU as", uuid(0)+"::")
	d.scrapeUntil(ctx, t, "the rejection is counted", func(s metricsScrape) error {
		rejections := seriesLabels{"resource": gpuResource, "reason": "same_gpu"}
		return errors.Join(s.wantValue(1, "podgauge_plugin_rejections_total", rejections), checkRejections(s, 1))
	})
	begin := time.Now()
	m.setLines(t, "gpus 2")
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Concat(replicaIDs(uuid(0), 3), replicaIDs(uuid(1), 3))})
	measureDurations(t, "new GPU → allocatable", 15*time.Second, time.Since(begin))
	runPod(ctx, t, n, pair)
	waitForDevices(ctx, t, n, pair)
	checkVisibleDevices(ctx, t, n, pair, strings.Join(uuids(2), ","))
}

// checkRejections returns an error unless this number of rejections is counted.
func checkRejections(s metricsScrape, want float64) error {
	if got := s.sum("podgauge_plugin_rejections_total", nil); got != want {
		return fmt.Errorf("rejections: got %v, want %v", got, want)
	}
	return nil
}

// TestConfigChanges configures replicas of an allocated GPU, without restarts.
func TestConfigChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 2").start(t, n, "--config-file="+config.path())
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	old := podWithResource("old", gpuResource, 1)
	before, _ := runPod(ctx, t, n, old)
	gpuID := waitForDevices(ctx, t, n, old)[0]
	owners := map[string]node.OwnerKey{gpuID: mainContainer(old)}
	d.scrapeUntil(ctx, t, "the owner is exported", func(s metricsScrape) error { return s.checkOwners(uuids(2), owners) })
	registered := currentRegistrations(ctx, t, d)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error { return s.checkOwners(uuids(2), owners) })

	begin := time.Now()
	config.write(t, timeSlicingConfig(4))
	// The device list keeps the allocated GPU with its health: the kubelet reports an unlisted device as healthy.
	shared := slices.Concat([]string{gpuID}, replicaIDs(uuid(0), 4), replicaIDs(uuid(1), 4))
	slices.Sort(shared)
	waitForResources(ctx, t, n, idsByResource{gpuResource: shared})
	measureDurations(t, "replicas 1 → 4 while a pod has the GPU → allocatable", 3*time.Second, time.Since(begin))
	watch.stop(t)
	if now := currentRegistrations(ctx, t, d); now != registered {
		t.Errorf("registrations: got %v, want %v", now, registered)
	}

	pods := map[string]node.StaticPod{}
	for i := range 4 {
		pod := podWithResource(fmt.Sprintf("new-%d", i), gpuResource, 1)
		runPod(ctx, t, n, pod)
		pods[waitForDevices(ctx, t, n, pod)[0]] = pod
	}
	for replica, pod := range pods {
		id, _, _ := strings.Cut(replica, "::")
		checkVisibleDevices(ctx, t, n, pod, id)
	}
	s := d.nextScrape(ctx, t)
	for replica, pod := range pods {
		id, _, _ := strings.Cut(replica, "::")
		with := ownerLabels(mainContainer(pod))
		with["uuid"], with["device_id"] = id, replica
		if err := s.wantValue(1, "nvidia_gpu_allocation_info", with); err != nil {
			t.Error(err)
		}
	}
	with := ownerLabels(mainContainer(old))
	with["uuid"], with["device_id"] = gpuID, gpuID
	if err := errors.Join(s.wantValue(1, "nvidia_gpu_allocation_info", with), checkSameContainer(ctx, n, old, before)); err != nil {
		t.Error(err)
	}
	invalidConfigRejected(ctx, t, n, d, config, idsByResource{gpuResource: shared})
	if err := checkSameContainer(ctx, n, old, before); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, old)
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Concat(replicaIDs(uuid(0), 4), replicaIDs(uuid(1), 4))})
	reloadConfig(ctx, t, n, d, config, pods)
	checkKubeletNotRestarted(t, n)
}

// invalidConfigRejected writes an invalid config: podgauge rejects it with one log line and keeps the device list.
func invalidConfigRejected(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, config *configMapFile, want idsByResource) {
	t.Helper()
	config.write(t, strings.Replace(timeSlicingConfig(2), "replicas: 2", "replicas: two", 1))
	await(ctx, t, "the config is rejected", func(context.Context) error {
		if lines := d.logLines(t, "config rejected", "replicas"); len(lines) != 1 {
			return fmt.Errorf("log lines about the config: got %q, want one", lines)
		}
		return nil
	})
	await(ctx, t, "podgauge has read the config three more times", waitSince(time.Now(), 3*time.Second))
	if lines := d.logLines(t, "config rejected"); len(lines) != 1 {
		t.Errorf("log lines about the config, later: got %q, want one", lines)
	}
	if err := errors.Join(hasResources(n, want)(ctx), d.checkProbe(ctx, "/healthz"), checkReady(ctx, d)); err != nil {
		t.Error(err)
	}
}

// reloadConfig changes the config to one GPU without replicas, and sends SIGHUP. Allocated replicas stay on the device list, and the whole
// GPU is allocatable only after the end of its replicas' allocations.
func reloadConfig(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, config *configMapFile, pods map[string]node.StaticPod) {
	t.Helper()
	config.write(t, "version: v1\npodgauge:\n  select:\n    include: [1]\n")
	begin := time.Now()
	if err := d.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	allocated := slices.Sorted(maps.Keys(pods))
	await(ctx, t, "the new config is active", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if len(ids) != len(allocated) {
			return fmt.Errorf("allocatable devices: got %q, want %d, %w", ids, len(allocated), err)
		}
		return nil
	})
	measureDurations(t, "SIGHUP → new config at the kubelet", 500*time.Millisecond, time.Since(begin))
	waitForResources(ctx, t, n, idsByResource{gpuResource: allocated})
	var left []string
	for _, replica := range allocated {
		if id, _, _ := strings.Cut(replica, "::"); id == uuid(1) {
			removePod(ctx, t, n, pods[replica])
		} else {
			left = append(left, replica)
		}
	}
	if len(left) == len(allocated) {
		t.Fatalf("none of %q is a replica of %s", allocated, uuid(1))
	}
	left = append(left, uuid(1))
	slices.Sort(left)
	waitForResources(ctx, t, n, idsByResource{gpuResource: left})
}
