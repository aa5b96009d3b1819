package chart

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestDocs checks that the chart accepts the values in the docs, and that the docs link each example.
func TestDocs(t *testing.T) {
	linked, settings := map[string]bool{}, 0
	for _, page := range []string{
		"docs/how-to/install.md", "docs/how-to/monitor.md", "docs/how-to/tls.md", "docs/how-to/mig.md", "docs/how-to/sharing.md",
		"deploy/helm/podgauge/README.md", "deploy/helm/podgauge/templates/NOTES.txt",
	} {
		text := testfile.Read(t, root+"/"+page)
		for _, match := range regexp.MustCompile("(?:--set |`)([A-Za-z][A-Za-z.]*)=([^ \n`]*)").FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "nvidia.") || strings.HasPrefix(match[1], "gfd.") {
				continue // a node's label, or a value for NVIDIA's chart
			}
			settings++
			values, err := strvals.Parse(match[1] + "=" + strings.Trim(match[2], `"`))
			require.NoError(t, err)
			if _, _, err := renderChart(string(mustJSON(t, values))); err != nil {
				t.Errorf("%s: %s=%s: %v", page, match[1], match[2], err)
			}
		}
		for _, match := range exampleLink.FindAllStringSubmatch(text, -1) {
			linked[match[1]] = true
		}
	}
	if settings < 10 {
		t.Errorf("got %d values, want at least 10", settings)
	}
	examples, err := filepath.Glob(chartDir + "/examples/*.yaml")
	if err != nil || len(examples) < 10 {
		t.Errorf("got %d examples, want at least 10: %v", len(examples), err)
	}
	for _, path := range examples {
		if name := filepath.Base(path); !linked[name] {
			t.Errorf("no page links the example %s", name)
		}
	}
}

var exampleLink = regexp.MustCompile(`\]\([^)]*/examples/(\w[\w-]*\.yaml)\)`)

// TestScrapeConfig checks that the scrape job selects the chart's pods and relabels as the monitors do.
func TestScrapeConfig(t *testing.T) {
	var file struct {
		Jobs []struct {
			Honor     bool `json:"honor_labels"`
			Discovery []struct {
				Selectors []struct {
					Label string `json:"label"`
				} `json:"selectors"`
			} `json:"kubernetes_sd_configs"`
			Relabel []struct {
				Source []string `json:"source_labels"`
				Regex  string   `json:"regex"`
				Action string   `json:"action"`
				Target string   `json:"target_label"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(testfile.Read(t, root+"/deploy/prometheus/scrape.yaml")), &file); err != nil || len(file.Jobs) != 1 {
		t.Fatalf("got %d jobs, want 1: %v", len(file.Jobs), err)
	}
	job, pod := file.Jobs[0], decodeAll[apps.DaemonSet](t, mustRender(t))[0].Spec.Template
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
		hasPort := slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p core.ContainerPort) bool { return p.Name == r.Regex })
		port = port || r.Action == "keep" && r.Source[0] == "__meta_kubernetes_pod_container_port_name" && hasPort
	}
	if !node || !port {
		t.Errorf("the job sets the label node: %v; selects the port: %v; want both", node, port)
	}
}
