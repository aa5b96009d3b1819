package openmetrics

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"

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

func profilingRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return parseRules(t, testfile.Read(t, profilingFile))
}

// TestProfilingRules runs the tests of the rules without promtool, with a newer Prometheus.
func TestProfilingRules(t *testing.T) { runRuleTests(t, profilingTests, profilingRules(t)) }

// TestCostRules does the same for GPUs by owner, cost and capacity.
func TestCostRules(t *testing.T) {
	runRuleTests(t, costTests, parseRules(t, testfile.Read(t, costFile)))
}

func runRuleTests(t *testing.T, name string, rules []rulefmt.Rule) {
	t.Helper()
	file := readRuleTests(t, name)
	interval := time.Duration(file.EvaluationInterval)
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			series := newHistory()
			for _, s := range test.InputSeries {
				series.add(t, s.Series, s.Values, time.Duration(test.Interval))
			}
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
					if err != nil {
						t.Fatal(err)
					}
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
	for _, r := range profilingRules(t) {
		known, wrong := families.checkExpr(r.Expr)
		for name, value := range r.Labels {
			known[name] = labelValueSet{value: true}
		}
		if got, want := slices.Sorted(maps.Keys(known)), levelLabels(r.Record); !slices.Equal(got, want) {
			t.Errorf("labels of %s: got %s, want %s", r.Record, got, want)
		}
		for _, problem := range append(wrong, dropsCluster(parseExpr(t, r.Expr))...) {
			t.Errorf("%s: %s", r.Record, problem)
		}
		if r.Record == profilingOwner {
			families[r.Record] = known
		} else if fields := dcgmField.FindAllString(r.Expr, -1); len(fields) != 2 || fields[0] == fields[1] {
			t.Errorf("%s: got fields %v, want the names of 4.8 and 4.9", r.Record, fields)
		}
	}
}
