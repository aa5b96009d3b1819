//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestCluster tests a release from a rejected installation to the leftovers after uninstall.
func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	s := newClusterFixture(ctx, t)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T, *clusterFixture)
	}{
		{"other programs are installed", installOtherPrograms},
		{"unlabeled namespace rejects podgauge", unlabeledNamespace},
		{"the API server accepts every golden case", checkGoldens},
		{"helm installs podgauge", installRelease},
		{"pods get GPUs", runTrainers},
		{"Prometheus has the pod's name on the GPU's series", checkMonitors},
		{"claims have the labels of their pods", claimOwners},
		{"updates lose nothing", updateRelease},
		{"an update without a driver is not ready", brokenUpdate},
		{"a broken image stops at the first node", brokenImage},
		{"alert for a pod that failed on an unhealthy GPU", checkAlert},
		{"kubectl podgauge shows all nodes, even if a node hangs", checkKubectlPlugin},
		{"helm uninstalls podgauge", uninstallRelease},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t, s) }) {
			return // later steps depend on this step
		}
	}
}

// unlabeledNamespace installs the chart in a namespace with Pod Security level baseline.
// The pods of the DaemonSet are rejected, and the event names the missing label.
func unlabeledNamespace(ctx context.Context, t *testing.T, s *clusterFixture) {
	s.helm(ctx, t, "install", releaseName, chartDir, "--namespace=unlabeled", "--create-namespace", "--values="+s.values)
	await(ctx, t, "the DaemonSet's pods are rejected", func(ctx context.Context) error {
		var events struct {
			Items []struct {
				Reason, Message string
				InvolvedObject  struct{ Kind string }
			}
		}
		if err := s.Get(ctx, "/api/v1/namespaces/unlabeled/events", &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "DaemonSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, `violates PodSecurity "baseline`) {
				t.Log(e.Message)
				return nil
			}
		}
		return fmt.Errorf("events are %+v", events.Items)
	})
	s.helm(ctx, t, "uninstall", releaseName, "--namespace=unlabeled", "--wait")
	s.kubectl(ctx, t, "delete", "namespace", "unlabeled")
	s.kubectl(ctx, t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
}

// installRelease installs the chart with a single command.
func installRelease(ctx context.Context, t *testing.T, s *clusterFixture) {
	before, err := s.objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.objectsBefore = before
	s.installStarted = time.Now()
	s.helm(ctx, t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values)
	await(ctx, t, "the DaemonSet is ready", s.daemonSet)
	printMeasurement(t, "helm install → the DaemonSet is ready (minReadySeconds are 5 of them)", formatSeconds(time.Since(s.installStarted)))
	await(ctx, t, "the node has GPUs", s.hasAllocatable(gpuCount))
	s.checkConfinement(ctx, t)
}

// checkConfinement checks that the process has no capabilities, no new privileges and a system call filter.
func (s *clusterFixture) checkConfinement(ctx context.Context, t *testing.T) {
	t.Helper()
	all, err := s.podgaugePods(ctx)
	if err != nil || len(all) != 1 {
		t.Fatalf("podgauge pods: got %v, %v, want 1", all, err)
	}
	status := s.shell(ctx, t, all[0], "cat /proc/${PIDS%% *}/status")
	for _, line := range []string{"Name:\tpodgauge", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line) {
			t.Errorf("status of podgauge's process lacks %q:\n%s", line, status)
		}
	}
}

const trainersManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: trainer, namespace: team}
spec:
  replicas: 3
  selector: {matchLabels: {app: trainer}}
  template:
    metadata: {labels: {app: trainer}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: "@IMAGE@", imagePullPolicy: Never, resources: {limits: {nvidia.com/gpu: 1}}}
`

// runTrainers runs pods with GPUs and compares the labels of /metrics with the kubelet's allocations.
func runTrainers(ctx context.Context, t *testing.T, s *clusterFixture) {
	begin := time.Now()
	s.apply(ctx, t, strings.ReplaceAll(trainersManifest, "@IMAGE@", node.TestImage))
	s.kubectl(ctx, t, "rollout", "status", "--namespace="+teamNamespace, "deployment/trainer", "--timeout="+waitTimeout.String())
	printMeasurement(t, "three pods with one GPU each: applied → available", formatSeconds(time.Since(begin)))
	pods, err := s.pods(ctx, teamNamespace, "app=trainer")
	if err != nil || len(pods) != 3 {
		t.Fatalf("trainer pods: got %v, %v, want 3", pods, err)
	}
	await(ctx, t, "/metrics has the pods' names", func(ctx context.Context) error { return s.checkPodOwners(ctx, pods) })
}

// checkPodOwners compares a scrape with the kubelet: each pod has one GPU, labeled with the pod.
func (s *clusterFixture) checkPodOwners(ctx context.Context, pods []podObject) error {
	owners, err := s.Node.Owners(ctx, gpuResource)
	if err != nil {
		return err
	}
	families, err := s.scrapeOne(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		found := false
		for id, owner := range owners {
			if owner.Pod != p.Metadata.Name {
				continue
			}
			found = true
			if name, err := ownerOf(families, id); err != nil || name != owner.Pod {
				return fmt.Errorf("pod label of %s: got %q, want %q: %w", id, name, owner.Pod, err)
			}
		}
		if !found {
			return errors.New("the kubelet lists no GPU of " + p.Metadata.Name)
		}
	}
	if len(owners) != len(pods) {
		return fmt.Errorf("owners in the kubelet: got %v, want %d", owners, len(pods))
	}
	return nil
}
