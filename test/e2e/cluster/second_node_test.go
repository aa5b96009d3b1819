//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

const secondNodeName = "second"

// startSecondNode adds a cordoned node. The test reports its pods in place of a
// kubelet: pods of a working image are ready, the others are not, and a deleted
// pod ends at once. The returned function removes the node.
func (s *clusterFixture) startSecondNode(ctx context.Context, t *testing.T, image string) (remove func()) {
	t.Helper()
	s.apply(ctx, t, `{apiVersion: v1, kind: Node, spec: {unschedulable: true},
		metadata: {name: `+secondNodeName+`, labels: {kubernetes.io/os: linux}}}`)
	reporting, stop := context.WithCancel(ctx)
	var report sync.WaitGroup
	report.Go(func() {
		for reporting.Err() == nil {
			if err := s.reportSecondNode(reporting, image); err != nil && reporting.Err() == nil {
				t.Logf("second node: %v", err)
			}
			select {
			case <-reporting.Done():
			case <-time.After(time.Second):
			}
		}
	})
	end := func() {
		stop()
		report.Wait()
	}
	t.Cleanup(end)
	return func() {
		end()
		s.kubectl(ctx, t, "delete", "node", secondNodeName)
		s.kubectl(ctx, t, "delete", "pod", "--namespace="+releaseNamespace, "--field-selector=spec.nodeName="+secondNodeName,
			"--force", "--grace-period=0")
	}
}

type secondNodePod struct {
	Metadata struct{ Name, DeletionTimestamp string }
	Spec     struct{ Containers []struct{ Image string } }
	Status   struct{ Phase string }
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
	var pods struct{ Items []secondNodePod }
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

// brokenImage updates two nodes to an image without podgauge. The update stops
// at one node, whichever the controller takes first: the other keeps its pod.
// A rollback repairs the node.
func brokenImage(ctx context.Context, t *testing.T, s *clusterFixture) {
	var set struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Image string } }
			}
		}
	}
	if err := s.Get(ctx, s.daemonSetPath(), &set); err != nil {
		t.Fatal(err)
	}
	remove := s.startSecondNode(ctx, t, set.Spec.Template.Spec.Containers[0].Image)
	await(ctx, t, "both nodes have podgauge", s.daemonSetOn(2))
	before, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.helm(ctx, t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--reuse-values",
		"--set=image.repository=local.test/box", "--set-string=image.tag=1")
	if out, err := s.Kubectl(ctx, "rollout", "status", "daemonset/"+releaseName, "--namespace="+releaseNamespace, "--timeout=30s"); err == nil {
		t.Errorf("the update is complete: %s", out)
	}
	if err := s.stoppedOn(ctx, 2); err != nil {
		t.Error(err)
	}
	after, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.DeleteFunc(after, func(p podObject) bool {
		return !slices.ContainsFunc(before, func(b podObject) bool { return b.Metadata.UID == p.Metadata.UID })
	})
	if len(kept) != 1 {
		t.Errorf("%d pods remain of %v, want 1", len(kept), before)
	}
	s.helm(ctx, t, "rollback", releaseName, "--namespace="+releaseNamespace)
	await(ctx, t, "both nodes have podgauge after the rollback", s.daemonSetOn(2))
	remove()
	await(ctx, t, "the DaemonSet is ready on the remaining node", s.daemonSet)
	await(ctx, t, "the node has all GPUs", s.hasAllocatable(gpuCount))
}
