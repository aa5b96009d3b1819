package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/kubestatus"
	"github.com/podgauge/podgauge/internal/nodelabel"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
)

// TestKubernetes runs all features with an API server, on a node whose kubelet has no Pods API.
func TestKubernetes(t *testing.T) {
	server := apiserver.Start(t)
	w := newTestAppWith(t, testSetup{
		machine: newMachine(sim.H100), kubelet: kubelet.Options{Version: kubelet.V136},
		kubernetes: kubernetesOptions{events: true, nodeCondition: true, pods: true, client: server.Client(), nodeName: "node-a"},
	}, "--metrics.pod-uid", "--metrics.labels-allowlist=team")
	w.waitRegistered()
	pod := kubelet.PodSpec{Namespace: "ml", Name: "train", Containers: []kubelet.ContainerSpec{{Name: "main", Limits: map[string]int{gpuResource: 1}}}}
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
	id := w.machine.AllocatableIDs()[0]
	w.machine.Fail(id, "xid 79")
	for end := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		condition := server.Conditions()[kubestatus.ConditionType]
		found := false
		for _, e := range server.Events() {
			object := e["involvedObject"].(map[string]any)
			found = found || object["uid"] == uid && strings.Contains(fmt.Sprint(e["message"]), "failed: Xid 79, GPU has fallen off the bus. Reboot the node.")
		}
		if found && condition["status"] == "True" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got condition %v, events %v", condition, server.Events())
		}
	}
}

// TestKubernetesGolden checks the families of the API server on a node without faults.
func TestKubernetesGolden(t *testing.T) {
	w := newTestAppWith(t, testSetup{
		machine: newMachine(sim.T4), kubernetes: kubernetesOptions{events: true, client: apiserver.Start(t).Client(), nodeName: "node-a"},
	}, "--metrics.set=none", "--metrics.include=podgauge_kubernetes_*")
	w.checkScrape("kubernetes", "podgauge_kubernetes_events_dropped_total", " 0")
}

const namedConfigs = `version: v1
configs:
  whole: {}
  shared:
    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
`

// labelOptions returns options with a config selected by label, and a file of configs.
func labelOptions(t *testing.T, server *apiserver.Server, stateDir string) (o *options, f *pflag.FlagSet, configs string) {
	t.Helper()
	configs = filepath.Join(t.TempDir(), "configs.yaml")
	if err := os.WriteFile(configs, []byte(namedConfigs), 0o600); err != nil {
		t.Fatal(err)
	}
	o, f = newOptions(testPlatform{}, emptyEnv), pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse([]string{"--config-file=" + configs, "--config-name=whole", "--state-dir=" + stateDir, "--kubernetes.config-label=" + testLabel}); err != nil {
		t.Fatal(err)
	}
	o.daemon, o.kubernetes.client, o.kubernetes.nodeName = true, server.Client(), "node-a"
	return o, f, configs
}

const testLabel = "nvidia.com/device-plugin.config"

// TestConfigLabelAtStart checks that a stored value needs no request to the API server, which may hang. A request is only sent for a value
// without a config, or at a first start. In an outage, a first start uses the default.
func TestConfigLabelAtStart(t *testing.T) {
	for _, c := range []struct {
		name, stored, label, want string
		requests                  bool
	}{
		{"stored", "shared", "whole", "shared", false},
		{"stored value without a config", "missing", "shared", "shared", true},
		{"first start", "", "shared", "shared", true},
		{"first start in an outage", "", "", "whole", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, stateDir := apiserver.Start(t), t.TempDir()
			server.SetNodeLabels("node-a", map[string]string{testLabel: c.label})
			if c.label == "" {
				server.Reject(func(string, string) int { return http.StatusForbidden })
			}
			if c.stored != "" {
				if err := os.WriteFile(filepath.Join(stateDir, labelFile), []byte(c.stored+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			o, f, _ := labelOptions(t, server, stateDir)
			if err := o.chooseByLabel(t.Context(), f, io.Discard); err != nil {
				t.Fatal(err)
			}
			if err := o.complete(); err != nil || o.loaded.Config != c.want {
				t.Errorf("config: got %q, %v, want %q", o.loaded.Config, err, c.want)
			}
			if got := server.Requests(); len(got) > 0 != c.requests {
				t.Errorf("requests: got %q", got)
			}
		})
	}
}

// TestConfigLabelSignal checks that a signal ends the wait for a hanging API server.
func TestConfigLabelSignal(t *testing.T) {
	server := apiserver.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	server.Reject(func(string, string) int {
		cancel()
		return -1
	})
	o, f, _ := labelOptions(t, server, t.TempDir())
	var stderr strings.Builder
	if err := o.chooseByLabel(ctx, f, &stderr); err != nil || !strings.Contains(stderr.String(), context.Canceled.Error()) {
		t.Errorf("got error %v, stderr %q", err, &stderr)
	}
}

// TestConfigLabelOfDoctor checks that doctor uses the value stored by the daemon, only from --state-dir.
func TestConfigLabelOfDoctor(t *testing.T) {
	server, stateDir := apiserver.Start(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(stateDir, labelFile), []byte("shared\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(stateDir)
	for dir, want := range map[string]string{stateDir: "shared", "": "whole", t.TempDir(): "whole"} {
		o, f, _ := labelOptions(t, server, dir)
		o.daemon = false
		if err := cmp.Or(o.chooseByLabel(t.Context(), f, io.Discard), o.complete()); err != nil || o.loaded.Config != want {
			t.Errorf("--state-dir=%s: got config %q, %v, want %q", dir, o.loaded.Config, err, want)
		}
	}
	if got := server.Requests(); len(got) > 0 {
		t.Errorf("requests: got %q", got)
	}
}

// TestConfigLabel checks that the config follows the node's label, and that an outage of the API server keeps the last config.
func TestConfigLabel(t *testing.T) {
	server, stateDir := apiserver.Start(t), t.TempDir()
	server.SetNodeLabels("node-a", map[string]string{testLabel: "shared", "other": "x"})
	o, f, configs := labelOptions(t, server, stateDir)
	if err := o.chooseByLabel(t.Context(), f, io.Discard); err != nil {
		t.Fatal(err)
	}
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.H100), kubernetes: o.kubernetes}, "--config-file="+configs, "--config-name-file="+o.kubernetes.label.File)
	w.waitAllocatable(gpuResource, 4)
	server.SetNodeLabels("node-a", map[string]string{testLabel: "whole"})
	w.waitAllocatable(gpuResource, 1)
	server.SetNodeLabels("node-a", map[string]string{testLabel: "missing"})
	waitFile(t, o.kubernetes.label.File, "missing")
	w.waitAllocatable(gpuResource, 1)
	server.SetNodeLabels("node-a", map[string]string{testLabel: "shared"})
	w.waitAllocatable(gpuResource, 4)
	server.SetNodeLabels("node-a", nil) // without the label, the default applies
	w.waitAllocatable(gpuResource, 1)
	server.SetNodeLabels("node-a", map[string]string{testLabel: "shared"})
	w.waitAllocatable(gpuResource, 4)
	server.Stop()
	restarted, f, _ := labelOptions(t, server, stateDir)
	if err := cmp.Or(restarted.chooseByLabel(t.Context(), f, io.Discard), restarted.complete()); err != nil || restarted.loaded.Config != "shared" {
		t.Errorf("config in an outage: got %q, %v", restarted.loaded.Config, err)
	}
}

func waitFile(t *testing.T, file, want string) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		data, err := os.ReadFile(file)
		if strings.TrimSpace(string(data)) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: got %q, %v, want %q", file, data, err, want)
		}
	}
}

var _ nodelabel.NodeFollower = (*kubeapi.Follower)(nil)

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
		{[]string{"--kubernetes.events", "--kubernetes.pods", "--kubernetes.node-condition"}, cluster, ""},
	} {
		lookup := func(name string) (string, bool) { v, ok := test.env[name]; return v, ok }
		o := newOptions(testPlatform{}, lookup)
		_, err := execute(t.Context(), o, test.args, lookup, io.Discard, io.Discard)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q: got %v, want %q", test.args, err, test.want)
		}
	}
}
