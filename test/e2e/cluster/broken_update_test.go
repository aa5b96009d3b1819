//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// brokenUpdate updates to a driver folder without a library. The update stops with the new pod, which is not ready and names the
// reason, and a rollback repairs the node.
func brokenUpdate(t *testing.T, s *clusterFixture) {
	trainers := s.trainers(t)
	empty := s.Node.Path("driver-without-library")
	must(t, os.MkdirAll(empty, 0o755))
	s.helm(t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--reuse-values", "--set=nvidiaDriverRoot="+empty)
	await(t, "the new pod names the reason", func(ctx context.Context) error {
		body, err := s.get(ctx, "/readyz")
		if err == nil || !strings.Contains(body, "driver: ") || !strings.Contains(body, fmt.Sprintf("devices: %d known GPUs missing", gpuCount)) {
			return fmt.Errorf("/readyz: got %q, %w", body, err)
		}
		return nil
	})
	s.checkStopped(t, 1)
	await(t, "an event of the pod reports the probe",
		s.hasEvent(releaseNamespace, "reason=Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503"))
	s.helm(t, "rollback", releaseName, "--namespace="+releaseNamespace)
	await(t, "the DaemonSet is ready after the rollback", s.daemonSet)
	await(t, "the node has all GPUs", s.hasAllocatable(gpuCount))
	compareContainers(t, s.trainers(t), trainers)
}

// checkStopped checks that an update does not end, and that one of n nodes has an updated pod, which is unavailable, and the others are
// available.
func (s *clusterFixture) checkStopped(t *testing.T, n int) {
	t.Helper()
	if out, err := s.Kubectl(t.Context(), "rollout", "status", "daemonset/"+releaseName, "--namespace="+releaseNamespace, "--timeout=20s"); err == nil {
		t.Errorf("the update is complete: %s", out)
	}
	type status struct{ DesiredNumberScheduled, UpdatedNumberScheduled, NumberUnavailable, NumberAvailable int }
	var set struct{ Status status }
	must(t, s.Get(t.Context(), s.daemonSetPath(), &set))
	if want := (status{n, 1, 1, n - 1}); set.Status != want {
		t.Errorf("status of the DaemonSet: got %+v, want %+v", set.Status, want)
	}
}

// brokenImage updates two nodes to an image without podgauge. The update stops
// at one node, whichever the controller takes first: the other keeps its pod.
// A rollback repairs the node.
func brokenImage(t *testing.T, s *clusterFixture) {
	p, err := s.podgaugePod(t.Context())
	must(t, err)
	remove := s.startSecondNode(t, p.Spec.Containers[0].Image)
	await(t, "both nodes have podgauge", s.daemonSetOn(2))
	before, err := s.podgaugePods(t.Context())
	must(t, err)
	s.helm(t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--reuse-values",
		"--set=image.repository=local.test/box", "--set-string=image.tag=1")
	s.checkStopped(t, 2)
	after, err := s.podgaugePods(t.Context())
	must(t, err)
	kept := slices.DeleteFunc(after, func(p podObject) bool {
		return !slices.ContainsFunc(before, func(b podObject) bool { return b.Metadata.UID == p.Metadata.UID })
	})
	if len(kept) != 1 {
		t.Errorf("%d pods remain of %v, want 1", len(kept), before)
	}
	s.helm(t, "rollback", releaseName, "--namespace="+releaseNamespace)
	await(t, "both nodes have podgauge after the rollback", s.daemonSetOn(2))
	remove()
	await(t, "the DaemonSet is ready on the remaining node", s.daemonSet)
	await(t, "the node has all GPUs", s.hasAllocatable(gpuCount))
}

const secondNodeName = "second"

// startSecondNode adds a cordoned node. The test reports its pods in place of a
// kubelet: pods of a working image are ready, the others are not, and a deleted
// pod ends at once. The returned function removes the node.
func (s *clusterFixture) startSecondNode(t *testing.T, image string) (remove func()) {
	t.Helper()
	s.apply(t, `{apiVersion: v1, kind: Node, spec: {unschedulable: true},
		metadata: {name: `+secondNodeName+`, labels: {kubernetes.io/os: linux}}}`)
	reporting, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; reporting.Err() == nil; time.Sleep(time.Second) {
			if err := s.reportSecondNode(reporting, image); err != nil && reporting.Err() == nil {
				t.Logf("second node: %v", err)
			}
		}
	}()
	end := func() {
		stop()
		<-ended
	}
	t.Cleanup(end)
	return func() {
		end()
		s.kubectl(t, "delete", "node", secondNodeName)
		s.kubectl(t, "delete", "pod", "--namespace="+releaseNamespace, "--field-selector=spec.nodeName="+secondNodeName,
			"--force", "--grace-period=0")
	}
}

func (s *clusterFixture) reportSecondNode(ctx context.Context, image string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	ready := func(status, timeField string) string {
		return fmt.Sprintf(`--patch={"status": {%s"conditions": [{"type": "Ready", "status": "True", %q: %q}]}}`, status, timeField, now)
	}
	allocatable := `"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, `
	if _, err := s.Kubectl(ctx, "patch", "node", secondNodeName, "--subresource=status", ready(allocatable, "lastHeartbeatTime")); err != nil {
		return err
	}
	var pods struct{ Items []podObject }
	if err := s.Get(ctx, "/api/v1/namespaces/"+releaseNamespace+"/pods?fieldSelector=spec.nodeName%3D"+secondNodeName, &pods); err != nil {
		return err
	}
	for _, p := range pods.Items {
		args := []string{"patch", "pod", p.Metadata.Name, "--subresource=status", ready(`"phase": "Running", `, "lastTransitionTime")}
		switch {
		case p.Metadata.DeletionTimestamp != "":
			args = []string{"delete", "pod", p.Metadata.Name, "--force", "--grace-period=0"}
		case p.Status.Phase == "Running" || p.Spec.Containers[0].Image != image:
			continue
		}
		if _, err := s.Kubectl(ctx, append(args, "--namespace="+releaseNamespace)...); err != nil {
			return err
		}
	}
	return nil
}
