package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// TestAllocation checks the path from the device list and a pod's allocation to labels in Prometheus, with a kubelet that is not backdated.
func TestAllocation(t *testing.T) {
	n := newNode(t, node.Options{})
	makeNodes(t, n)
	d := newMachine(t, n).start(t, n, "--pass-device-specs")
	d.waitUntilListening(t)
	var kubeletStart time.Time
	took := measureRegistration(t, n, func() {
		startKubelet(t, n)
		kubeletStart = time.Now()
	}, uuids(defaultGPUs)...)
	measureDurations(t, "kubelet socket → registered", time.Second, took)
	prometheus := startPrometheus(t, n)

	pod, _, gpuID := runPodWithGPU(t, n, "train")
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	if err := d.nextScrape(t).checkOwners([]string{gpuID}, owners); err != nil {
		t.Errorf("first scrape after the pod's allocation: %v", err)
	}
	checkVisibleDevices(t, n, pod, gpuID)
	checkDeviceNodes(t, n, pod, fmt.Sprintf("nvidia%d", indexOf(t, gpuID)), "nvidiactl")
	awaitWithin(t, 90*time.Second, "the other GPUs are exported as idle", func(ctx context.Context) error {
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
	checkPrometheus(t, prometheus, owners)
}

// makeNodes creates the driver's device nodes.
func makeNodes(t *testing.T, n *node.RealNode) {
	t.Helper()
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range defaultGPUs {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}

// checkDeviceNodes checks that a running container has exactly these device nodes of the driver, sorted.
func checkDeviceNodes(t *testing.T, n *node.RealNode, pod node.StaticPod, want ...string) {
	t.Helper()
	dev := fmt.Sprintf("/proc/%d/root/dev", mainPID(t, n, pod))
	got := []string{}
	for _, pattern := range []string{"nvidia*[0-9l]", "nvidia-caps/*"} {
		found, err := filepath.Glob(filepath.Join(dev, pattern))
		must(t, err)
		for _, path := range found {
			name, err := filepath.Rel(dev, path)
			must(t, err)
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("device nodes of pod %s: got %q, want %q", pod.Name, got, want)
	}
}

// checkPrometheus waits until Prometheus has the expected owners and checks that no other labels exist. Prometheus drops empty labels.
func checkPrometheus(t *testing.T, p *node.PrometheusServer, owners map[string]node.OwnerKey) {
	t.Helper()
	await(t, "Prometheus has the expected owners", func(ctx context.Context) error {
		wrong := []error{}
		for _, family := range ownerFamilies {
			samples, err := p.Query(ctx, family)
			if err != nil {
				return err
			}
			if len(samples) != defaultGPUs {
				wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want %d", family, len(samples), defaultGPUs))
			}
			for _, sample := range samples {
				for name, want := range ownerLabels(owners[string(sample.Metric["uuid"])]) {
					if got := string(sample.Metric[model.LabelName(name)]); got != want {
						wrong = append(wrong, fmt.Errorf("label %s: got %v, want %q", name, sample.Metric, want))
					}
				}
			}
		}
		return errors.Join(wrong...)
	})
	for _, never := range []string{
		`{exported_pod!=""}`, `{exported_namespace!=""}`, `{exported_container!=""}`, `{__name__=~"nvidia_gpu_.*",pod="podgauge"}`,
	} {
		if found, err := p.Query(t.Context(), never); err != nil || len(found) > 0 {
			t.Errorf("query %s: got %v, %v, want no series", never, found, err)
		}
	}
}

// TestSharedDevices checks the metrics beside another device plugin that lists replicas, such as NVIDIA's with time-slicing.
func TestSharedDevices(t *testing.T) {
	const shared = "nvidia.com/gpu.shared"
	n := startNode(t, node.Options{})
	replicas := replicaIDs(uuid(3), 2)
	servePlugin(t, n, "shared.sock", shared, deviceplugin.Healthy(replicas...)...)
	waitForResources(t, n, idsByResource{shared: replicas})
	d := newMachine(t, n).start(t, n, "--device-plugin=false")
	d.waitUntilListening(t)

	left, right := podWithResource("left", shared, 1), podWithResource("right", shared, 1)
	runPod(t, n, left)
	runPod(t, n, right)
	owners := waitForOwners(t, n, left, right)
	s := d.nextScrape(t)
	wrong := []error{
		s.wantValue(1, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(3)}), s.wantValue(0, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(4)}),
		s.checkNoOwnerExceptInfo(),
	}
	for id, owner := range owners {
		labels := ownerLabels(owner)
		labels["uuid"], labels["device_id"], labels["resource"], labels["mig_uuid"] = uuid(3), id, shared, ""
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", labels))
	}
	expect(t, errors.Join(wrong...))
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("sockets without a device plugin: got %q, want none", sockets)
	}
}
