package openmetrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// expectedEmpty are the panels with queries that the golden files' nodes answer with nothing, and why.
var expectedEmpty = map[string]string{
	"Plugin response time":  "the golden files omit durations",
	"Kubelet response time": "the golden files omit durations",
	"Registrations":         "no registration is repeated",
	"Rejected requests":     "no request is rejected",
	"Throttled, by reason":  "counters are constant",
	"Kubelet errors":        "the golden files omit failed requests",
	"Required actions":      "no action is required",
	"PCIe errors":           "no errors",
}

// TestDashboardsAnswer asks what the dashboards ask of a fleet that has each golden file as a
// node, by Prometheus' own engine: joins that have two partners fail there, and a query that
// comes to nothing shows.
func TestDashboardsAnswer(t *testing.T) {
	nodes := loadFleet(t)
	promQL := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promQL})
	for _, r := range recordingRules(t) {
		level, _, _ := strings.Cut(r.Record, ":")
		for _, of := range nodes.query(t, engine, r.Expr, steadyDuration) {
			nodes.addConstant(labels.NewBuilder(of).Set(model.MetricNameLabel, r.Record).Labels(), 1)
			if of.Len() > len(strings.Split(level, "_")) {
				t.Errorf("%s: %s", r.Record, of)
			}
		}
	}
	files, err := filepath.Glob("../../../dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	all := strings.NewReplacer("$__range", "30m", "$__rate_interval", "5m", "$node", ".*", "$gpu", ".*", "$namespace", ".+", "$pod", ".+", "$container", ".+")
	quiet := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b dashboardModel
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Panels {
			for _, q := range p.Targets {
				if len(nodes.query(t, engine, all.Replace(q.Expr), steadyDuration)) > 0 {
					continue
				}
				quiet[p.Title]++
				if expectedEmpty[p.Title] == "" {
					t.Errorf("%s: %s: nothing comes of %s", filepath.Base(file), p.Title, q.Expr)
				}
			}
		}
	}
	for title := range expectedEmpty {
		if quiet[title] == 0 {
			t.Errorf("%s: each query is answered, or there is no such panel", title)
		}
	}
}

// TestRecordingRulesCount: joined with their models, and summed up, devices are as many as they
// are by themselves, whole GPUs, slices and shared ones, held or not.
func TestRecordingRulesCount(t *testing.T) {
	nodes := loadFleet(t)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{})})
	const whole = ` and on (node) nvidia_gpu_info` // some golden files are of a few families
	each := map[string]string{
		"node_model:podgauge_devices:count":               `nvidia_gpu_healthy >= bool 0`,
		"node_model:podgauge_devices_allocated:sum":       `nvidia_gpu_allocated`,
		"node_model:podgauge_devices_unhealthy:sum":       `nvidia_gpu_healthy == bool 0`,
		"node_model:nvidia_gpu_utilization_ratio:sum":     `nvidia_gpu_utilization_ratio`,
		"node_model:nvidia_gpu_utilization_ratio:count":   `nvidia_gpu_utilization_ratio >= bool 0`,
		"node_model:nvidia_gpu_power_watts:sum":           `nvidia_gpu_power_watts`,
		"node_model:nvidia_gpu_memory_used_bytes:sum":     `nvidia_gpu_memory_used_bytes{mig_uuid=""}`,
		"node_namespace:podgauge_devices_allocated:count": `max by (node, namespace, uuid, mig_uuid) (nvidia_gpu_allocation_info)`,
	}
	for _, r := range recordingRules(t) {
		if want := each[r.Record]; want != "" {
			delete(each, r.Record)
			if len(nodes.query(t, engine, `abs(sum((`+r.Expr+`)`+whole+`) - sum((`+want+`)`+whole+`)) < 1e-6`, steadyDuration)) == 0 {
				t.Errorf("%s is not %s", r.Record, want)
			}
		}
	}
	if len(each) > 0 {
		t.Errorf("no rule is called %v", each)
	}
}

// steadyDuration is for how long the fleet has stood still.
const steadyDuration = 40 * time.Minute

// addConstant adds a series that has had one value all the time.
func (s *recordedSeries) addConstant(of labels.Labels, value float64) {
	var points []chunks.Sample
	for at := time.Duration(0); at <= steadyDuration; at += 2 * time.Minute {
		points = append(points, floatPoint{at: at.Milliseconds(), value: value})
	}
	*s = append(*s, storage.NewListSeries(of, points))
}

// excludedFamilies are families that the golden files leave out, since they differ from run to run.
var excludedFamilies = []string{"podgauge_build_info", "podgauge_events_up", "podgauge_series", "process_cpu_seconds_total", "process_resident_memory_bytes"}

// loadFleet has each golden file as a node, and some of what others write of it.
func loadFleet(t *testing.T) recordedSeries {
	t.Helper()
	files, err := filepath.Glob("../../../internal/app/testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	promQL := parser.NewParser(parser.Options{})
	var nodes recordedSeries
	failed := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		node := strings.TrimSuffix(filepath.Base(file), ".prom")
		target := func(metric labels.Labels) *labels.Builder {
			return labels.NewBuilder(metric).Set("node", node).Set("instance", node).Set("job", "podgauge")
		}
		for _, name := range excludedFamilies {
			nodes.addConstant(target(labels.FromStrings(model.MetricNameLabel, name)).Labels(), 1)
		}
		for line := range strings.Lines(string(text)) {
			end := strings.LastIndex(line, " ")
			if strings.HasPrefix(line, "#") || end < 0 {
				continue
			}
			metric, err := promQL.ParseMetric(line[:end])
			if err != nil {
				t.Fatalf("%s: %s: %v", file, line, err)
			}
			value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
			if err != nil {
				t.Fatalf("%s: %s: %v", file, line, err)
			}
			nodes.addConstant(target(metric).Labels(), value)
			if pod := metric.Get("namespace") + "/" + metric.Get("pod"); metric.Get("pod") != "" && !failed[pod] {
				failed[pod] = true
				nodes.addConstant(labels.FromStrings(model.MetricNameLabel, "kube_pod_status_phase",
					"namespace", metric.Get("namespace"), "pod", metric.Get("pod"), "phase", "Failed"), 1)
			}
		}
	}
	return nodes
}
