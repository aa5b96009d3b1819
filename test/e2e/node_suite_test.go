package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestNode checks the test node itself, without podgauge. A failure is a fault of the test environment.
func TestNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	serveGPUs(ctx, t, n, "first.sock", 8)
	waitForAllocatableGPUs(ctx, t, n, 8)

	pod := node.StaticPod{Name: "one", Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{gpuResource: 1}}}}
	status, err := n.RunPod(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	if main, err := status.Container("main"); err != nil || main.State != "running" {
		t.Fatalf("pod status: got %+v, want a running container", status)
	}
	deviceID := waitForOwnedDevice(ctx, t, n, node.OwnerKey{Namespace: "default", Pod: pod.FullName(), Container: "main"})
	env, err := containerEnv(ctx, n, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	if env["NVIDIA_VISIBLE_DEVICES"] != deviceID {
		t.Errorf("NVIDIA_VISIBLE_DEVICES: got %q, want %q", env["NVIDIA_VISIBLE_DEVICES"], deviceID)
	}

	err = node.Until(ctx, "the pod's status contains its device", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		want := []node.DeviceHealth{{Resource: gpuResource, ID: deviceID, Health: "Healthy"}}
		if got := status.Containers[0].Devices; !slices.Equal(got, want) {
			return fmt.Errorf("devices: got %v, want %v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := n.StopKubelet(ctx, signal); err != nil {
			t.Fatal(err)
		}
		startKubelet(ctx, t, n)
		serveGPUs(ctx, t, n, fmt.Sprintf("again-%d.sock", i), 8)
		waitForAllocatableGPUs(ctx, t, n, 8)
		if got := waitForOwnedDevice(ctx, t, n, node.OwnerKey{Namespace: "default", Pod: pod.FullName(), Container: "main"}); got != deviceID {
			t.Errorf("device of the pod after %s to the kubelet: got %s, want %s", signal, got, deviceID)
		}
	}
	// The kubelet reports container states only some time after its start.
	await(ctx, t, "the container still runs after kubelet restarts", func(ctx context.Context) error { return checkSameContainer(ctx, n, pod, status) })

	if out, err := n.Shell(ctx, "mknod /dev/nvidia0 c 195 0 && ls /dev/nvidia*"); err != nil || out != "/dev/nvidia0\n" {
		t.Errorf("device nodes of the node: got %q, %v", out, err)
	}

	if err := n.RemovePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if listed, err := n.ListPodResources(ctx); err != nil || len(listed) > 0 {
		t.Errorf("List after the removal of the pod: got %v, %v, want no pods", listed, err)
	}
	if _, err := n.Pod(ctx, pod); !errors.Is(err, node.ErrNoPod) {
		t.Errorf("status of a removed pod: got %v, want %v", err, node.ErrNoPod)
	}
}

// TestPodsEnd checks the kubelet's report of failed and rejected pods, without podgauge.
func TestPodsEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	serveGPUs(ctx, t, n, "gpus.sock", 1)
	waitForAllocatableGPUs(ctx, t, n, 1)

	brief := node.StaticPod{Name: "brief", RestartPolicy: "Never", Containers: []node.StaticContainer{
		{Name: "prints", Args: []string{"env"}, Limits: map[string]int{gpuResource: 1}},
		{Name: "fails", Args: []string{"exit", "3"}, Env: map[string]string{"A": "b"}},
	}}
	if _, err := n.RunPod(ctx, brief); err != nil {
		t.Fatal(err)
	}
	err := node.Until(ctx, "both containers have ended", func(ctx context.Context) error {
		status, err := n.Pod(ctx, brief)
		if err != nil {
			return err
		}
		fails, err := status.Container("fails")
		if err != nil || status.Phase != "Failed" || fails.ExitCode != 3 {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := containerLog(n, brief, "prints")
	if want := "NVIDIA_VISIBLE_DEVICES=GPU-0\n"; err != nil || !strings.Contains(out, want) {
		t.Errorf("container output: got %q (%v), want %q in it", out, err, want)
	}

	// The device is unallocated again. The first of two pods gets the device, and the second is rejected.
	first := node.StaticPod{Name: "first", HostNetwork: true, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{gpuResource: 1}}}}
	if _, err := n.RunPod(ctx, first); err != nil {
		t.Fatal(err)
	}
	late := node.StaticPod{Name: "late", Containers: first.Containers}
	status, err := n.RunPod(ctx, late)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" || status.Reason != "UnexpectedAdmissionError" {
		t.Errorf("second pod for one GPU: got status %+v, want UnexpectedAdmissionError", status)
	}
}

// TestPrometheus checks that a real Prometheus server scrapes itself, without podgauge.
func TestPrometheus(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	begin := time.Now()
	prometheus, err := runPrometheus(ctx, n, scrapeTarget{
		Job: "itself", Address: "127.0.0.1:9090", Labels: map[string]string{"pod": "podgauge-x"}, Interval: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = node.Until(ctx, "Prometheus has scraped itself three times", func(ctx context.Context) error {
		series, err := prometheus.QueryRange(ctx, `up{job="itself"}`, begin, time.Now(), 200*time.Millisecond)
		if err != nil || len(series) != 1 || len(series[0].Values) < 3 {
			return fmt.Errorf("series %v: %w", series, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	up, err := prometheus.Query(ctx, "up")
	if err != nil || len(up) != 1 || up[0].Value != 1 || up[0].Metric["pod"] != "podgauge-x" {
		t.Errorf("query of up: got %v, %v", up, err)
	}
}

func startKubelet(ctx context.Context, t *testing.T, n *node.RealNode) {
	t.Helper()
	start, err := n.StartKubelet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kubelet ready after %s", time.Since(start).Round(time.Millisecond))
}

func waitForAllocatableGPUs(ctx context.Context, t *testing.T, n *node.RealNode, gpus int) {
	t.Helper()
	err := node.Until(ctx, fmt.Sprintf("%d GPUs are allocatable", gpus), func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if err != nil || len(ids) != gpus {
			return fmt.Errorf("allocatable GPUs: got %v, %w", ids, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// waitForOwnedDevice waits until the only allocated GPU is allocated to the wanted owner, and returns the GPU's id.
func waitForOwnedDevice(ctx context.Context, t *testing.T, n *node.RealNode, want node.OwnerKey) (id string) {
	t.Helper()
	err := node.Until(ctx, fmt.Sprintf("a device is allocated to %+v", want), func(ctx context.Context) error {
		owners, err := n.Owners(ctx, gpuResource)
		for device, owner := range owners {
			if owner == want && len(owners) == 1 {
				id = device
				return nil
			}
		}
		return fmt.Errorf("owners: got %v, %w", owners, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
