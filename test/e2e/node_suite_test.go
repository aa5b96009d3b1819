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

// TestNode shows that the node is a node, without podgauge: what fails here is the tests' fault.
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
		t.Fatalf("the pod does not run: %+v", status)
	}
	held := waitForOwnedDevice(ctx, t, n, node.OwnerKey{Namespace: "default", Pod: pod.FullName(), Container: "main"})
	env, err := containerEnv(ctx, n, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	if env["NVIDIA_VISIBLE_DEVICES"] != held {
		t.Errorf("the container sees %q, and holds %q", env["NVIDIA_VISIBLE_DEVICES"], held)
	}

	err = node.Until(ctx, "the pod's status names its device", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		want := []node.DeviceHealth{{Resource: gpuResource, ID: held, Health: "Healthy"}}
		if got := status.Containers[0].Devices; !slices.Equal(got, want) {
			return fmt.Errorf("%v, not %v", got, want)
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
		if again := waitForOwnedDevice(ctx, t, n, node.OwnerKey{Namespace: "default", Pod: pod.FullName(), Container: "main"}); again != held {
			t.Errorf("after %s the pod holds %s, before it %s", signal, again, held)
		}
	}
	// A kubelet that has just been started does not say at once how a pod's containers are.
	await(ctx, t, "the container has outlived the kubelets", func(ctx context.Context) error { return checkSameContainer(ctx, n, pod, status) })

	if out, err := n.Shell(ctx, "mknod /dev/nvidia0 c 195 0 && ls /dev/nvidia*"); err != nil || out != "/dev/nvidia0\n" {
		t.Errorf("the node's device nodes are %q: %v", out, err)
	}

	if err := n.RemovePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if listed, err := n.ListPodResources(ctx); err != nil || len(listed) > 0 {
		t.Errorf("the kubelet still lists %v, %v", listed, err)
	}
	if _, err := n.Pod(ctx, pod); !errors.Is(err, node.ErrNoPod) {
		t.Errorf("the kubelet still shows a pod that was removed: %v", err)
	}
}

// TestPodsEnd shows the ends that a pod can take, each as the kubelet tells it.
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
		t.Errorf("the container printed %q (%v), without %q", out, err, want)
	}

	// Its device is free again, and goes to the first of two pods: the second has to be told no.
	holds := node.StaticPod{Name: "holds", HostNetwork: true, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{gpuResource: 1}}}}
	if _, err := n.RunPod(ctx, holds); err != nil {
		t.Fatal(err)
	}
	late := node.StaticPod{Name: "late", Containers: holds.Containers}
	status, err := n.RunPod(ctx, late)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" || status.Reason != "UnexpectedAdmissionError" {
		t.Errorf("two pods on one GPU: the second is %+v", status)
	}
}

// TestPrometheus lets a real server scrape itself.
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
	err = node.Until(ctx, "it has scraped itself thrice", func(ctx context.Context) error {
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
		t.Errorf("up is %v: %v", up, err)
	}
}

func startKubelet(ctx context.Context, t *testing.T, n *node.RealNode) {
	t.Helper()
	start, err := n.StartKubelet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the kubelet answered after %s", time.Since(start).Round(time.Millisecond))
}

func waitForAllocatableGPUs(ctx context.Context, t *testing.T, n *node.RealNode, gpus int) {
	t.Helper()
	err := node.Until(ctx, fmt.Sprintf("%d GPUs are allocatable", gpus), func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if err != nil || len(ids) != gpus {
			return fmt.Errorf("%v: %w", ids, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// waitForOwnedDevice returns the one device that is held, once the kubelet names its holder.
func waitForOwnedDevice(ctx context.Context, t *testing.T, n *node.RealNode, want node.OwnerKey) (id string) {
	t.Helper()
	err := node.Until(ctx, fmt.Sprintf("%+v holds a device", want), func(ctx context.Context) error {
		holders, err := n.Owners(ctx, gpuResource)
		for device, holder := range holders {
			if holder == want && len(holders) == 1 {
				id = device
				return nil
			}
		}
		return fmt.Errorf("%v: %w", holders, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
