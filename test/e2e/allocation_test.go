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
	// honorLabelsJob is the scrape job as the README has it.
	honorLabelsJob = "podgauge"
	// noHonorLabelsJob is the same without honor_labels.
	noHonorLabelsJob = "without-honor-labels"
)

// TestOffer is the whole path: GPUs, the kubelet's list, a pod, its labels, and what Prometheus makes of them. Nothing here is hurried: the
// kubelet is as young as it is.
func TestOffer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	makeNodes(ctx, t, n)
	d := newMachine(t, n).start(t, n, "--pass-device-specs")
	d.waitUntilListening(ctx, t)
	var kubelet time.Time
	took := measureRegistration(ctx, t, n, func() {
		startKubelet(ctx, t, n)
		kubelet = time.Now()
	}, uuids(defaultGPUs)...)
	measureDurations(t, "registered after the kubelet's socket", time.Second, took)
	prometheus := startPrometheus(ctx, t, n)

	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	holding := map[string]node.OwnerKey{held: mainContainer(pod)}
	s := d.nextScrape(ctx, t)
	if err := s.checkOwners([]string{held}, holding); err != nil {
		t.Errorf("the next scrape after the kubelet's List has the pod: %v", err)
	}
	env, err := containerEnv(ctx, n, pod, "main")
	if err != nil || env["NVIDIA_VISIBLE_DEVICES"] != held {
		t.Errorf("the container sees %q (%v), and holds %q", env["NVIDIA_VISIBLE_DEVICES"], err, held)
	}
	checkDeviceNodes(ctx, t, n, pod, indexOf(t, held))
	awaitWithin(ctx, t, 90*time.Second, "the other GPUs are known to be idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		// Until they are known to be, they are not said to be: nothing but the truth is shown throughout.
		if err := s.checkNoWrongOwner(holding); err != nil {
			return node.StopRetrying(err)
		}
		return s.checkOwners(uuids(defaultGPUs), holding)
	})
	measureDurations(t, "idle GPUs are shown after the start of kubelet and podgauge at once", 65*time.Second, time.Since(kubelet))
	checkPrometheus(ctx, t, prometheus, holding)
	checkWithoutHonorLabels(ctx, t, prometheus, held, pod)
}

// makeNodes gives the node the device nodes that a driver would.
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

// checkDeviceNodes looks into a running container: it has its own GPU's node and the one that all share, and no other.
func checkDeviceNodes(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, i int) {
	t.Helper()
	pid, err := n.ContainerPID(ctx, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	dev := fmt.Sprintf("/proc/%d/root/dev/", pid)
	got, err := filepath.Glob(dev + "nvidia*")
	if want := []string{fmt.Sprintf("%snvidia%d", dev, i), dev + "nvidiactl"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the container has %q, %v; want %q", got, err, want)
	}
}

// startPrometheus has the server find podgauge as service discovery would: with podgauge's own pod in the target's labels.
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

// checkPrometheus waits until Prometheus has scraped what is true, and checks that nothing else is in it. Prometheus drops empty labels.
func checkPrometheus(ctx context.Context, t *testing.T, p *node.PrometheusServer, held map[string]node.OwnerKey) {
	t.Helper()
	await(ctx, t, "Prometheus shows the truth", func(ctx context.Context) error {
		wrong := []error{}
		for _, family := range ownerFamilies {
			samples, err := p.Query(ctx, fmt.Sprintf(`%s{job=%q}`, family, honorLabelsJob))
			if err != nil {
				return err
			}
			if len(samples) != defaultGPUs {
				wrong = append(wrong, fmt.Errorf("%s: %d series", family, len(samples)))
			}
			for _, sample := range samples {
				if want := ownerLabels(held[string(sample.Metric["uuid"])]); !hasLabels(labelsOf(sample.Metric), want) {
					wrong = append(wrong, fmt.Errorf("%v, not %v", sample.Metric, want))
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
			t.Errorf("%s finds %v, %v", never, found, err)
		}
	}
}

// checkWithoutHonorLabels shows that the test could have failed: without honor_labels every GPU seems to be held by podgauge's own pod.
func checkWithoutHonorLabels(ctx context.Context, t *testing.T, p *node.PrometheusServer, held string, pod node.StaticPod) {
	t.Helper()
	await(ctx, t, "podgauge's own pod is everywhere", func(ctx context.Context) error {
		samples, err := p.Query(ctx, fmt.Sprintf(`nvidia_gpu_healthy{job=%q}`, noHonorLabelsJob))
		if err != nil || len(samples) != defaultGPUs {
			return fmt.Errorf("%v: %w", samples, err)
		}
		for _, sample := range samples {
			labels, exported := labelsOf(sample.Metric), ""
			if labels["uuid"] == held {
				exported = pod.FullName()
			}
			if labels["pod"] != "podgauge" || labels["exported_pod"] != exported {
				return fmt.Errorf("%v", labels)
			}
		}
		return nil
	})
}

// TestSharedDevices has another plugin offer replicas, as NVIDIA's does for time-slicing, and podgauge export beside it.
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
			return fmt.Errorf("%q are: %w", ids, err)
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
	var holders map[string]node.OwnerKey
	await(ctx, t, "List has both pods", func(ctx context.Context) (err error) {
		if holders, err = n.Owners(ctx, shared); err != nil || len(holders) != len(pods) {
			return fmt.Errorf("%v: %w", holders, err)
		}
		return nil
	})
	s := d.nextScrape(ctx, t)
	for id, h := range holders {
		with := ownerLabels(h)
		with["uuid"], with["device_id"], with["resource"], with["mig_uuid"] = uuid(3), id, shared, ""
		if err := s.wantValue(1, "nvidia_gpu_allocation_info", with); err != nil {
			t.Error(err)
		}
	}
	for _, i := range []int{3, 4} { // the shared one, and an idle one
		for _, family := range ownerFamilies {
			found := findSamples(s.series[family], seriesLabels{"uuid": uuid(i)})
			if len(found) != 1 {
				t.Fatalf("%s of GPU %d is there %d times", family, i, len(found))
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
	await(ctx, t, "Prometheus has both holders", func(ctx context.Context) error {
		for _, pod := range pods {
			found, err := prometheus.Query(ctx, fmt.Sprintf(`nvidia_gpu_allocation_info{job=%q,pod=%q,uuid=%q}`, honorLabelsJob, pod.FullName(), uuid(3)))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%v: %w", found, err)
			}
		}
		return nil
	})
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("without a device plugin there are %q", sockets)
	}
}
