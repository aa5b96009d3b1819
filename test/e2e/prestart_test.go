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

// TestPreStartCheck has a GPU hang before a container's start, which is refused until the GPU answers again.
func TestPreStartCheck(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--pre-start-check")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1)})
	calm := podWithResource("calm", gpuResource, 1)
	_, took := runPod(ctx, t, n, calm)
	measureDurations(t, "a container runs on a GPU that was asked before", 5*time.Second, took)
	d.scrapeUntil(ctx, t, "the check was made, and nothing refused", func(s metricsScrape) error { return errors.Join(checkProbeCount(s, 1), checkRejections(s, 0)) })
	removePod(ctx, t, n, calm)

	defer m.clear(t, "hang")
	m.setLines(t, "hang * gpu 0")
	pod := podWithResource("waits", gpuResource, 1)
	begin := time.Now()
	if _, err := n.CreatePod(pod); err != nil {
		t.Fatal(err)
	}
	refused := d.scrapeUntil(ctx, t, "the container's start is refused", func(s metricsScrape) error {
		// The kubelet tries again at once, and then after longer and longer pauses.
		if count, err := s.value("podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": "check_failed"}); err != nil || count < 1 {
			return fmt.Errorf("%v: %w", count, err)
		}
		return nil
	})
	measureDurations(t, "from a pod's manifest to the refusal of its start on a GPU that hangs", 4*time.Second, time.Since(begin))
	const duration = "podgauge_plugin_request_duration_seconds_sum"
	check := seriesLabels{"method": "PreStartContainer"}
	measureDurations(t, "the check of a GPU that hangs", 2200*time.Millisecond, time.Duration(refused.sum(duration, check)*float64(time.Second)))
	waitForStartRejected(ctx, t, n, pod, uuid(0))
	if said := d.logLines(t, "container rejected", "cannot start", uuid(0)); len(said) == 0 {
		t.Error("podgauge says nothing of it")
	}

	m.clear(t, "hang")
	measureDurations(t, "from the end of the hang to the container's start, which the kubelet tries again by itself", 25*time.Second, waitForStart(ctx, t, n, pod))
	s := d.nextScrape(ctx, t)
	if err := s.checkOwners(uuids(1), map[string]node.OwnerKey{uuid(0): mainContainer(pod)}); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
}

// waitForStartRejected until the container has been kept from starting, and the pod's status says why.
func waitForStartRejected(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, reason string) {
	t.Helper()
	await(ctx, t, "the pod's status has the reason", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if c := status.Containers; len(c) == 0 || c[0].State != "waiting" || !strings.Contains(c[0].Message, reason) {
			return fmt.Errorf("it is %+v", status)
		}
		return nil
	})
}

// waitForStart waits until the container runs, and tells how long that took.
func waitForStart(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod) time.Duration {
	t.Helper()
	return await(ctx, t, "the container runs", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil || status.Containers[0].State != "running" {
			return fmt.Errorf("it is %+v: %w", status, err)
		}
		return nil
	})
}

// checkProbeCount says where the GPU was asked another number of times.
func checkProbeCount(s metricsScrape, want float64) error {
	if got := s.sum("podgauge_plugin_request_duration_seconds_count", seriesLabels{"method": "PreStartContainer"}); got != want {
		return fmt.Errorf("PreStartContainer was answered %v times", got)
	}
	return nil
}
