package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestPreStartCheck checks that a container's start is rejected until its GPU stops hanging.
func TestPreStartCheck(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--pre-start-check")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1)})
	first := podWithResource("first", gpuResource, 1)
	_, took := runPod(ctx, t, n, first)
	measureDurations(t, "--pre-start-check: pod created → running", 5*time.Second, took)
	d.scrapeUntil(ctx, t, "one check is counted", func(s metricsScrape) error { return errors.Join(checkProbeCount(s, 1), checkRejections(s, 0)) })
	removePod(ctx, t, n, first)

	defer m.clear(t, "hang")
	m.setLines(t, "hang * gpu 0")
	pod := podWithResource("waiting", gpuResource, 1)
	begin := time.Now()
	if _, err := n.CreatePod(pod); err != nil {
		t.Fatal(err)
	}
	rejected := d.scrapeUntil(ctx, t, "the container's start is rejected", func(s metricsScrape) error {
		// The kubelet retries at once, and then with increasing delays.
		count, err := s.value("podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": "check_failed"})
		if err != nil || count < 1 {
			return fmt.Errorf("rejections: got %v, %w", count, err)
		}
		return nil
	})
	measureDurations(t, "--pre-start-check on a hanging GPU: pod created → start rejected", 4*time.Second, time.Since(begin))
	const duration = "podgauge_plugin_request_duration_seconds_sum"
	check := seriesLabels{"method": "PreStartContainer"}
	measureDurations(t, "--pre-start-check on a hanging GPU", 2200*time.Millisecond, time.Duration(rejected.sum(duration, check)*float64(time.Second)))
	waitForStartRejected(ctx, t, n, pod, uuid(0))
	if lines := d.logLines(t, "container rejected", "cannot start", uuid(0)); len(lines) == 0 {
		t.Error("log lines about the rejected container: got none")
	}

	m.clear(t, "hang")
	measureDurations(t, "end of the hang → container started by the kubelet's retry", 25*time.Second, waitForStart(ctx, t, n, pod))
	s := d.nextScrape(ctx, t)
	if err := s.checkOwners(uuids(1), map[string]node.OwnerKey{uuid(0): mainContainer(pod)}); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
}

// waitForStartRejected waits until the container's start was rejected and the pod's status contains the reason.
func waitForStartRejected(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, reason string) {
	t.Helper()
	await(ctx, t, "the pod's status has the reason", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if c := status.Containers; len(c) == 0 || c[0].State != "waiting" || !strings.Contains(c[0].Message, reason) {
			return fmt.Errorf("pod status: got %+v, want waiting for %q", status, reason)
		}
		return nil
	})
}

// waitForStart waits until the container runs, and returns the time that this took.
func waitForStart(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod) time.Duration {
	t.Helper()
	return await(ctx, t, "the container runs", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil || status.Containers[0].State != "running" {
			return fmt.Errorf("pod status: got %+v, %w", status, err)
		}
		return nil
	})
}

// checkProbeCount returns an error unless this number of PreStartContainer calls is counted.
func checkProbeCount(s metricsScrape, want float64) error {
	if got := s.sum("podgauge_plugin_request_duration_seconds_count", seriesLabels{"method": "PreStartContainer"}); got != want {
		return fmt.Errorf("PreStartContainer calls: got %v, want %v", got, want)
	}
	return nil
}
