package openmetrics

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	rulesFile      = "../../../deploy/rules/podgauge.rules.yaml"
	recordingsFile = "../../../deploy/rules/podgauge.recording.yaml"
	jobsFile       = "../../../deploy/rules/podgauge.jobs.yaml"
	costFile       = "../../../deploy/rules/podgauge.cost.yaml"
	ruleTests      = "../../../deploy/rules/*_test.yaml"
)

// ruleTestFile has the used fields of a test file for `promtool test rules`.
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
	AlertRuleTest  []ruleAlertTest `yaml:"alert_rule_test"`
	PromQLExprTest []ruleExprTest  `yaml:"promql_expr_test"`
}

// history returns the series of a test.
func (test *ruleTest) history(t *testing.T) *history {
	t.Helper()
	h := newHistory()
	for _, s := range test.InputSeries {
		h.add(t, s.Series, s.Values, time.Duration(test.Interval))
	}
	return h
}

// ruleExprTest is a query of recorded series.
type ruleExprTest struct {
	Expr       string         `yaml:"expr"`
	EvalTime   model.Duration `yaml:"eval_time"`
	ExpSamples []struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	} `yaml:"exp_samples"`
}

type ruleAlertTest struct {
	EvalTime  model.Duration `yaml:"eval_time"`
	Alertname string         `yaml:"alertname"`
	ExpAlerts []struct {
		ExpLabels      map[string]string `yaml:"exp_labels"`
		ExpAnnotations map[string]string `yaml:"exp_annotations"` // compared by promtool
	} `yaml:"exp_alerts"`
}

// TestRules runs the tests in deploy/rules without promtool, and requires that each alert is silent, fires and clears in a test. promtool
// (`make dashboards-check`) also compares the annotations.
func TestRules(t *testing.T) {
	alerts := map[string]rulefmt.Rule{}
	for _, r := range alertRules(t) {
		alerts[r.Alert] = r
	}
	cleared := map[string]bool{}
	for _, name := range filesOf(t, ruleTests) {
		file := readRuleTests(t, name)
		interval := time.Duration(file.EvaluationInterval)
		for _, test := range file.Tests {
			series := test.history(t)
			tested := recordingsOf(t, rulesFile)
			if slices.Contains(file.RuleFiles, filepath.Base(jobsFile)) {
				tested = append(tested, recordingsOf(t, jobsFile)...)
			}
			end := time.Duration(0)
			states := map[string]string{} // by alert: "F" for each time at which it fires, "S" if it is silent
			for _, want := range test.AlertRuleTest {
				rule, ok := alerts[want.Alertname]
				if !ok {
					t.Fatalf("%s: unknown rule %q", name, want.Alertname)
				}
				if _, ok := states[rule.Alert]; !ok {
					states[rule.Alert] = ""
					tested = append(tested, rule)
				}
				end = max(end, time.Duration(want.EvalTime))
			}
			firing := series.evaluate(t, tested, interval, end)
			for _, want := range test.AlertRuleTest {
				got := firingOf(want.Alertname, firing[time.Duration(want.EvalTime)/interval])
				expect.EqualSlices(t, got, want.expected(), name, want.Alertname, "at", want.EvalTime)
				states[want.Alertname] += map[bool]string{false: "S", true: "F"}[len(got) > 0]
			}
			for alert, seen := range states {
				cleared[alert] = cleared[alert] || regexp.MustCompile("S.*F.*S").MatchString(seen)
			}
		}
	}
	for name := range alerts {
		if !cleared[name] {
			t.Errorf("no test in which %s is silent, fires and clears", name)
		}
	}
}

// firingOf returns the labels of an alert's firing alerts as sorted texts.
func firingOf(name string, firing []labels.Labels) []string {
	found := []string{}
	for _, alert := range firing {
		if alert.Get(model.AlertNameLabel) == name {
			found = append(found, alert.String())
		}
	}
	slices.Sort(found)
	return found
}

// expected returns the labels of the expected alerts as sorted texts.
func (a ruleAlertTest) expected() []string {
	all := []string{}
	for _, e := range a.ExpAlerts {
		all = append(all, labels.NewBuilder(labels.FromMap(e.ExpLabels)).Set(model.AlertNameLabel, a.Alertname).Labels().String())
	}
	slices.Sort(all)
	return all
}

// alertRules returns the alerts of all files.
func alertRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	all := append(rulesOf(t, rulesFile), rulesOf(t, jobsFile)...)
	return slices.DeleteFunc(all, func(r rulefmt.Rule) bool { return r.Alert == "" })
}

// recordingsOf returns the recording rules of a file, in order. Those of the alerts' file are the devices in service, and the expected links.
func recordingsOf(t *testing.T, file string) []rulefmt.Rule {
	t.Helper()
	return slices.DeleteFunc(rulesOf(t, file), func(r rulefmt.Rule) bool { return r.Record == "" })
}

func recordingRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return append(rulesOf(t, recordingsFile), rulesOf(t, costFile)...)
}

func rulesOf(t *testing.T, file string) []rulefmt.Rule {
	t.Helper()
	return parseRules(t, testfile.Read(t, file))
}

// parseRules parses rules with Prometheus' parser, which also checks the templates in annotations.
func parseRules(t *testing.T, text string) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.Parse([]byte(text), false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no rules")
	}
	return all
}

// readRuleTests reads a test file and rejects unknown fields.
func readRuleTests(t *testing.T, name string) (file ruleTestFile) {
	t.Helper()
	strict := yaml.NewDecoder(bytes.NewReader([]byte(testfile.Read(t, name))))
	strict.KnownFields(true)
	if err := strict.Decode(&file); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	known := []string{
		filepath.Base(rulesFile), filepath.Base(recordingsFile), filepath.Base(jobsFile), filepath.Base(reliabilityFile), filepath.Base(costFile), filepath.Base(profilingFile),
	}
	if isUnknown := func(f string) bool { return !slices.Contains(known, f) }; slices.ContainsFunc(file.RuleFiles, isUnknown) {
		t.Fatalf("rule_files of %s: got %q", name, file.RuleFiles)
	}
	return file
}

// TestPromQLPage checks that the queries in docs/reference/promql.md are valid and use existing families and labels.
func TestPromQLPage(t *testing.T) {
	families := readCatalogue(t)
	queries := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(testfile.Read(t, "../../../docs/reference/promql.md"), -1)
	if len(queries) < 15 {
		t.Fatalf("got %d queries, want at least 15", len(queries))
	}
	for _, query := range queries {
		if _, wrong := families.checkExpr(query[1]); len(wrong) > 0 {
			t.Errorf("%s%q", query[1], wrong)
		}
	}
}
