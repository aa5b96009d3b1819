package app_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/kubestatus"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
	"github.com/podgauge/podgauge/test/helpers/program"
)

// TestKubernetes runs all features with an API server, on a node whose kubelet has no Pods API.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	w := newTestAppWith(t, testSetup{
		machine: newMachine(sim.H100), kubelet: kubelet.Options{Version: kubelet.V136}, apiServer: server.Client(),
	}, "--kubernetes.events", "--kubernetes.node-condition", "--kubernetes.pods", "--metrics.pod-uid", "--metrics.labels-allowlist=team")
	w.waitRegistered()
	pod := gpuPod("ml", "train", 1)
	w.runPod(pod)
	uid := w.kubelet.State().Pods[0].UID
	server.Set("pods", uid, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":%q,"labels":{"team":"red"}},"status":{"phase":"Running"}}`,
		pod.Name, pod.Namespace, uid))
	w.waitScrape("UID and label of the pod", func(text string) bool {
		return strings.Contains(text, fmt.Sprintf("pod_uid=%q", uid)) && strings.Contains(text, `label_team="red"`)
	})
	w.waitScrape("requests by status", func(text string) bool {
		return strings.Contains(text, "\npodgauge_kubernetes_requests_total{code=\"403\"} 0\n") &&
			strings.Contains(text, "\npodgauge_kubernetes_requests_total{code=\"error\"} 0\n") &&
			strings.Contains(text, "\npodgauge_kubernetes_requests_total{code=\"200\"} ") &&
			!strings.Contains(text, "\npodgauge_kubernetes_requests_total{code=\"200\"} 0\n") &&
			strings.Contains(text, "\npodgauge_kubernetes_events_dropped_total 0\n")
	})
	w.machine.Fail(w.machine.AllocatableIDs()[0], "xid 79")
	program.WaitUntil(t, "the fault is in the node's condition and an event of the pod", func() (found bool) {
		for _, e := range server.Events() {
			object := e["involvedObject"].(map[string]any)
			found = found || object["uid"] == uid && strings.Contains(fmt.Sprint(e["message"]), "failed: Xid 79, GPU has fallen off the bus. Reboot the node.")
		}
		return found && server.Conditions()[kubestatus.ConditionType]["status"] == "True"
	})
}

// TestKubernetesGolden checks the families of the API server on a node without faults.
func TestKubernetesGolden(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4), apiServer: apiserver.Start(t).Client()},
		"--kubernetes.events", "--metrics.set=none", "--metrics.include=podgauge_kubernetes_*")
	w.checkScrape("kubernetes", "podgauge_kubernetes_events_dropped_total", " 0")
}

const testLabel = "nvidia.com/device-plugin.config"

// labelFlags returns the flags of a config selected by label: "whole" by default, or "shared" in four replicas.
func labelFlags(t *testing.T, stateDir string) []string {
	t.Helper()
	configs := filepath.Join(t.TempDir(), "configs.yaml")
	const text = "version: v1\nconfigs:\n  whole: {}\n  shared:\n    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
	if err := os.WriteFile(configs, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--config-file=" + configs, "--config-name=whole", "--state-dir=" + stateDir, "--kubernetes.config-label=" + testLabel}
}

// storeLabel stores a value as the daemon does.
func storeLabel(t *testing.T, stateDir, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(stateDir, "config-name"), []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestConfigLabelAtStart checks that a stored value needs no response of the API server, which may hang. A request is
// only sent for a value without a config, or at a first start. In an outage, a first start uses the default.
func TestConfigLabelAtStart(t *testing.T) {
	const hangs = -1
	for _, c := range []struct {
		name, stored string
		rejection    int // of the API server; 0: the label is shared
		devices      int
	}{
		{"stored, the API server hangs", "shared", hangs, 4},
		{"stored value without a config", "missing", 0, 4},
		{"first start", "", 0, 4},
		{"first start in an outage", "", http.StatusForbidden, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, stateDir := apiserver.Start(t), t.TempDir()
			server.SetNodeLabels("node-a", map[string]string{testLabel: "shared"})
			server.Reject(func(string, string) int { return c.rejection })
			if c.stored != "" {
				storeLabel(t, stateDir, c.stored)
			}
			w := newTestAppWith(t, testSetup{machine: newMachine(sim.H100), apiServer: server.Client()}, labelFlags(t, stateDir)...)
			w.waitAllocatable(gpuResource, c.devices)
		})
	}
}

// TestConfigLabelOfDoctor checks that doctor uses the value stored by the daemon, only from --state-dir.
func TestConfigLabelOfDoctor(t *testing.T) {
	stateDir := t.TempDir()
	storeLabel(t, stateDir, "missing")
	t.Chdir(stateDir)
	for dir, want := range map[string]bool{stateDir: true, "": false, t.TempDir(): false} {
		out, errs, _ := runCLI(t, append([]string{"doctor", "-o=json"}, labelFlags(t, dir)...)...)
		if got := strings.Contains(out, `"check": "config",`+"\n      \"status\": \"failure\""); got != want || errs != "" {
			t.Errorf("--state-dir=%s: got a failure %t\n%s%s", dir, got, out, errs)
		}
	}
}

// TestConfigLabel checks that the config follows the node's label, and that an outage of the API server keeps the last
// config, also over a restart.
func TestConfigLabel(t *testing.T) {
	t.Parallel()
	server, stateDir := apiserver.Start(t), t.TempDir()
	setLabel := func(value string) { server.SetNodeLabels("node-a", map[string]string{testLabel: value, "other": "x"}) }
	start := func(t *testing.T) *testApp {
		return newTestAppWith(t, testSetup{machine: newMachine(sim.H100), apiServer: server.Client()}, labelFlags(t, stateDir)...)
	}
	t.Run("first process", func(t *testing.T) {
		setLabel("shared")
		w := start(t)
		w.waitAllocatable(gpuResource, 4)
		setLabel("whole")
		w.waitAllocatable(gpuResource, 1)
		setLabel("missing")
		program.WaitUntil(t, "the value without a config is stored", func() bool {
			data, _ := os.ReadFile(filepath.Join(stateDir, "config-name"))
			return string(data) == "missing\n"
		})
		w.waitAllocatable(gpuResource, 1)
		setLabel("shared")
		w.waitAllocatable(gpuResource, 4)
		server.SetNodeLabels("node-a", nil) // without the label, the default applies
		w.waitAllocatable(gpuResource, 1)
		setLabel("shared")
		w.waitAllocatable(gpuResource, 4)
	})
	server.Stop()
	start(t).waitAllocatable(gpuResource, 4)
}

func TestKubernetesFlags(t *testing.T) {
	cluster := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "node-a"}
	for _, test := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{[]string{"--kubernetes.events"}, nil, "--kubernetes.*: find API server"},
		{[]string{"--kubernetes.pods"}, map[string]string{"KUBERNETES_SERVICE_HOST": "a", "KUBERNETES_SERVICE_PORT": "1"}, "set NODE_NAME"},
		{[]string{"--kubernetes.config-label=a"}, cluster, "requires --config-file"},
		{[]string{"--kubernetes.config-label=a", "--config-file=x", "--config-name-file=y"}, cluster, "set only one of them"},
	} {
		var out, errs strings.Builder
		status := app.Run(t.Context(), testPlatform{}, test.args, fakeEnv(test.env), &out, &errs)
		if status != cli.ExitUsage || !strings.Contains(errs.String(), test.want) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: got status %d, %s, want %q", test.args, status, &errs, test.want)
		}
	}
}
