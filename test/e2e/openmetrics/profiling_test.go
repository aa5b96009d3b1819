package openmetrics

import (
	"maps"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	profilingFile  = "../../../deploy/rules/podgauge.profiling.yaml"
	profilingTests = "../../../deploy/rules/podgauge-profiling_test.yaml"
	costTests      = "../../../deploy/rules/podgauge-cost_test.yaml"
	profilingOwner = "device_container_gi:podgauge_profiling_owner:group3m"
)

// dcgmField matches the names of dcgm-exporter's profiling fields.
var dcgmField = regexp.MustCompile(`DCGM_FI_PROF_[A-Z0-9_]+`)

// TestProfilingRules runs the tests of the rules without promtool, with a newer Prometheus.
func TestProfilingRules(t *testing.T) { runExprTests(t, profilingTests, rulesOf(t, profilingFile)) }

// TestCostRules does the same for GPUs by owner, cost and capacity.
func TestCostRules(t *testing.T) { runExprTests(t, costTests, rulesOf(t, costFile)) }

// TestCostLabels checks the rules with a label of pods, as the chart's value prometheusRule.costLabels changes them. A pod whose label
// changes has one value of it, and pods without the label count without.
func TestCostLabels(t *testing.T) {
	text := regexp.MustCompile(`by \(cluster, namespace`).ReplaceAllString(testfile.Read(t, costFile), "$0, label_team")
	text = strings.NewReplacer("# labels: ", "", "LABELS", "label_team").Replace(text)
	series := newHistory()
	for _, s := range []string{
		`nvidia_gpu_info{node="a",uuid="GPU-0",mig_uuid="",model="H100"}`,
		`nvidia_gpu_allocation_info{node="a",uuid="GPU-0",mig_uuid="",namespace="n",pod="p",container="c",label_team="x"}`,
		`nvidia_gpu_allocation_info{node="a",uuid="GPU-0",mig_uuid="",namespace="n",pod="q",container="c",label_team="y"}`,
		`nvidia_gpu_allocation_info{node="a",uuid="GPU-0",mig_uuid="",namespace="n",pod="q",container="c",label_team="z"}`,
		`nvidia_gpu_allocation_info{node="a",uuid="GPU-0",mig_uuid="",namespace="n",pod="r",container="c"}`,
		`kube_pod_status_phase{namespace="n",pod="s",phase="Pending"}`, `kube_pod_labels{namespace="n",pod="s",label_team="x"}`,
		`kube_pod_container_resource_requests{namespace="n",pod="s",container="c",resource="nvidia_com_gpu"}`,
		`kube_pod_status_phase{namespace="n",pod="t",phase="Pending"}`,
		`kube_pod_container_resource_requests{namespace="n",pod="t",container="c",resource="nvidia_com_gpu"}`,
	} {
		series.add(t, s, "1x5", time.Minute)
	}
	for pod, part := range map[string]string{"p": "0.5x5", "q": "0.25x5", "r": "0.125x5"} {
		series.add(t, `nvidia_gpu_allocation_ratio{node="a",uuid="GPU-0",mig_uuid="",namespace="n",pod="`+pod+`",container="c"}`, part, time.Minute)
	}
	series.evaluate(t, parseRules(t, text), time.Minute, 4*time.Minute)
	got := map[string]float64{}
	for _, sample := range series.query(t, `namespace:podgauge_gpus_requested:sum`, 4*time.Minute) {
		got[sample.Metric.Get("label_team")] = sample.F
	}
	moved := got["y"] + got["z"] // one of both
	delete(got, "y")
	delete(got, "z")
	if want := map[string]float64{"x": 1.5, "": 1.125}; !maps.Equal(got, want) || moved != 0.25 {
		t.Errorf("got %v and %v for the changed label, want %v and 0.25", got, moved, want)
	}
}

// runExprTests runs the tests of queries in a file, with the rules in order.
func runExprTests(t *testing.T, name string, rules []rulefmt.Rule) {
	t.Helper()
	file := readRuleTests(t, name)
	interval := time.Duration(file.EvaluationInterval)
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			series := test.history(t)
			end := time.Duration(0)
			for _, want := range test.PromQLExprTest {
				end = max(end, time.Duration(want.EvalTime))
			}
			series.evaluate(t, rules, interval, end)
			for _, want := range test.PromQLExprTest {
				got, expected := map[string]float64{}, map[string]float64{}
				for _, sample := range series.query(t, want.Expr, time.Duration(want.EvalTime)) {
					got[sample.Metric.String()] = sample.F
				}
				for _, sample := range want.ExpSamples {
					metric, err := promQL.ParseMetric(sample.Labels)
					require.NoError(t, err)
					expected[metric.String()] = sample.Value
				}
				if !maps.EqualFunc(got, expected, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
					t.Errorf("%s at %s: got %v, want %v", want.Expr, want.EvalTime, got, expected)
				}
			}
		})
	}
}

// TestProfilingRuleNames checks that the rules have podgauge's families and labels, and that their names have the labels.
func TestProfilingRuleNames(t *testing.T) {
	families := readCatalogue(t)
	for _, field := range dcgmField.FindAllString(testfile.Read(t, profilingFile), -1) {
		families.add(field, "UUID", "GPU_I_ID")
	}
	for _, r := range rulesOf(t, profilingFile) {
		families.checkRecording(t, r, levelLabels(r.Record))
		fields := dcgmField.FindAllString(r.Expr, -1)
		if r.Record != profilingOwner && (len(fields) != 2 || fields[0] == fields[1]) {
			t.Errorf("%s: got fields %v, want the names of 4.8 and 4.9", r.Record, fields)
		}
	}
}
