//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// deviceTaintValues are those of a node whose GPUs a DRA driver allocates.
const deviceTaintValues = `
devicePlugin: {enabled: false}
kubernetes: {deviceTaints: true, adminClaims: true}
podMonitor: {enabled: false}
prometheusRule: {enabled: false}
`

// TestDeviceTaints tests a node whose GPUs a DRA driver allocates: an unhealthy GPU is not allocated until it recovers, by a claim or for
// an extended resource.
func TestDeviceTaints(t *testing.T) {
	s := newClusterFixture(t, cluster.Options())
	s.startDRADriver(t)
	s.installBesideDRADriver(t)
	s.runSteps(
		t,
		clusterStep{"claim beside an administrative claim", claimBesideAdminClaim},
		clusterStep{"unhealthy GPU is tainted", taintUnhealthyGPU},
		clusterStep{"new claim of the GPU waits", claimWaits},
		clusterStep{"restart of the controller", restartController},
		clusterStep{"recovered GPU is allocated", allocateRecoveredGPU},
		clusterStep{"extended resource of the DRA driver", extendedResource},
	)
}

// installBesideDRADriver installs podgauge without its device plugin, and waits until the node's podgauge and the controller are ready.
func (s *clusterFixture) installBesideDRADriver(t *testing.T) {
	t.Helper()
	s.kubectl(t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
	_, err := s.Node.LoadImage(t.Context(), cluster.Archive(repoRoot, "podgauge-kube"))
	must(t, err)
	values := s.Node.Path("device-taints.yaml")
	must(t, os.WriteFile(values, []byte(deviceTaintValues), 0o644))
	s.helm(t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values, "--values="+values)
	await(t, "the DaemonSet is ready", s.daemonSet)
	s.awaitController(t)
}

// claimOf is a request of one GPU.
func claimOf(gpu int) string {
	return fmt.Sprintf(`{deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].uuid == "%s"'}}]}`, uuid(gpu))
}

// claimBesideAdminClaim ends with the pod "holder" as owner of GPU 0. The claim of all GPUs with administrative access is no allocation.
func claimBesideAdminClaim(t *testing.T, s *clusterFixture) {
	s.createAdminNamespace(t, auditorsNamespace)
	defer s.kubectl(t, "delete", "namespace", auditorsNamespace)
	s.applyClaim(t, auditorsNamespace, "audit", allGPUs, "main")
	s.applyClaim(t, teamNamespace, "holder", claimOf(0), "main")
	want := map[string]node.OwnerKey{}
	for _, id := range uuids() {
		want[id] = node.OwnerKey{}
	}
	want[uuid(0)] = node.OwnerKey{Namespace: teamNamespace, Pod: "holder", Container: "main"}
	await(t, "the claimed GPU has its owner, and other GPUs have none", func(ctx context.Context) error { return s.checkOwners(ctx, want) })
	allocations, err := s.series(t.Context(), "nvidia_gpu_allocation_info")
	must(t, err)
	if len(allocations) != 1 || allocations[0]["uuid"] != uuid(0) || allocations[0]["claim"] != "holder" {
		t.Errorf("allocations: got %v, want GPU 0 by the claim holder", allocations)
	}
}

// taintUnhealthyGPU ends with an unhealthy GPU 0 that the pod "holder" keeps.
func taintUnhealthyGPU(t *testing.T, s *clusterFixture) {
	begin := time.Now()
	must(t, s.machine.Event(0, "xid 79"))
	await(t, "the GPU has a taint", s.hasRules("gpu.nvidia.com "+node.Name+" gpu-0 podgauge.io/unhealthy=xid_79:NoSchedule"))
	printMeasurement(t, "Xid 79 → DeviceTaintRule", formatSeconds(time.Since(begin)))
	if phase := s.phase(t, "holder"); phase != "Running" {
		t.Errorf("pod with the tainted GPU: got phase %s, want Running", phase)
	}
}

// ruleTemplate prints the rules in lines.
const ruleTemplate = `{range .items[*]}{.spec.deviceSelector.driver} {.spec.deviceSelector.pool} {.spec.deviceSelector.device} ` +
	`{.spec.taint.key}={.spec.taint.value}:{.spec.taint.effect}{"\n"}{end}`

// hasRules returns an error unless the API server has exactly these rules.
func (s *clusterFixture) hasRules(want ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "devicetaintrules", "--output=jsonpath="+ruleTemplate)
		if got := strings.TrimSpace(out); err == nil && got != strings.Join(want, "\n") {
			err = fmt.Errorf("device taint rules: got %q, want %q", got, want)
		}
		return err
	}
}

func (s *clusterFixture) phase(t *testing.T, pod string) string {
	t.Helper()
	return s.kubectl(t, "get", "pod", pod, "--namespace="+teamNamespace, "--output=jsonpath={.status.phase}")
}

// isUnschedulable returns an error unless the scheduler found no node for a pod.
func (s *clusterFixture) isUnschedulable(pod string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "pod", pod, "--namespace="+teamNamespace,
			`--output=jsonpath={.status.conditions[?(@.type=="PodScheduled")]}`)
		if err == nil && !strings.Contains(out, `"reason":"Unschedulable"`) {
			err = fmt.Errorf("condition: got %s, want Unschedulable", out)
		}
		return err
	}
}

// claimWaits ends the holder and creates the pod "next" with a claim of the same GPU.
func claimWaits(t *testing.T, s *clusterFixture) {
	s.kubectl(t, "delete", "--namespace="+teamNamespace, "pod/holder", "resourceclaim/holder", "--wait")
	s.createClaim(t, teamNamespace, "next", claimOf(0), "main")
	await(t, "the scheduler finds no GPU for the pod", s.isUnschedulable("next"))
	s.applyClaim(t, teamNamespace, "other", claimOf(1), "main") // later than next, and scheduled
	if phase := s.phase(t, "next"); phase != "Pending" {
		t.Errorf("pod with a claim of the tainted GPU: got phase %s, want Pending", phase)
	}
}

// extraRules are a rule of podgauge-kube for a node that is gone, and a rule of others.
const extraRules = `
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata:
  name: orphan
  labels: {app.kubernetes.io/managed-by: podgauge-kube}
  annotations: {podgauge.io/node: gone}
spec: {deviceSelector: {driver: gpu.nvidia.com, pool: gone}, taint: {key: podgauge.io/unhealthy, effect: NoSchedule}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: foreign, annotations: {podgauge.io/node: gone}}
spec: {deviceSelector: {driver: gpu.nvidia.com, pool: gone}, taint: {key: example.com/maintenance, effect: NoSchedule}}
`

// restartController checks that a new process of the controller keeps the rules as they are, but for those of a node that is gone.
func restartController(t *testing.T, s *clusterFixture) {
	rules := func(ctx context.Context) (string, error) {
		return s.Kubectl(ctx, "get", "devicetaintrules", `--output=jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.generation} {.spec.taint.timeAdded}{"\n"}{end}`)
	}
	s.apply(t, extraRules)
	all, err := rules(t.Context())
	must(t, err)
	want := []string{}
	for line := range strings.Lines(all) {
		if !strings.HasPrefix(line, "orphan ") {
			want = append(want, line)
		}
	}
	if len(want) != 2 {
		t.Fatalf("rules before the restart: got %q, want 2 and the orphan", all)
	}
	s.kubectl(t, "rollout", "restart", "--namespace="+releaseNamespace, "deployment/"+releaseName+"-kube")
	s.awaitController(t)
	await(t, "the rule of the node that is gone is deleted", func(ctx context.Context) error {
		got, err := rules(ctx)
		if err == nil && got != strings.Join(want, "") {
			err = fmt.Errorf("rules: got %q, want %q", got, want)
		}
		return err
	})
	s.kubectl(t, "delete", "devicetaintrule", "foreign")
}

// allocateRecoveredGPU resets the GPU.
func allocateRecoveredGPU(t *testing.T, s *clusterFixture) {
	begin := time.Now()
	must(t, s.machine.Reset(0))
	await(t, "the taint is gone", s.hasRules())
	printMeasurement(t, "reset of the GPU → no DeviceTaintRule", formatSeconds(time.Since(begin)))
	s.kubectl(t, "wait", "--namespace="+teamNamespace, "pod/next", "--for=condition=Ready", "--timeout="+waitTimeout.String())
	printMeasurement(t, "reset of the GPU → a waiting pod with a claim of it is ready", formatSeconds(time.Since(begin)))
	s.kubectl(t, "delete", "--namespace="+teamNamespace, "pod/next", "pod/other", "--wait")
}

// extendedResource runs a pod that requests nvidia.com/gpu, with the other GPUs tainted.
func extendedResource(t *testing.T, s *clusterFixture) {
	s.kubectl(t, "patch", "deviceclass", "gpu.nvidia.com", "--type=merge", `--patch={"spec": {"extendedResourceName": "`+gpuResource+`"}}`)
	for i := 1; i < gpuCount; i++ {
		must(t, s.machine.Event(i, "xid 79"))
	}
	await(t, "all GPUs but one are tainted", func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "devicetaintrules", "--output=name")
		if n := len(strings.Fields(out)); err == nil && n != gpuCount-1 {
			err = fmt.Errorf("got %d rules, want %d", n, gpuCount-1)
		}
		return err
	})
	s.apply(t, strings.NewReplacer("@NAME@", "extended", "@IMAGE@", node.TestImage).Replace(gpuPod))
	s.kubectl(t, "wait", "--namespace="+teamNamespace, "pod/extended", "--for=condition=Ready", "--timeout="+waitTimeout.String())
	await(t, "the healthy GPU has the pod's labels", func(ctx context.Context) error {
		return s.checkOwners(ctx, map[string]node.OwnerKey{uuid(0): {Namespace: teamNamespace, Pod: "extended", Container: "main"}})
	})
	command := []string{"exec", "--namespace=" + releaseNamespace, "daemonset/" + releaseName, "--", "podgauge", "doctor"}
	out, err := s.Kubectl(t.Context(), command...) // exits with 1 because of unhealthy GPUs
	if report := fmt.Sprint(out, err); !strings.Contains(report, "NVIDIA's DRA driver (claims of 1 pod, 1 for an extended resource)") {
		t.Errorf("doctor: got %s", report)
	}
}
