package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDocs checks that the chart accepts the values in the docs, and that the docs' links are valid.
func TestDocs(t *testing.T) {
	linked := map[string]bool{}
	guides := root + "/docs/how-to/"
	for _, page := range []string{guides + "install.md", guides + "monitor.md", guides + "tls.md", chartDir + "/README.md", chartDir + "/templates/NOTES.txt"} {
		text, settings := read(t, page), 0
		for _, match := range regexp.MustCompile("(?:--set |`)([A-Za-z][A-Za-z.]*)=([^ \n`]*)").FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "nvidia.") || strings.HasPrefix(match[1], "gfd.") {
				continue // a node's label, or a value for NVIDIA's chart
			}
			settings++
			values, err := strvals.Parse(match[1] + "=" + strings.Trim(match[2], `"`))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := renderChart(string(mustJSON(t, values))); err != nil {
				t.Errorf("%s: %s=%s: %v", page, match[1], match[2], err)
			}
		}
		if settings == 0 && !strings.HasSuffix(page, ".txt") {
			t.Errorf("%s: no values found", page)
		}
		for _, match := range regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			path := filepath.Join(filepath.Dir(page), match[1])
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			linked[filepath.Base(path)] = true
		}
	}
	for _, path := range []string{"openshift", "eks", "gke", "aks", "k0s", "microk8s", "rke2", "gpu-operator", "tls", "prometheus-operator"} {
		if !linked[path+".yaml"] {
			t.Errorf("no page links the example %s", path)
		}
	}
}

// TestScrapeConfig checks that the scrape job selects the chart's pods and relabels as the monitors do.
func TestScrapeConfig(t *testing.T) {
	type selector struct {
		Role  string `json:"role"`
		Label string `json:"label"`
	}
	type discovery struct {
		Role      string     `json:"role"`
		Selectors []selector `json:"selectors"`
	}
	type relabel struct {
		Source []string `json:"source_labels"`
		Regex  string   `json:"regex"`
		Action string   `json:"action"`
		Target string   `json:"target_label"`
	}
	var file struct {
		Jobs []struct {
			Name      string      `json:"job_name"`
			Honor     bool        `json:"honor_labels"`
			Discovery []discovery `json:"kubernetes_sd_configs"`
			Relabel   []relabel   `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, root+"/deploy/prometheus/scrape.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	pod := decodeAll[apps.DaemonSet](t, mustRender(t))[0].Spec.Template
	for _, job := range file.Jobs {
		if !job.Honor {
			t.Error("the job lacks honor_labels, so that the label pod is podgauge's pod")
		}
		name, want, _ := strings.Cut(job.Discovery[0].Selectors[0].Label, "=")
		if pod.Labels[name] != want {
			t.Errorf("the selector %s=%s does not match the pod's labels %v", name, want, pod.Labels)
		}
		var node, port bool
		for _, r := range job.Relabel {
			node = node || r.Target == "node" && r.Source[0] == "__meta_kubernetes_pod_node_name"
			port = port || r.Action == "keep" && r.Source[0] == "__meta_kubernetes_pod_container_port_name" && hasPort(pod.Spec.Containers[0], r.Regex)
		}
		if !node || !port {
			t.Errorf("the job sets the label node: %v; selects the port: %v; want both", node, port)
		}
	}
	if len(file.Jobs) != 1 {
		t.Errorf("got %d jobs, want 1", len(file.Jobs))
	}
}

func hasPort(c core.Container, port string) bool {
	for _, p := range c.Ports {
		if p.Name == port {
			return true
		}
	}
	return false
}
