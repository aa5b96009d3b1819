package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestPreStartCheck checks that a container's start is rejected until its GPU stops hanging, and until a leftover process of an ended
// container has released the GPU.
func TestPreStartCheck(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--pre-start-check")
	waitForAllocatable(t, n, uuids(1)...)
	const duration = "podgauge_plugin_request_duration_seconds_"
	check := seriesLabels{"method": "PreStartContainer"}
	first := podWithGPUs("first", 1)
	_, took := runPod(t, n, first)
	measureDurations(t, "--pre-start-check: pod created → running", 5*time.Second, took)
	d.scrapeUntil(t, "one check is counted", func(s metricsScrape) error {
		if count := s.sum(duration+"count", check); count != 1 {
			return fmt.Errorf("PreStartContainer calls: got %v, want 1", count)
		}
		return checkRejections(s, 0)
	})
	removePod(t, n, first)

	defer m.Clear("hang")
	waiting := startRejected(t, n, m, d, "waiting", "hang * gpu 0", uuid(0))
	s := d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error {
		return s.wantCount(1, "podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": "check_failed"})
	})
	calls := s.sum(duration+"count", check) - 1
	measureDurations(t, "--pre-start-check on a hanging GPU", 2200*time.Millisecond, time.Duration(s.sum(duration+"sum", check)/calls*float64(time.Second)))
	must(t, m.Clear("hang"))
	measureDurations(t, "end of the hang → container started by the kubelet's retry", 25*time.Second, waitForStart(t, n, waiting))
	expect(t, d.nextScrape(t).checkOwners(uuids(1), waitForOwners(t, n, waiting)))
	removePod(t, n, waiting)

	after := startRejected(t, n, m, d, "after", "gpu 0 process 4711 1073741824", uuid(0)+": in use by process 4711")
	must(t, m.Clear("gpu 0 process"))
	measureDurations(t, "end of a leftover process → container started", 25*time.Second, waitForStart(t, n, after))
}

// startRejected creates a pod with a fault of its GPU, and waits until the container's start was rejected and the pod's status contains the
// reason.
func startRejected(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, name, fault, reason string) node.StaticPod {
	t.Helper()
	must(t, m.Set(fault))
	pod := podWithGPUs(name, 1)
	_, err := n.CreatePod(pod)
	must(t, err)
	await(t, "the pod's status has the reason", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if c := status.Containers; err != nil || len(c) == 0 || c[0].State != "waiting" || !strings.Contains(c[0].Message, reason) {
			return fmt.Errorf("pod status: got %+v, want waiting for %q, %w", status, reason, err)
		}
		return nil
	})
	if lines := d.logLines(t, "container rejected", "cannot start", reason); len(lines) == 0 {
		t.Errorf("log lines about the container rejected for %q: got none", reason)
	}
	return pod
}

// waitForStart waits until the container runs, and returns the time that this took.
func waitForStart(t *testing.T, n *node.RealNode, pod node.StaticPod) time.Duration {
	t.Helper()
	return await(t, "the container runs", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil || status.Containers[0].State != "running" {
			return fmt.Errorf("pod status: got %+v, %w", status, err)
		}
		return nil
	})
}
