package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	// honorLabelsJob is the scrape job that the README recommends.
	honorLabelsJob = "podgauge"
	// noHonorLabelsJob is the same job without honor_labels.
	noHonorLabelsJob = "without-honor-labels"
)

// TestAllocation checks the path from the device list and a pod's allocation to labels in Prometheus, with a kubelet that is not backdated.
func TestAllocation(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	makeNodes(ctx, t, n)
	d := newMachine(t, n).start(t, n, "--pass-device-specs")
	d.waitUntilListening(ctx, t)
	var kubeletStart time.Time
	took := measureRegistration(ctx, t, n, func() {
		startKubelet(ctx, t, n)
		kubeletStart = time.Now()
	}, uuids(defaultGPUs)...)
	measureDurations(t, "kubelet socket → registered", time.Second, took)
	prometheus := startPrometheus(ctx, t, n)

	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	s := d.nextScrape(ctx, t)
	if err := s.checkOwners([]string{gpuID}, owners); err != nil {
		t.Errorf("first scrape after the pod's allocation: %v", err)
	}
	env, err := containerEnv(ctx, n, pod, "main")
	if err != nil || env["NVIDIA_VISIBLE_DEVICES"] != gpuID {
		t.Errorf("NVIDIA_VISIBLE_DEVICES: got %q (%v), want %q", env["NVIDIA_VISIBLE_DEVICES"], err, gpuID)
	}
	checkDeviceNodes(ctx, t, n, pod, indexOf(t, gpuID))
	awaitWithin(ctx, t, 90*time.Second, "the other GPUs are exported as idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		// Before that, their owner is unknown, and no series may have a wrong owner.
		if err := s.checkNoWrongOwner(owners); err != nil {
			return node.StopRetrying(err)
		}
		return s.checkOwners(uuids(defaultGPUs), owners)
	})
	measureDurations(t, "kubelet and podgauge started → idle GPUs exported", 65*time.Second, time.Since(kubeletStart))
	checkPrometheus(ctx, t, prometheus, owners)
	checkWithoutHonorLabels(ctx, t, prometheus, gpuID, pod)
}

// makeNodes creates the driver's device nodes.
func makeNodes(ctx context.Context, t *testing.T, n *node.RealNode) {
	t.Helper()
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range defaultGPUs {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	if _, err := n.Shell(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// checkDeviceNodes checks that a running container has the device nodes of its GPU and of the driver, and no others.
func checkDeviceNodes(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, i int) {
	t.Helper()
	pid, err := n.ContainerPID(ctx, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	dev := fmt.Sprintf("/proc/%d/root/dev/", pid)
	got, err := filepath.Glob(dev + "nvidia*")
	if want := []string{fmt.Sprintf("%snvidia%d", dev, i), dev + "nvidiactl"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("device nodes of the container: got %q, %v, want %q", got, err, want)
	}
}

// startPrometheus starts a server with podgauge as its target. As with service discovery, the target's labels name podgauge's own pod.
func startPrometheus(ctx context.Context, t *testing.T, n *node.RealNode) *node.PrometheusServer {
	t.Helper()
	target := scrapeTarget{
		Job: honorLabelsJob, Address: fmt.Sprintf("127.0.0.1:%d", defaultPort), HonorLabels: true, Interval: 500 * time.Millisecond,
		Labels: map[string]string{"namespace": "podgauge", "pod": "podgauge", "container": "podgauge"},
	}
	without := target
	without.Job, without.HonorLabels = noHonorLabelsJob, false
	prometheus, err := runPrometheus(ctx, n, target, without)
	if err != nil {
		t.Fatal(err)
	}
	return prometheus
}

// checkPrometheus waits until Prometheus has the expected owners and checks that no other labels exist. Prometheus drops empty labels.
func checkPrometheus(ctx context.Context, t *testing.T, p *node.PrometheusServer, owners map[string]node.OwnerKey) {
	t.Helper()
	await(ctx, t, "Prometheus has the expected owners", func(ctx context.Context) error {
		wrong := []error{}
		for _, family := range ownerFamilies {
			samples, err := p.Query(ctx, fmt.Sprintf(`%s{job=%q}`, family, honorLabelsJob))
			if err != nil {
				return err
			}
			if len(samples) != defaultGPUs {
				wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want %d", family, len(samples), defaultGPUs))
			}
			for _, sample := range samples {
				if want := ownerLabels(owners[string(sample.Metric["uuid"])]); !hasLabels(labelsOf(sample.Metric), want) {
					wrong = append(wrong, fmt.Errorf("labels: got %v, want %v", sample.Metric, want))
				}
			}
		}
		return errors.Join(wrong...)
	})
	for _, never := range []string{
		`{job=%q,exported_pod!=""}`, `{job=%q,exported_namespace!=""}`, `{job=%q,exported_container!=""}`,
		`{job=%q,__name__=~"nvidia_gpu_.*",pod="podgauge"}`,
	} {
		if found, err := p.Query(ctx, fmt.Sprintf(never, honorLabelsJob)); err != nil || len(found) > 0 {
			t.Errorf("query %s: got %v, %v, want no series", never, found, err)
		}
	}
}

// checkWithoutHonorLabels proves that checkPrometheus can fail: without honor_labels, all GPUs have podgauge's own pod as their owner.
func checkWithoutHonorLabels(ctx context.Context, t *testing.T, p *node.PrometheusServer, gpuID string, pod node.StaticPod) {
	t.Helper()
	await(ctx, t, "all series have the label of podgauge's own pod", func(ctx context.Context) error {
		samples, err := p.Query(ctx, fmt.Sprintf(`nvidia_gpu_healthy{job=%q}`, noHonorLabelsJob))
		if err != nil || len(samples) != defaultGPUs {
			return fmt.Errorf("series: got %v, %w", samples, err)
		}
		for _, sample := range samples {
			labels, exported := labelsOf(sample.Metric), ""
			if labels["uuid"] == gpuID {
				exported = pod.FullName()
			}
			if labels["pod"] != "podgauge" || labels["exported_pod"] != exported {
				return fmt.Errorf("labels: got %v, want pod podgauge, exported_pod %q", labels, exported)
			}
		}
		return nil
	})
}

// TestSharedDevices checks the metrics beside another device plugin that lists replicas, such as NVIDIA's with time-slicing.
func TestSharedDevices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const shared = "nvidia.com/gpu.shared"
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	replicas := []string{uuid(3) + "::0", uuid(3) + "::1"}
	serveDeviceIDs(ctx, t, n, "shared.sock", shared, replicas...)
	await(ctx, t, "the replicas are allocatable", func(ctx context.Context) error {
		if ids, err := n.Allocatable(ctx, shared); err != nil || !slices.Equal(ids, replicas) {
			return fmt.Errorf("allocatable replicas: got %q, %w", ids, err)
		}
		return nil
	})
	d := newMachine(t, n).start(t, n, "--device-plugin=false")
	d.waitUntilListening(ctx, t)
	prometheus := startPrometheus(ctx, t, n)

	pods := []node.StaticPod{}
	for _, name := range []string{"left", "right"} {
		pod := node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{shared: 1}}}}
		runPod(ctx, t, n, pod)
		pods = append(pods, pod)
	}
	var owners map[string]node.OwnerKey
	await(ctx, t, "List has both pods", func(ctx context.Context) (err error) {
		if owners, err = n.Owners(ctx, shared); err != nil || len(owners) != len(pods) {
			return fmt.Errorf("owners: got %v, %w", owners, err)
		}
		return nil
	})
	s := d.nextScrape(ctx, t)
	for id, owner := range owners {
		labels := ownerLabels(owner)
		labels["uuid"], labels["device_id"], labels["resource"], labels["mig_uuid"] = uuid(3), id, shared, ""
		if err := s.wantValue(1, "nvidia_gpu_allocation_info", labels); err != nil {
			t.Error(err)
		}
	}
	for _, i := range []int{3, 4} { // a shared and an idle GPU
		for _, family := range ownerFamilies {
			found := findSamples(s.series[family], seriesLabels{"uuid": uuid(i)})
			if len(found) != 1 {
				t.Fatalf("number of series %s of GPU %d: got %d, want 1", family, i, len(found))
			}
			if err := checkOwnerLabels(found[0], node.OwnerKey{}); err != nil {
				t.Errorf("%s of GPU %d: %v", family, i, err)
			}
		}
		want := map[int]float64{3: 1, 4: 0}[i]
		if err := s.wantValue(want, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(i)}); err != nil {
			t.Error(err)
		}
	}
	checkPrometheus(ctx, t, prometheus, nil)
	await(ctx, t, "Prometheus has both owners", func(ctx context.Context) error {
		for _, pod := range pods {
			found, err := prometheus.Query(ctx, fmt.Sprintf(`nvidia_gpu_allocation_info{job=%q,pod=%q,uuid=%q}`, honorLabelsJob, pod.FullName(), uuid(3)))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("series of pod %s: got %v, %w", pod.Name, found, err)
			}
		}
		return nil
	})
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("sockets without a device plugin: got %q, want none", sockets)
	}
}
