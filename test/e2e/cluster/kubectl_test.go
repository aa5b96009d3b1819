//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// fleetNamespace has pods without containers. Their addresses lead to podgauge-sim processes of the node.
const fleetNamespace = "fleet"

// fleetNode is a Node object with a pod of podgauge. The pod's container never runs, because no kubelet has the node's name.
const fleetNode = `
apiVersion: v1
kind: Node
metadata: {name: @NODE@}
spec: {taints: [{key: example.com/fleet, effect: NoSchedule}]}
---
apiVersion: v1
kind: Pod
metadata: {name: podgauge-@NODE@, namespace: fleet, labels: {app.kubernetes.io/name: podgauge}}
spec:
  nodeName: @NODE@
  automountServiceAccountToken: false
  tolerations: [{operator: Exists}]
  containers:
    - {name: podgauge, image: podgauge-sim, ports: [{name: metrics, containerPort: @PORT@}]}
`

// fleetScript has a GPU fault that ends a pod.
const fleetScript = `machine h100
0s pod serving/llm-0 server=8
5s xid 1 79
6s fail serving/llm-0
`

// fleetRole has the permissions of a user from docs/reference/cli.md.
const fleetRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: podgauge-viewer, namespace: fleet}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [list]}
  - {apiGroups: [""], resources: [pods/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: podgauge-viewer, namespace: fleet}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: podgauge-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sre}]
`

// checkKubectlPlugin runs kubectl-podgauge against three simulated nodes, of which sim-1 hangs, and against the real pod of the release.
func checkKubectlPlugin(ctx context.Context, t *testing.T, s *clusterFixture) {
	s.kubectl(ctx, t, "create", "namespace", fleetNamespace)
	s.apply(ctx, t, fleetRole)
	script := s.Node.Path("fleet.script")
	if err := os.WriteFile(script, []byte(fleetScript), 0o644); err != nil {
		t.Fatal(err)
	}
	processes := map[string]*node.Process{}
	for i, name := range []string{"sim-0", "sim-1", "sim-2"} {
		processes[name] = s.startFleetNode(ctx, t, name, 9501+i, script)
	}
	await(ctx, t, "all nodes show the fault and the failed pod", func(ctx context.Context) error {
		out, _, err := s.plugin(ctx, "pod", "llm-0", "-n=serving", "--no-headers")
		if err != nil || strings.Count(out, "xid_79") != 3 || strings.Count(out, "Failed") < 3 {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err := processes["sim-1"].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer processes["sim-1"].Signal(syscall.SIGCONT)
	begin := time.Now()
	out, errs, err := s.plugin(ctx, "nodes", "--timeout=3s", "-o=json")
	printMeasurement(t, "kubectl podgauge nodes with --timeout=3s, three nodes, a hanging node among them", formatSeconds(time.Since(begin)))
	var nodes struct {
		Nodes []struct {
			Node, Error        string
			Devices, Unhealthy int
		}
	}
	if jsonErr := json.Unmarshal([]byte(out), &nodes); jsonErr != nil || exitStatus(err) != 1 || len(nodes.Nodes) != 3 {
		t.Fatalf("nodes: %v %v %s%s", jsonErr, err, out, errs)
	}
	if n := nodes.Nodes[0]; n.Node != "sim-1" || n.Error != "no response within 3s" {
		t.Errorf("first node: got %+v, want sim-1 without a response", n)
	}
	for _, n := range nodes.Nodes[1:] {
		if n.Devices != 8 || n.Unhealthy != 1 || n.Error != "" {
			t.Errorf("node: got %+v, want 8 devices, one unhealthy", n)
		}
	}
	out, errs, err = s.plugin(ctx, "status", "--timeout=3s", "--no-headers")
	if exitStatus(err) != 1 || strings.Count(out, "\n") != 16 || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "sim-1: no response within 3s") {
		t.Errorf("status: %v %s%s", err, out, errs)
	}
	if out, errs, err = s.plugin(ctx, "doctor"); exitStatus(err) != 1 || strings.Count(errs, "\n") != 3 { // the role lacks pods/exec
		t.Errorf("doctor without permission: %v %s%s", err, out, errs)
	}
	out, errs, err = s.runPlugin(ctx, "--podgauge-namespace="+releaseNamespace, "doctor", "-o=json")
	if exitStatus(err) > 1 || !strings.Contains(out, `"check": "pod resources"`) {
		t.Errorf("doctor of the release: %v %s%s", err, out, errs)
	}
	s.kubectl(ctx, t, "delete", "pod", "--all", "--namespace="+fleetNamespace, "--force", "--grace-period=0") // no kubelet deletes the pods
	s.kubectl(ctx, t, "delete", "namespace", fleetNamespace)
	s.kubectl(ctx, t, "delete", "node", "sim-0", "sim-1", "sim-2")
}

// startFleetNode starts podgauge-sim and creates the Node and the pod with its address.
func (s *clusterFixture) startFleetNode(ctx context.Context, t *testing.T, name string, port int, script string) *node.Process {
	t.Helper()
	binary, err := filepath.Abs(repoRoot + "/bin/podgauge-sim")
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("%s:%d", s.Node.IP(), port)
	p, err := s.Node.Exec("podgauge-"+name, []string{binary, "--simulate=script:" + script, "--web.listen-address=" + address}, "NODE_NAME="+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Signal(syscall.SIGKILL) })
	objects := strings.NewReplacer("@NODE@", name, "@PORT@", fmt.Sprint(port)).Replace(fleetNode)
	await(ctx, t, "the API server accepts the pod", func(ctx context.Context) error { // after the namespace's service account
		_, err := s.Apply(ctx, objects)
		return err
	})
	status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}]}}`, s.Node.IP(), s.Node.IP())
	s.kubectl(ctx, t, "patch", "pod", "podgauge-"+name, "--namespace="+fleetNamespace, "--subresource=status", "--type=merge", "--patch="+status)
	return p
}

// plugin runs kubectl-podgauge over the simulated nodes, with the permissions of docs/reference/cli.md.
func (s *clusterFixture) plugin(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	return s.runPlugin(ctx, append([]string{"--as=sre", "--podgauge-namespace=" + fleetNamespace}, args...)...)
}

func (s *clusterFixture) runPlugin(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	command := exec.CommandContext(ctx, repoRoot+"/bin/kubectl-podgauge", args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	var out, errs strings.Builder
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	return out.String(), errs.String(), err
}

// exitStatus returns the exit status of a command; -1: not started.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	if !ended {
		return -1
	}
	return exit.ExitCode()
}
