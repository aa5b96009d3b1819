package dashboards

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
)

// podPhases are the phases in kube-state-metrics' series of a pod.
var podPhases = []string{"Pending", "Succeeded", "Failed", "Unknown", "Running"}

// phaseAfterStep is a pod's phase after an action of a script; empty for a deleted pod.
var phaseAfterStep = map[string]string{"pod": "Running", "fail": "Failed", "finish": "Succeeded", "delete": ""}

// podPhasesAt returns the phases of a script's pods at a time, by namespace/name.
func podPhasesAt(s *sim.Script, at time.Duration) map[string]string {
	pods := map[string]string{}
	for _, step := range s.Steps {
		phase, known := phaseAfterStep[step.Action]
		switch {
		case step.At > at || !known:
		case phase == "":
			delete(pods, step.Args[0])
		default:
			pods[step.Args[0]] = phase
		}
	}
	return pods
}

// kubeStateFamilies returns the metrics of kube-state-metrics for these pods.
func kubeStateFamilies(pods map[string]string) string {
	var text strings.Builder
	text.WriteString("# HELP kube_pod_status_phase [STABLE] The pods current phase.\n# TYPE kube_pod_status_phase gauge\n")
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		namespace, name, _ := strings.Cut(pod, "/")
		for _, phase := range podPhases {
			value := 0
			if pods[pod] == phase {
				value = 1
			}
			fmt.Fprintf(&text, "kube_pod_status_phase{namespace=%q,pod=%q,uid=%q,phase=%q} %d\n", namespace, name, "uid-of-"+name, phase, value)
		}
	}
	// Scripts lack a scheduler: a single pending pod requests two devices.
	text.WriteString("kube_pod_status_phase{namespace=\"team-f\",pod=\"waiting-0\",uid=\"uid-of-waiting-0\",phase=\"Pending\"} 1\n" +
		"# TYPE kube_pod_status_unschedulable gauge\nkube_pod_status_unschedulable{namespace=\"team-f\",pod=\"waiting-0\"} 1\n" +
		"# TYPE kube_pod_container_resource_requests gauge\n" +
		"kube_pod_container_resource_requests{namespace=\"team-f\",pod=\"waiting-0\",container=\"main\",resource=\"nvidia_com_gpu\"} 2\n")
	for family, value := range map[string]int{"desired_number_scheduled": 3, "number_ready": 2, "updated_number_scheduled": 3} {
		fmt.Fprintf(&text, "# TYPE kube_daemonset_status_%[1]s gauge\nkube_daemonset_status_%[1]s{namespace=\"gpu\",daemonset=\"podgauge\"} %[2]d\n", family, value)
	}
	return text.String()
}

// kubeStateMetrics starts an exporter for each cluster with the pods of its nodes, and returns the addresses.
func kubeStateMetrics(t *testing.T, nodes []*simNode, begun time.Time) map[string]string {
	t.Helper()
	addresses := map[string]string{}
	for _, first := range nodes {
		if addresses[first.cluster] != "" {
			continue
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			pods := map[string]string{}
			for _, n := range nodes {
				if n.cluster == first.cluster {
					maps.Copy(pods, podPhasesAt(n.script, time.Since(begun)))
				}
			}
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			fmt.Fprint(w, kubeStateFamilies(pods))
		}))
		t.Cleanup(server.Close)
		addresses[first.cluster] = strings.TrimPrefix(server.URL, "http://")
	}
	return addresses
}

// TestScripts checks that the nodes' scripts are valid, have pods and end early enough.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		if s := readScript(t, file); len(podPhasesAt(s, scriptDuration)) == 0 || s.Steps[len(s.Steps)-1].At > scriptDuration-6*scrapeInterval {
			t.Errorf("%s: no pods, or the last step is too late", file)
		}
	}
}
