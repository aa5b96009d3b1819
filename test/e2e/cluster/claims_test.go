//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// deviceClass selects the devices of the DRA driver.
const deviceClass = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]
`

// startDRADriver starts a DRA driver with all GPUs in the node, and waits for the published devices.
func (s *clusterFixture) startDRADriver(t *testing.T) {
	t.Helper()
	binary, err := os.Executable()
	must(t, err)
	s.apply(t, deviceClass)
	argv := []string{binary, draDriverCommand, s.Kubeconfig, node.Name, strings.Join(uuids(), ",")}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err = s.Node.Start(ctx, draDriverCommand, argv, func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "resourceslices", "--output=jsonpath={.items[*].spec.devices[*].name}")
		if err == nil && len(strings.Fields(out)) != gpuCount {
			err = fmt.Errorf("devices of the DRA driver: got %q, want %d", out, gpuCount)
		}
		return err
	})
	must(t, err)
}

const (
	observersNamespace = "observers" // namespace of claims that the chart values ignore
	auditorsNamespace  = "auditors"  // namespace of other claims
)

// allGPUs is a request of all GPUs with administrative access.
const allGPUs = "{deviceClassName: gpu.nvidia.com, allocationMode: All, adminAccess: true}"

// createAdminNamespace creates a namespace whose claims can have administrative access.
func (s *clusterFixture) createAdminNamespace(t *testing.T, name string) {
	t.Helper()
	s.kubectl(t, "create", "namespace", name)
	s.kubectl(t, "label", "namespace", name, "resource.kubernetes.io/admin-access=true")
}

// claimOwners compares the owner labels of claimed GPUs with the claims: two GPUs for one pod, one GPU for two containers of a pod, and
// all GPUs for a monitoring pod with adminAccess, beside pods with GPUs of the device plugin.
func claimOwners(t *testing.T, s *clusterFixture) {
	for _, name := range []string{observersNamespace, auditorsNamespace} {
		s.createAdminNamespace(t, name)
		defer s.kubectl(t, "delete", "namespace", name)
	}
	trainers, err := s.Node.Owners(t.Context(), gpuResource)
	if err != nil || len(trainers) != 3 {
		t.Fatalf("list the trainers' GPUs: got %v, %v, want 3", trainers, err)
	}
	unallocated := []string{}
	for _, id := range uuids() {
		if trainers[id] == (node.OwnerKey{}) {
			unallocated = append(unallocated, id)
		}
	}
	// awaitOwners waits for owners of the GPUs that the trainers do not have.
	awaitOwners := func(condition string, owners ...node.OwnerKey) {
		t.Helper()
		want := maps.Clone(trainers)
		for i, id := range unallocated {
			want[id] = owners[min(i, len(owners)-1)]
		}
		await(t, condition, func(ctx context.Context) error {
			return errors.Join(s.checkOwners(ctx, want), s.hasAllocatable(gpuCount)(ctx))
		})
	}
	gpus := func(ids ...string) string {
		return fmt.Sprintf(`{deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, count: %d, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].uuid in [%s]'}}]}`,
			len(ids), `"`+strings.Join(ids, `", "`)+`"`)
	}

	s.applyClaim(t, auditorsNamespace, "audit", allGPUs, "main")
	// A GPU that only a claim allocates has the claim's labels: the kubelet does not report adminAccess.
	awaitOwners("the trainers' GPUs keep their labels beside an adminAccess claim", node.OwnerKey{Namespace: auditorsNamespace, Pod: "audit", Container: "main"})
	s.kubectl(t, "delete", "--namespace="+auditorsNamespace, "pod/audit", "--wait")

	s.applyClaim(t, observersNamespace, "observer", allGPUs, "main")
	s.applyClaim(t, teamNamespace, "pair", gpus(unallocated[:2]...), "main")
	s.applyClaim(t, teamNamespace, "shared", gpus(unallocated[2]), "main", "side")
	pair := node.OwnerKey{Namespace: teamNamespace, Pod: "pair", Container: "main"}
	awaitOwners("claims of two GPUs and of two containers have their labels", pair, pair, node.OwnerKey{Namespace: teamNamespace, Pod: "shared"}, node.OwnerKey{})
	s.kubectl(t, "delete", "--namespace="+teamNamespace, "pod/pair", "pod/shared", "--wait")
	awaitOwners("labels end with the claims' pods", node.OwnerKey{})
}

// applyClaim creates a claim with a request, and a pod with its name and these containers, and waits until the pod is ready.
func (s *clusterFixture) applyClaim(t *testing.T, namespace, name, request string, containers ...string) {
	t.Helper()
	s.createClaim(t, namespace, name, request, containers...)
	s.kubectl(t, "wait", "--namespace="+namespace, "pod/"+name, "--for=condition=Ready", "--timeout="+waitTimeout.String())
}

// createClaim creates a claim with a request, and a pod with its name and these containers.
func (s *clusterFixture) createClaim(t *testing.T, namespace, name, request string, containers ...string) {
	t.Helper()
	list := ""
	for _, container := range containers {
		list += fmt.Sprintf("    - {name: %s, image: %q, imagePullPolicy: Never, resources: {claims: [{name: gpus}]}}\n", container, node.TestImage)
	}
	s.apply(t, strings.NewReplacer("@NAME@", name, "@NAMESPACE@", namespace, "@REQUEST@", request, "@CONTAINERS@", list).Replace(claimManifest))
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
