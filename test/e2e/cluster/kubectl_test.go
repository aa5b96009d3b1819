//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// viewerRole has the permissions of a user from docs/reference/cli.md.
const viewerRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: podgauge-viewer, namespace: podgauge}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [list]}
  - {apiGroups: [""], resources: [pods/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: podgauge-viewer, namespace: podgauge}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: podgauge-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sre}]
`

// checkKubectlPlugin runs kubectl-podgauge with the permissions of a user, and of the administrator.
func checkKubectlPlugin(t *testing.T, s *clusterFixture) {
	s.apply(t, viewerRole)
	trainer := s.trainers(t)[0].Metadata.Name
	for _, c := range []struct {
		args       []string
		wantStatus int
		want       string
	}{
		{[]string{"--as=sre", "nodes", "--no-headers"}, 0, node.Name},
		{[]string{"--as=sre", "status", "--no-headers"}, 0, trainer},
		{[]string{"--as=sre", "pod", trainer, "-n=" + teamNamespace, "--no-headers"}, 0, node.Name},
		{[]string{"--as=sre", "doctor"}, 1, "forbidden"}, // the role lacks pods/exec
		{[]string{"job", "-l=app=trainer", "-n=" + teamNamespace}, 0, "3 pods on 1 node"},
		{[]string{"--as=sre", "job", "-l=app=trainer", "-n=" + teamNamespace}, 1, "forbidden"}, // no right to the team's pods
		{[]string{"bundle", node.Name, "--output=" + filepath.Join(t.TempDir(), "rma.tar.gz")}, 0, "rma.tar.gz"},
		{[]string{"doctor", "-o=json"}, 0, `"check": "pod resources"`},
	} {
		out, status := s.plugin(t.Context(), c.args...)
		if status != c.wantStatus || !strings.Contains(out, c.want) {
			t.Errorf("kubectl podgauge %q: got status %d, want %d with %q:\n%s", c.args, status, c.wantStatus, c.want, out)
		}
	}
	s.kubectl(t, "delete", "role/podgauge-viewer", "rolebinding/podgauge-viewer", "--namespace="+releaseNamespace)
}

// checkRetirement retires a GPU in the ConfigMap of all nodes, which does not exist before, and returns it to service.
func checkRetirement(t *testing.T, s *clusterFixture) {
	const gpu = gpuCount - 1
	run := func(want string, wantStatus int, args ...string) {
		t.Helper()
		if out, status := s.plugin(t.Context(), args...); status != wantStatus || !strings.Contains(out, want) {
			t.Errorf("kubectl podgauge %q: got status %d, want %d with %q:\n%s", args, status, wantStatus, want, out)
		}
	}
	s.apply(t, viewerRole)
	run("forbidden", 1, "--as=sre", "retire", node.Name, fmt.Sprint(gpu), "--reason=rma") // the role lacks configmaps
	s.kubectl(t, "delete", "role/podgauge-viewer", "rolebinding/podgauge-viewer", "--namespace="+releaseNamespace)
	begin := time.Now()
	run(uuid(gpu)+" is retired in ConfigMap "+releaseNamespace+"/", 0, "retire", node.Name, fmt.Sprint(gpu), "--reason=rma")
	await(t, "the node lacks the GPU", s.hasAllocatable(gpuCount-1))
	printMeasurement(t, "kubectl podgauge retire → the node's status lacks the GPU", formatSeconds(time.Since(begin)))
	run(uuid(gpu), 0, "retired", "--no-headers")
	run("stays retired by /etc/podgauge/retired/retired.yaml", 1, "trust", node.Name, fmt.Sprint(gpu))
	run(uuid(gpu)+" is no longer retired", 0, "unretire", node.Name, fmt.Sprint(gpu))
	await(t, "the node has the GPU", s.hasAllocatable(gpuCount))
	s.kubectl(t, "delete", "configmap", "--namespace="+releaseNamespace, "--field-selector=metadata.name="+releaseName+"-retired")
}

// plugin runs kubectl-podgauge and returns its output and exit status; -1: not started.
func (s *clusterFixture) plugin(ctx context.Context, args ...string) (out string, status int) {
	command := exec.CommandContext(ctx, repoRoot+"/bin/kubectl-podgauge", append([]string{"--podgauge-namespace=" + releaseNamespace}, args...)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	output, err := command.CombinedOutput()
	if exit, ended := errors.AsType[*exec.ExitError](err); ended {
		return string(output), exit.ExitCode()
	}
	if err != nil {
		return err.Error(), -1
	}
	return string(output), 0
}
