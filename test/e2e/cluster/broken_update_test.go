//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// brokenUpdate updates to a driver folder without a library. The update stops with the new pod, which is not ready and names the
// reason, a kubelet outage ends no pod, and a rollback repairs the node.
func brokenUpdate(ctx context.Context, t *testing.T, s *clusterFixture) {
	trainers, err := s.pods(ctx, teamNamespace, "app=trainer")
	if err != nil {
		t.Fatal(err)
	}
	empty := s.Node.Path("driver-without-library")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	s.helm(ctx, t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--reuse-values", "--set=nvidiaDriverRoot="+empty)
	await(ctx, t, "the new pod names the reason", func(ctx context.Context) error {
		url, err := s.podgaugeURL(ctx)
		if err != nil {
			return err
		}
		body, err := get(ctx, url+"/readyz")
		if err == nil || !strings.Contains(body, "driver: ") || !strings.Contains(body, fmt.Sprintf("devices: %d known GPUs missing", gpuCount)) {
			return fmt.Errorf("/readyz: got %q, %w", body, err)
		}
		return nil
	})
	if out, err := s.Kubectl(ctx, "rollout", "status", "daemonset/"+releaseName, "--namespace="+releaseNamespace, "--timeout=20s"); err == nil {
		t.Errorf("the update is complete: %s", out)
	}
	if err := s.stoppedOn(ctx, 1); err != nil {
		t.Error(err)
	}
	await(ctx, t, "an event of the pod reports the probe", func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "events", "--namespace="+releaseNamespace, "--field-selector=reason=Unhealthy")
		if err == nil && !strings.Contains(out, "Readiness probe failed: HTTP probe failed with statuscode: 503") {
			err = errors.New(out)
		}
		return err
	})
	s.helm(ctx, t, "rollback", releaseName, "--namespace="+releaseNamespace)
	await(ctx, t, "the DaemonSet is ready after the rollback", s.daemonSet)
	await(ctx, t, "the node has all GPUs", s.hasAllocatable(gpuCount))
	comparePods(ctx, t, s, trainers)
	s.kubeletOutage(ctx, t, trainers)
}

// stoppedOn returns an error unless one of n nodes has an updated pod, which is unavailable, and the others are available.
func (s *clusterFixture) stoppedOn(ctx context.Context, n int) error {
	var set struct {
		Status struct{ DesiredNumberScheduled, UpdatedNumberScheduled, NumberUnavailable, NumberAvailable int }
	}
	err := s.Get(ctx, s.daemonSetPath(), &set)
	if st := set.Status; err == nil && (st.DesiredNumberScheduled != n || st.UpdatedNumberScheduled != 1 || st.NumberUnavailable != 1 || st.NumberAvailable != n-1) {
		err = fmt.Errorf("status of the DaemonSet: got %+v, want %d nodes, one updated and unavailable", st, n)
	}
	return err
}

// kubeletOutage stops the kubelet for half a minute. podgauge stays alive, and no container is restarted.
func (s *clusterFixture) kubeletOutage(ctx context.Context, t *testing.T, trainers []podObject) {
	t.Helper()
	before, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	url, err := s.podgaugeURL(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Node.StopKubelet(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "podgauge notices the outage", func(ctx context.Context) error {
		body, err := get(ctx, url+"/metrics")
		if err == nil && !strings.Contains(body, "podgauge_kubelet_up 0") {
			err = errors.New("podgauge_kubelet_up is not 0")
		}
		return err
	})
	for _, path := range []string{"/healthz", "/readyz"} { // ready for --not-ready-after
		if body, err := get(ctx, url+path); err != nil {
			t.Errorf("%s without a kubelet: got %q, %v", path, body, err)
		}
	}
	if err := s.StartKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the node has all GPUs after the outage", s.hasAllocatable(gpuCount))
	await(ctx, t, "the DaemonSet is ready after the outage", s.daemonSet)
	after, err := s.podgaugePods(ctx)
	if err != nil || fmt.Sprint(containerIDs(after)) != fmt.Sprint(containerIDs(before)) {
		t.Errorf("podgauge's containers: got %v, %v, want %v", containerIDs(after), err, containerIDs(before))
	}
	comparePods(ctx, t, s, trainers)
}
