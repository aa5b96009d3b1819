package openmetrics

import (
	"bytes"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v3"
)

// rulesFile has the alerts. The files *_test.yaml in its folder are for `promtool test rules`.
const rulesFile = "../../../deploy/rules/podgauge.rules.yaml"

// ruleTestFile has the used fields of a test file for promtool.
type ruleTestFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	GroupEvalOrder     []string       `yaml:"group_eval_order"` // of promtool; this test evaluates recorded series first
	Tests              []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	AlertRuleTest []ruleAlertTest `yaml:"alert_rule_test"`
}

type ruleAlertTest struct {
	EvalTime  model.Duration `yaml:"eval_time"`
	Alertname string         `yaml:"alertname"`
	ExpAlerts []struct {
		ExpLabels      map[string]string `yaml:"exp_labels"`
		ExpAnnotations map[string]string `yaml:"exp_annotations"` // compared by promtool
	} `yaml:"exp_alerts"`
}

// TestRules evaluates the rule tests with Prometheus' engine, so that no promtool is needed. promtool (`make dashboards-check`) also compares the
// annotations.
func TestRules(t *testing.T) {
	promQL := parser.NewParser(parser.Options{})
	rules := map[string]rulefmt.Rule{}
	for _, r := range alertRules(t) {
		rules[r.Alert] = r
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(rulesFile), "*_test.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("no tests of rules", err)
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promQL})
	cleared := map[string]bool{}
	for _, name := range files {
		file := readRuleTests(t, name)
		for _, test := range file.Tests {
			var recorded recordedSeries
			for _, s := range test.InputSeries {
				recorded.record(t, promQL, s.Series+" "+s.Values, time.Duration(test.Interval))
			}
			end := time.Duration(0)
			for _, want := range test.AlertRuleTest {
				end = max(end, time.Duration(want.EvalTime))
			}
			recorded.evaluateRecordings(t, engine, serviceRules(t), time.Duration(file.EvaluationInterval), end)
			seen := map[string]alertLifecycle{}
			for _, want := range test.AlertRuleTest {
				rule, ok := rules[want.Alertname]
				if !ok {
					t.Fatalf("%s: unknown rule %q", name, want.Alertname)
				}
				got := recorded.firingLabels(t, engine, rule, time.Duration(file.EvaluationInterval), time.Duration(want.EvalTime))
				if expected := want.expected(); !slices.Equal(got, expected) {
					t.Errorf("%s: %s at %s: got firing alerts\n%q, want\n%q", name, want.Alertname, want.EvalTime, got, expected)
				}
				seen[want.Alertname] = seen[want.Alertname].next(len(got) > 0)
			}
			for alert, l := range seen {
				cleared[alert] = cleared[alert] || l == alertCleared
			}
		}
	}
	for name := range rules {
		if !cleared[name] {
			t.Errorf("no test in which %s is silent, fires and clears", name)
		}
	}
}

// alertLifecycle is the progress of an alert in a test.
type alertLifecycle int

const (
	alertUnseen alertLifecycle = iota
	alertSilent
	alertFired
	alertCleared
)

// next returns the state after an evaluation.
func (l alertLifecycle) next(fires bool) alertLifecycle {
	switch {
	case l == alertUnseen && !fires:
		return alertSilent
	case l == alertSilent && fires:
		return alertFired
	case l == alertFired && !fires:
		return alertCleared
	}
	return l
}

// alertRules returns the alerts of the alerts' file.
func alertRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return slices.DeleteFunc(parseRules(t, readFile(t, rulesFile)), func(r rulefmt.Rule) bool { return r.Alert == "" })
}

// serviceRules returns the recording rules of the alerts' file, in order: the devices in service, and the expected links.
func serviceRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return slices.DeleteFunc(parseRules(t, readFile(t, rulesFile)), func(r rulefmt.Rule) bool { return r.Record == "" })
}

// parseRules parses rules with Prometheus' parser, which also checks the templates in annotations.
func parseRules(t *testing.T, text string) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse([]byte(text), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// readRuleTests reads a test file and rejects unknown fields.
func readRuleTests(t *testing.T, name string) ruleTestFile {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var file ruleTestFile
	strict := yaml.NewDecoder(bytes.NewReader(text))
	strict.KnownFields(true)
	if err := strict.Decode(&file); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(file.RuleFiles) != 1 || file.RuleFiles[0] != filepath.Base(rulesFile) {
		t.Fatalf("rule_files of %s: got %q", name, file.RuleFiles)
	}
	return file
}

// expected returns the labels of the expected alerts as sorted texts.
func (a ruleAlertTest) expected() []string {
	all := []string{}
	for _, e := range a.ExpAlerts {
		all = append(all, labels.FromMap(e.ExpLabels).String())
	}
	slices.Sort(all)
	return all
}

// recordedSeries is a list of series, usable as storage.
type recordedSeries []storage.Series

// floatPoint is a float sample. The methods for histograms are not used.
type floatPoint struct {
	chunks.Sample
	at    int64 // ms
	value float64
}

func (p floatPoint) T() int64               { return p.at }
func (floatPoint) ST() int64                { return 0 }
func (p floatPoint) F() float64             { return p.value }
func (floatPoint) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// record adds a series in promtool's notation, with a value for each interval.
func (s *recordedSeries) record(t *testing.T, promQL parser.Parser, text string, interval time.Duration) {
	t.Helper()
	metric, values, err := promQL.ParseSeriesDesc(text)
	if err != nil {
		t.Fatal(err)
	}
	var points []chunks.Sample
	for i, v := range values {
		if !v.Omitted {
			points = append(points, floatPoint{at: (time.Duration(i) * interval).Milliseconds(), value: v.Value})
		}
	}
	*s = append(*s, storage.NewListSeries(metric, points))
}

// evaluateRecordings adds the series of recording rules, evaluated in order at each interval, as in one group.
func (s *recordedSeries) evaluateRecordings(t *testing.T, engine *promql.Engine, rules []rulefmt.Rule, interval, end time.Duration) {
	t.Helper()
	type recording struct {
		metric labels.Labels
		index  int // in s
		points []chunks.Sample
	}
	all := map[string]*recording{}
	for now := time.Duration(0); now <= end; now += interval {
		for _, rule := range rules {
			current := map[string]float64{}
			for _, sample := range s.samples(t, engine, rule.Expr, now) {
				metric := labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, rule.Record).Labels()
				current[metric.String()] = sample.F
				if all[metric.String()] == nil {
					all[metric.String()] = &recording{metric: metric, index: len(*s)}
					*s = append(*s, nil)
				}
			}
			for key, r := range all {
				if r.metric.Get(model.MetricNameLabel) != rule.Record {
					continue
				}
				v, ok := current[key]
				if !ok {
					v = math.Float64frombits(value.StaleNaN)
				}
				r.points = append(r.points, floatPoint{at: now.Milliseconds(), value: v})
				(*s)[r.index] = storage.NewListSeries(r.metric, r.points)
			}
		}
	}
}

// firingLabels returns the labels of a rule's firing alerts at a time, with evaluations from the beginning.
func (s recordedSeries) firingLabels(t *testing.T, engine *promql.Engine, rule rulefmt.Rule, interval, end time.Duration) []string {
	t.Helper()
	var firing []string
	for _, alert := range s.evaluate(t, engine, rule, interval, end)[end/interval] {
		firing = append(firing, alert.String())
	}
	slices.Sort(firing)
	return firing
}

// activeAlert is the state of an alert between evaluations of its rule.
type activeAlert struct {
	labels              labels.Labels
	since, lastTrue     time.Duration
	firing, isTrueAgain bool
}

// evaluate evaluates a rule at each interval as Prometheus does, and returns the labels of the firing alerts of each evaluation.
func (s recordedSeries) evaluate(t *testing.T, engine *promql.Engine, rule rulefmt.Rule, interval, end time.Duration) (firing [][]labels.Labels) {
	t.Helper()
	active := map[string]*activeAlert{}
	for now := time.Duration(0); now <= end; now += interval {
		for _, series := range s.query(t, engine, rule.Expr, now) {
			alert := active[series.String()]
			if alert == nil {
				b := labels.NewBuilder(series)
				for name, value := range rule.Labels {
					b.Set(name, value)
				}
				alert = &activeAlert{labels: b.Labels(), since: now}
				active[series.String()] = alert
			}
			alert.lastTrue, alert.isTrueAgain = now, true
		}
		firing = append(firing, nil)
		for key, alert := range active {
			alert.firing = alert.firing || alert.isTrueAgain && now-alert.since >= time.Duration(rule.For)
			if !alert.isTrueAgain && (!alert.firing || now-alert.lastTrue > time.Duration(rule.KeepFiringFor)) {
				delete(active, key)
			} else if alert.firing {
				firing[len(firing)-1] = append(firing[len(firing)-1], alert.labels)
			}
			alert.isTrueAgain = false
		}
	}
	return firing
}

// query evaluates an expression and returns the labels of the result.
func (s recordedSeries) query(t *testing.T, engine *promql.Engine, expr string, now time.Duration) []labels.Labels {
	t.Helper()
	var found []labels.Labels
	for _, sample := range s.samples(t, engine, expr, now) {
		found = append(found, sample.Metric.DropReserved(func(name string) bool { return name == model.MetricNameLabel }))
	}
	return found
}

// samples evaluates an expression and returns the result.
func (s recordedSeries) samples(t *testing.T, engine *promql.Engine, expr string, now time.Duration) promql.Vector {
	t.Helper()
	query, err := engine.NewInstantQuery(t.Context(), s, nil, expr, time.UnixMilli(now.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("at %s: %v: %s", now, err, expr)
	}
	return slices.Clone(vector)
}

// Querier implements storage.Queryable. The engine selects the samples by time.
func (s recordedSeries) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := &recordedSeriesSet{next: -1}
		for _, one := range s {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Labels().Get(m.Name)) }) {
				found.recordedSeries = append(found.recordedSeries, one)
			}
		}
		return found
	}}, nil
}

// recordedSeriesSet is a storage.SeriesSet.
type recordedSeriesSet struct {
	recordedSeries
	next int
}

func (s *recordedSeriesSet) Next() bool                      { s.next++; return s.next < len(s.recordedSeries) }
func (s *recordedSeriesSet) At() storage.Series              { return s.recordedSeries[s.next] }
func (*recordedSeriesSet) Err() error                        { return nil }
func (*recordedSeriesSet) Warnings() annotations.Annotations { return nil }
