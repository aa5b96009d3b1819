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

// TestCluster goes through a release's life as an administrator does, from the chart that is refused to what is left after its end.
func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	s := newClusterFixture(ctx, t)
	for _, step := range []struct {
		name string
		play func(context.Context, *testing.T, *clusterFixture)
	}{
		{"others are there", installOthers},
		{"a namespace without a label takes no podgauge", unlabelledNamespace},
		{"the API server takes every golden case", checkGoldens},
		{"helm installs it", installRelease},
		{"a pod that asks for a GPU gets one", workload},
		{"Prometheus has the pod's name on the GPU's series", checkMonitors},
		{"claims have the labels of their pods", claimOwners},
		{"updates lose nothing", updateRelease},
		{"a pod that fails on a broken GPU is an alert", checkAlert},
		{"helm uninstalls it", uninstallRelease},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.play(ctx, t, s) }) {
			return // what follows stands on it
		}
	}
}

// unlabelledNamespace installs the chart where Pod Security admission takes what is baseline only: the DaemonSet is there, its pods are refused, and
// the event says which label the namespace lacks.
func unlabelledNamespace(ctx context.Context, t *testing.T, s *clusterFixture) {
	s.helm(ctx, t, "install", releaseName, chartDir, "--namespace=unlabelled", "--create-namespace", "--values="+s.values)
	await(ctx, t, "the DaemonSet's pods are refused", func(ctx context.Context) error {
		var events struct {
			Items []struct {
				Reason, Message string
				InvolvedObject  struct{ Kind string }
			}
		}
		if err := s.Get(ctx, "/api/v1/namespaces/unlabelled/events", &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "DaemonSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, `violates PodSecurity "baseline`) {
				t.Log(e.Message)
				return nil
			}
		}
		return fmt.Errorf("the events are %+v", events.Items)
	})
	s.helm(ctx, t, "uninstall", releaseName, "--namespace=unlabelled", "--wait")
	s.kubectl(ctx, t, "delete", "namespace", "unlabelled")
	s.kubectl(ctx, t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
}

// installRelease takes one command.
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

// checkConfinement is what the chart promises of the process: no capability, nothing to be gained, system calls filtered.
func (s *clusterFixture) checkConfinement(ctx context.Context, t *testing.T) {
	t.Helper()
	all, err := s.podgaugePods(ctx)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	status := s.shell(ctx, t, all[0], "cat /proc/${PIDS%% *}/status")
	for _, line := range []string{"Name:\tpodgauge", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line) {
			t.Errorf("podgauge's process has no line %q:\n%s", line, status)
		}
	}
}

// trainersManifest are pods that have a GPU each.
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

// workload is scheduled by the scheduler, and named by /metrics on the GPU that the kubelet says it has.
func workload(ctx context.Context, t *testing.T, s *clusterFixture) {
	begin := time.Now()
	s.apply(ctx, t, strings.ReplaceAll(trainersManifest, "@IMAGE@", node.TestImage))
	s.kubectl(ctx, t, "rollout", "status", "--namespace="+teamNamespace, "deployment/trainer", "--timeout="+waitTimeout.String())
	printMeasurement(t, "three pods that ask for a GPU each: applied → available", formatSeconds(time.Since(begin)))
	pods, err := s.pods(ctx, teamNamespace, "app=trainer")
	if err != nil || len(pods) != 3 {
		t.Fatal(pods, err)
	}
	await(ctx, t, "/metrics has the pods' names", func(ctx context.Context) error { return s.checkPodOwners(ctx, pods) })
}

// checkPodOwners holds a scrape against the kubelet's own word: each pod has one GPU, and its name is on that one.
func (s *clusterFixture) checkPodOwners(ctx context.Context, pods []podObject) error {
	holders, err := s.Node.Owners(ctx, gpuResource)
	if err != nil {
		return err
	}
	families, err := s.scrapeOne(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		found := false
		for id, h := range holders {
			if h.Pod != p.Metadata.Name {
				continue
			}
			found = true
			if name, err := ownerOf(families, id); err != nil || name != h.Pod {
				return fmt.Errorf("%s is %q's, not %q's: %w", id, name, h.Pod, err)
			}
		}
		if !found {
			return errors.New("the kubelet knows of no GPU of " + p.Metadata.Name)
		}
	}
	if len(holders) != len(pods) {
		return fmt.Errorf("the kubelet has holders %v", holders)
	}
	return nil
}
