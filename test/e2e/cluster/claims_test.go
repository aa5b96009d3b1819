//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	observersNamespace = "observers" // namespace of claims that the chart values ignore
	auditorsNamespace  = "auditors"  // namespace of other claims
)

// claimOwners compares the owner labels of claimed GPUs with the claims: two GPUs for one pod, one GPU for two containers of a pod, and
// all GPUs for a monitoring pod with adminAccess, beside pods with GPUs of the device plugin.
func claimOwners(ctx context.Context, t *testing.T, s *clusterFixture) {
	uuids := uuids()
	for _, name := range []string{observersNamespace, auditorsNamespace} {
		s.kubectl(ctx, t, "create", "namespace", name)
		s.kubectl(ctx, t, "label", "namespace", name, "resource.kubernetes.io/admin-access=true")
		defer s.kubectl(ctx, t, "delete", "namespace", name)
	}
	trainers, err := s.Node.Owners(ctx, gpuResource)
	if err != nil || len(trainers) != 3 {
		t.Fatalf("list the trainers' GPUs: got %v, %v, want 3", trainers, err)
	}
	unallocated := []string{}
	want := map[string]ownerLabels{}
	for _, id := range uuids {
		if owner, allocated := trainers[id]; allocated {
			want[id] = ownerLabels{teamNamespace, owner.Pod, "main"}
		} else {
			unallocated = append(unallocated, id)
		}
	}

	s.applyClaims(ctx, t, auditorsNamespace, podWithClaim{name: "audit", admin: true})
	await(ctx, t, "the trainers' GPUs keep their labels beside an adminAccess claim", func(ctx context.Context) error {
		// A GPU that only a claim allocates has the claim's labels: the kubelet does not report adminAccess.
		for _, id := range unallocated {
			want[id] = ownerLabels{auditorsNamespace, "audit", "main"}
		}
		return errors.Join(s.checkOwners(ctx, want), s.hasAllocatable(gpuCount)(ctx))
	})
	s.kubectl(ctx, t, "delete", "--namespace="+auditorsNamespace, "pod/audit", "--wait")

	s.applyClaims(ctx, t, observersNamespace, podWithClaim{name: "observer", admin: true})
	s.applyClaims(ctx, t, teamNamespace, podWithClaim{name: "pair", uuids: unallocated[:2]})
	s.applyClaims(ctx, t, teamNamespace, podWithClaim{name: "shared", uuids: unallocated[2:3], containers: []string{"main", "side"}})
	for _, id := range unallocated {
		want[id] = ownerLabels{}
	}
	want[unallocated[0]], want[unallocated[1]] = ownerLabels{teamNamespace, "pair", "main"}, ownerLabels{teamNamespace, "pair", "main"}
	want[unallocated[2]] = ownerLabels{teamNamespace, "shared", ""}
	await(ctx, t, "claims of two GPUs and of two containers have their labels", func(ctx context.Context) error {
		return errors.Join(s.checkOwners(ctx, want), s.hasAllocatable(gpuCount)(ctx))
	})

	s.kubectl(ctx, t, "delete", "--namespace="+teamNamespace, "pod/pair", "pod/shared", "--wait")
	for _, id := range unallocated {
		want[id] = ownerLabels{}
	}
	await(ctx, t, "labels end with the claims' pods", func(ctx context.Context) error { return s.checkOwners(ctx, want) })
}

// uuids returns the UUIDs of all GPUs, ordered by minor number.
func uuids() (all []string) {
	for i := range gpuCount {
		all = append(all, uuid(i))
	}
	return all
}

// ownerLabels are the owner labels of a series.
type ownerLabels struct{ namespace, pod, container string }

// checkOwners compares the owner labels of each GPU with the expected labels.
func (s *clusterFixture) checkOwners(ctx context.Context, want map[string]ownerLabels) error {
	families, err := s.scrapeOne(ctx)
	if err != nil {
		return err
	}
	got := map[string]ownerLabels{}
	for _, l := range labelSets(families["nvidia_gpu_healthy"]) {
		got[l["uuid"]] = ownerLabels{l["namespace"], l["pod"], l["container"]}
	}
	for id, w := range want {
		if got[id] != w {
			err = errors.Join(err, fmt.Errorf("owner labels of %s: got %v, want %v", id, got[id], w))
		}
	}
	return err
}

// podWithClaim is a pod with a claim of the same name, for GPUs by UUID or for all GPUs with adminAccess.
type podWithClaim struct {
	name       string
	admin      bool
	uuids      []string
	containers []string // by default a container named main
}

// applyClaims creates the claim and the pod, and waits until the pod is ready.
func (s *clusterFixture) applyClaims(ctx context.Context, t *testing.T, namespace string, p podWithClaim) {
	t.Helper()
	request := "{deviceClassName: gpu.nvidia.com, allocationMode: All, adminAccess: true}"
	if !p.admin {
		request = fmt.Sprintf(`{deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, count: %d, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].uuid in [%s]'}}]}`,
			len(p.uuids), `"`+strings.Join(p.uuids, `", "`)+`"`)
	}
	if len(p.containers) == 0 {
		p.containers = []string{"main"}
	}
	containers := ""
	for _, name := range p.containers {
		containers += fmt.Sprintf("    - {name: %s, image: %q, imagePullPolicy: Never, resources: {claims: [{name: gpus}]}}\n", name, node.TestImage)
	}
	s.apply(ctx, t, strings.NewReplacer("@NAME@", p.name, "@NAMESPACE@", namespace, "@REQUEST@", request, "@CONTAINERS@", containers).Replace(claimManifest))
	s.kubectl(ctx, t, "wait", "--namespace="+namespace, "pod/"+p.name, "--for=condition=Ready", "--timeout="+waitTimeout.String())
}

const claimManifest = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: @NAME@, namespace: @NAMESPACE@}
spec:
  devices:
    requests: [{name: gpus, exactly: @REQUEST@}]
---
apiVersion: v1
kind: Pod
metadata: {name: @NAME@, namespace: @NAMESPACE@}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: gpus, resourceClaimName: @NAME@}]
  containers:
@CONTAINERS@`
