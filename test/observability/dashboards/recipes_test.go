package dashboards

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	autoscalePage = "../../../docs/how-to/autoscale.md"
	integratePage = "../../../docs/how-to/integrate.md"
)

// recipe has the fields of the examples that the test reads.
type recipe struct {
	Kind string
	Spec struct {
		Triggers []struct {
			Name     string
			Metadata struct{ Query string }
		}
		Metrics []struct {
			Pods struct{ Metric struct{ Name string } }
		}
	}
	Rules  struct{ Custom []adapterRule }
	Groups []any
}

// adapterRule is a rule of prometheus-adapter (https://github.com/kubernetes-sigs/prometheus-adapter/blob/master/docs/config.md).
type adapterRule struct {
	SeriesQuery  string `yaml:"seriesQuery"`
	MetricsQuery string `yaml:"metricsQuery"`
	Name         struct{ As string }
}

// expand returns the query for a metric of pods, as the adapter builds it.
func (r *adapterRule) expand(t *testing.T, namespace string, pods ...string) string {
	t.Helper()
	family, _, _ := strings.Cut(r.SeriesQuery, "{")
	var query strings.Builder
	expr, err := template.New("").Delims("<<", ">>").Parse(r.MetricsQuery)
	require.NoError(t, err)
	require.NoError(t, expr.Execute(&query, map[string]string{
		"Series": family, "GroupBy": "pod", "LabelMatchers": fmt.Sprintf("namespace=%q,pod=~%q", namespace, strings.Join(pods, "|")),
	}))
	return query.String()
}

var yamlBlock = regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```$")

// readRecipes returns the YAML blocks of a page, with their text.
func readRecipes(t *testing.T, page string) (all []recipe, texts []string) {
	t.Helper()
	for _, block := range yamlBlock.FindAllStringSubmatch(testfile.Read(t, page), -1) {
		var r recipe
		require.NoError(t, yaml.Unmarshal([]byte(block[1]), &r))
		all, texts = append(all, r), append(texts, block[1])
	}
	return all, texts
}

// openCostQueries are queries of OpenCost for a window of a minute, without a filter of clusters
// (https://github.com/opencost/opencost/tree/develop/modules/prometheus-source/pkg/prom, 2026-09).
var openCostQueries = map[string]string{
	"QueryGPUsUsageAvg":          `avg(avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{container!=""}[1m])) by (container, pod, namespace, uid, cluster_id)`,
	"QueryGPUsUsageMax":          `max(max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{container!=""}[1m])) by (container, pod, namespace, uid, cluster_id)`,
	"QueryGPUInfo":               `avg(avg_over_time(DCGM_FI_DEV_DEC_UTIL{container!="",}[1m])) by (container, pod, namespace, device, modelName, UUID, uid, cluster_id)`,
	"QueryGPUMemoryUsedRatioAvg": strings.ReplaceAll(`avg(avg_over_time(DCGM_FI_DEV_FB_USED{container!="",}[1m])) by (BY) / (avg(avg_over_time(DCGM_FI_DEV_FB_USED{container!="",}[1m])) by (BY) + avg(avg_over_time(DCGM_FI_DEV_FB_FREE{container!="",}[1m])) by (BY))`, "BY", "container, pod, namespace, device, modelName, UUID, GPU_I_PROFILE, GPU_I_ID, uid, cluster_id"),
	"QueryGPUXIDErrorCount":      `sum(changes(DCGM_FI_DEV_XID_ERRORS{container!="",}[1m])) by (container, pod, namespace, device, modelName, UUID, GPU_I_PROFILE, GPU_I_ID, uid, cluster_id)`,
}

// recipeRun is a Prometheus that scrapes the nodes of the recipes.
type recipeRun struct{ *dashboardRun }

// TestRecipes runs the queries in docs/how-to/autoscale.md, and OpenCost's with docs/how-to/integrate.md, in a real Prometheus.
func TestRecipes(t *testing.T) {
	skipUnlessEnabled(t)
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yml")
	recipes, texts := readRecipes(t, integratePage)
	withGroups := slices.IndexFunc(recipes, func(r recipe) bool { return len(r.Groups) > 0 })
	require.NoError(t, os.WriteFile(rules, []byte(texts[withGroups]), 0o600))
	nodes := []*simNode{
		startNode(t, "", "recipes-h100", "--mig-strategy=mixed", "--metrics.dcgm"),
		startNode(t, "", "recipes-t4", "--metrics.dcgm"),
	}
	nodes[0].waitForMetrics(t, "} 0.6\n")
	nodes[1].waitForMetrics(t, `pod="old-0"`)
	writePrometheusConfig(t, dir, scrapeConfig{honorLabels: true, rules: []string{rules}}, nodes, nil)
	client, _ := startPrometheus(t, dir, filepath.Join(dir, "data"))
	c := recipeRun{&dashboardRun{API: client, T: t}}
	program.WaitUntil(t, "Prometheus has the series of both nodes", func() bool {
		return len(c.query(`DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod="llm-6f5d8-ccccc"}`)) > 0 && len(c.query(`DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod="old-0"}`)) > 0
	})
	recipes, _ = readRecipes(t, autoscalePage)
	c.checkTriggers(recipes)
	c.checkAdapter(recipes)
	c.checkOpenCost()
}

func (c recipeRun) query(expr string) model.Vector {
	c.Helper()
	value, warnings, _, err := c.Query(c.Context(), expr, time.Now())
	if err != nil || len(warnings) > 0 {
		c.Fatalf("%s: %v %q", expr, err, warnings)
	}
	return value.(model.Vector)
}

// checkTriggers checks that each trigger has a single element, which KEDA's scaler requires, with the expected value. So do those with
// the other families of the page.
func (c recipeRun) checkTriggers(recipes []recipe) {
	c.Helper()
	got := map[string]float64{}
	for _, r := range recipes {
		for _, trigger := range r.Spec.Triggers {
			found := c.query(trigger.Metadata.Query)
			if len(found) != 1 {
				c.Fatalf("%s: got %d elements, want 1", trigger.Name, len(found))
			}
			got[trigger.Name] = float64(found[0].Value)
			for _, family := range regexp.MustCompile("`(nvidia_gpu_[a-z_]+_ratio)`").FindAllStringSubmatch(testfile.Read(c.T, autoscalePage), -1) {
				if other := strings.ReplaceAll(trigger.Metadata.Query, "nvidia_gpu_utilization_ratio", family[1]); len(c.query(other)) != 1 {
					c.Errorf("%s: not a single element: %s", trigger.Name, other)
				}
			}
		}
	}
	// Of llm-6f5d8-aaaaa and llm-6f5d8-bbbbb with two GPUs each, and llm-6f5d8-ccccc with a MIG device, which has no utilization and the simulated memory.
	expectValues(c.T, got, map[string]float64{"utilization": 0.95 + (0.95+0.6)/2, "saturation": 1, "memory": 78.0/80 + 79.0/80 + 36.0/79})
}

// checkAdapter checks that each rule has a value for each pod, and that the autoscaler reads these rules.
func (c recipeRun) checkAdapter(recipes []recipe) {
	c.Helper()
	got, metrics := map[string]float64{}, map[string]bool{}
	for _, r := range recipes {
		for _, m := range r.Spec.Metrics {
			metrics[m.Pods.Metric.Name] = true
		}
		for _, rule := range r.Rules.Custom {
			if len(c.query(rule.SeriesQuery)) == 0 {
				c.Errorf("no series %s", rule.SeriesQuery)
			}
			for _, sample := range c.query(rule.expand(c.T, "serving", "llm-6f5d8-aaaaa", "llm-6f5d8-bbbbb")) {
				got[rule.Name.As+" "+string(sample.Metric["pod"])] = float64(sample.Value)
			}
		}
	}
	expectValues(c.T, got, map[string]float64{
		"gpu_utilization llm-6f5d8-aaaaa": 0.95, "gpu_utilization llm-6f5d8-bbbbb": (0.95 + 0.6) / 2, "gpu_saturated llm-6f5d8-aaaaa": 1, "gpu_saturated llm-6f5d8-bbbbb": 0,
		"gpu_memory_used llm-6f5d8-aaaaa": 78.0 / 80, "gpu_memory_used llm-6f5d8-bbbbb": 79.0 / 80,
	})
	if want := map[string]bool{"gpu_utilization": true, "gpu_saturated": true, "gpu_memory_used": true}; !maps.Equal(metrics, want) {
		c.Errorf("metrics of the autoscaler: got %v, want %v", metrics, want)
	}
}

func expectValues(t *testing.T, got, want map[string]float64) {
	t.Helper()
	if !maps.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// checkOpenCost checks that OpenCost's queries have an element for each container with a device, and name the device.
func (c recipeRun) checkOpenCost() {
	c.Helper()
	owner := func(m model.Metric) string {
		return fmt.Sprintf("%s/%s/%s", m["namespace"], m["pod"], m["container"])
	}
	owners := func(name, expr string) []string {
		all := map[string]bool{}
		for _, sample := range c.query(expr) {
			all[owner(sample.Metric)] = true
			if name == "QueryGPUInfo" && (sample.Metric["device"] == "" || sample.Metric["modelName"] == "" || sample.Metric["UUID"] == "") {
				c.Errorf("%s: %s lacks a label of the device", name, sample.Metric)
			}
		}
		return slices.Sorted(maps.Keys(all))
	}
	if wrong := c.query("DCGM_FI_PROF_GR_ENGINE_ACTIVE > 1"); len(wrong) > 0 {
		c.Errorf("not a ratio: %v", wrong)
	}
	for name, query := range openCostQueries {
		allocations := "nvidia_gpu_allocation_info"
		if name == "QueryGPUInfo" {
			allocations += `{mig_uuid=""}`
		}
		if got, want := owners(name, query), owners("", allocations); !slices.Equal(got, want) || len(want) < 5 {
			c.Errorf("%s: got containers %q, want %q", name, got, want)
		}
	}
}
