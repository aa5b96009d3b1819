//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestCluster tests a release from a rejected installation to the leftovers after uninstall.
func TestCluster(t *testing.T) {
	newClusterFixture(t, cluster.Options()).runSteps(
		t,
		clusterStep{"other programs are installed", installOtherPrograms},
		clusterStep{"unlabeled namespace rejects podgauge", unlabeledNamespace},
		clusterStep{"the API server accepts every golden case", checkGoldens},
		clusterStep{"the API server accepts every value file", checkValueFiles},
		clusterStep{"helm installs podgauge", installRelease},
		clusterStep{"pods get GPUs", runTrainers},
		clusterStep{"Prometheus has the pod's name on the GPU's series", checkMonitors},
		clusterStep{"claims have the labels of their pods", claimOwners},
		clusterStep{"updates lose nothing", updateRelease},
		clusterStep{"an update without a driver is not ready", brokenUpdate},
		clusterStep{"a broken image stops at the first node", brokenImage},
		clusterStep{"kubectl podgauge shows the node", checkKubectlPlugin},
		clusterStep{"kubectl podgauge retires a GPU for all nodes", checkRetirement},
		clusterStep{"alert for a pod that failed on an unhealthy GPU", checkAlert},
		clusterStep{"helm uninstalls podgauge", uninstallRelease},
	)
}

// unlabeledNamespace installs the chart in a namespace with Pod Security level baseline.
// The pods of the DaemonSet are rejected, and the event names the missing label.
func unlabeledNamespace(t *testing.T, s *clusterFixture) {
	s.helm(t, "install", releaseName, chartDir, "--namespace=unlabeled", "--create-namespace", "--values="+s.values)
	await(t, "the DaemonSet's pods are rejected",
		s.hasEvent("unlabeled", "reason=FailedCreate,involvedObject.kind=DaemonSet", `violates PodSecurity "baseline`))
	s.helm(t, "uninstall", releaseName, "--namespace=unlabeled", "--wait")
	s.kubectl(t, "delete", "namespace", "unlabeled")
	s.kubectl(t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
}

// installRelease installs the chart with a single command, and checks that the process has no capabilities, no new privileges and a system
// call filter.
func installRelease(t *testing.T, s *clusterFixture) {
	var err error
	s.objectsBefore, err = s.objects(t.Context())
	must(t, err)
	s.installStarted = time.Now()
	s.helm(t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values)
	await(t, "the DaemonSet is ready", s.daemonSet)
	printMeasurement(t, "helm install → the DaemonSet is ready (minReadySeconds are 5 of them)", formatSeconds(time.Since(s.installStarted)))
	await(t, "the node has GPUs", s.hasAllocatable(gpuCount))
	p, err := s.podgaugePod(t.Context())
	must(t, err)
	status := s.shell(t, p, "cat /proc/${PIDS%% *}/status")
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
func runTrainers(t *testing.T, s *clusterFixture) {
	begin := time.Now()
	s.apply(t, strings.ReplaceAll(trainersManifest, "@IMAGE@", node.TestImage))
	s.kubectl(t, "rollout", "status", "--namespace="+teamNamespace, "deployment/trainer", "--timeout="+waitTimeout.String())
	printMeasurement(t, "three pods with one GPU each: applied → available", formatSeconds(time.Since(begin)))
	pods := s.trainers(t)
	if len(pods) != 3 {
		t.Fatalf("trainer pods: got %v, want 3", pods)
	}
	await(t, "/metrics has the pods' names", func(ctx context.Context) error { return s.checkPodOwners(ctx, pods) })
}

// checkPodOwners returns an error unless exactly these pods have a GPU each, by the kubelet and by /metrics.
func (s *clusterFixture) checkPodOwners(ctx context.Context, pods []podObject) error {
	owners, err := s.Node.Owners(ctx, gpuResource)
	if err != nil {
		return err
	}
	for _, p := range pods {
		owner := node.OwnerKey{Namespace: teamNamespace, Pod: p.Metadata.Name, Container: "main"}
		if len(owners) != len(pods) || !slices.Contains(slices.Collect(maps.Values(owners)), owner) {
			return fmt.Errorf("containers with a GPU in the kubelet: got %v, want %v and %d more", owners, owner, len(pods)-1)
		}
	}
	return s.checkOwners(ctx, owners)
}
