package dashboards

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// For how long the scripts are watched, and then the alerts that tell of nobody's being there.
const (
	scriptDuration   = 190 * time.Second
	shutdownDuration = 6 * scrapeInterval
)

// skipUnlessEnabled skips what takes minutes, and what a machine with Go alone lacks.
func skipUnlessEnabled(t *testing.T) {
	t.Helper()
	if os.Getenv("PODGAUGE_DASHBOARDS") == "" {
		t.Skip("make dashboards-check runs it")
	}
}

// dashboardRun is one run.
type dashboardRun struct {
	prometheus.API
	*testing.T
	panelRange
	queryCount, seriesCount int
}

// TestDashboardsAnswer: real Prometheus scrapes nodes on which the scripts have things happen.
// Each query of the dashboards, each recording rule and each alert has to come to something.
func TestDashboardsAnswer(t *testing.T) {
	skipUnlessEnabled(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	nodes := startNodes(t, dir)
	begun := time.Now()
	scrape := nodes[0].waitForMetrics(t, `pod="serve.v2-0"`, `pod="notebook-0"`, `pod="embed-1"`)
	samples := backfill(t, dir, data, nodes[0], scrape, time.Now())
	writePrometheusConfig(t, dir, nodes, kubeStateMetrics(t, nodes, begun))
	asks, url := startPrometheus(t, dir, data)
	c := &dashboardRun{API: asks, T: t}
	c.begin = time.Now()
	t.Logf("%d samples of the past; Prometheus after %s", samples, time.Since(begun).Round(time.Second))

	told := c.collectAlerts(begun.Add(scriptDuration))
	c.end = time.Now()
	c.checkDashboards(readDashboards(t))
	c.checkTables(readDashboards(t))
	c.checkRecordings(readRules(t, recordingsFile))
	c.checkBackfill(url, filepath.Join(dir, "recorded"))
	for _, n := range nodes {
		if err := n.stop(); err != nil {
			t.Errorf("%s: %v", n.name, err)
		}
	}
	c.checkAlerts(append(told, c.collectAlerts(time.Now().Add(shutdownDuration))...))
	t.Logf("%d queries, %d series came of them; %d alerts; %s", c.queryCount, c.seriesCount, len(readRules(t, rulesFile)), time.Since(begun).Round(time.Second))
}

// startNodes starts them all; the first is the one that gets a past.
func startNodes(t *testing.T, dir string) []*simNode {
	t.Helper()
	shared := filepath.Join(dir, "shared.yaml")
	unwritable := filepath.Join(dir, "state")
	for file, text := range map[string]string{
		unwritable: "a file, where a folder should be",
		shared:     "version: v1\nsharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n    resources: [{name: nvidia.com/gpu, replicas: 2}]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []*simNode{
		startNode(t, "east", "node-a", "--mig-strategy=mixed", "--state-dir="+filepath.Join(dir, "a")),
		startNode(t, "west", "node-b", "--config-file="+shared, "--expected-gpus=64"),
		startNode(t, "east", "node-c", "--state-dir="+filepath.Join(unwritable, "c"), "--metrics.series-limit=250"),
	}
}

// collectAlerts takes down the alerts until a time.
func (c *dashboardRun) collectAlerts(end time.Time) (all []prometheus.Alert) {
	for time.Now().Before(end) {
		all = append(all, c.alerts()...)
		sleepUntil(c.Context(), time.Now().Add(scrapeInterval))
	}
	return all
}

func (c *dashboardRun) alerts() []prometheus.Alert {
	c.Helper()
	now, err := c.Alerts(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return now.Alerts
}

// alertStates is how far alerts have come, by name and node.
type alertStates map[string]map[string]prometheus.AlertState

func alertStatesOf(all []prometheus.Alert) alertStates {
	active := alertStates{}
	for _, a := range all {
		name, on := string(a.Labels["alertname"]), string(a.Labels["node"])
		if active[name] == nil {
			active[name] = map[string]prometheus.AlertState{}
		}
		if active[name][on] != prometheus.AlertStateFiring {
			active[name][on] = a.State
		}
	}
	return active
}

// alertErrors are alerts that were not active where they were to be, and what alerts say that is
// not whole.
func alertErrors(expected map[string]expectedAlert, all []prometheus.Alert) (wrong []string) {
	active, said := alertStatesOf(all), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		if _, ok := active[name][expected[name].node]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s was not active on %q, but on %v", name, expected[name].node, active[name]))
		}
	}
	for _, a := range all {
		for of, text := range a.Annotations {
			if text == "" || strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "<error") {
				said[fmt.Sprintf("%s: %s: %q", a.Labels["alertname"], of, text)] = true
			}
		}
	}
	return append(wrong, slices.Sorted(maps.Keys(said))...)
}

// checkAlerts checks the alerts of a run.
func (c *dashboardRun) checkAlerts(all []prometheus.Alert) {
	expected := expectedAlerts(c.T)
	for _, wrong := range alertErrors(expected, all) {
		c.Error(wrong)
	}
	firing := 0
	for _, on := range alertStatesOf(all) {
		if slices.Contains(slices.Collect(maps.Values(on)), prometheus.AlertStateFiring) {
			firing++
		}
	}
	c.Logf("%d of %d alerts have fired, the others were pending: %v", firing, len(expected), alertStatesOf(all))
}

// checkRecordings wants series of each rule, of this run.
func (c *dashboardRun) checkRecordings(all []alertOrRecording) {
	for _, r := range all {
		if n := c.countAt(r.Record, c.end); n == 0 {
			c.Errorf("%s has no series", r.Record)
		}
	}
	c.Logf("%d recording rules", len(all))
}

// checkBackfill has promtool work the rules out over the past, as docs/reference/dashboards.md says.
func (c *dashboardRun) checkBackfill(url, blocks string) {
	end := c.begin.Add(-10 * time.Minute)
	out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "rules", "--url="+url, "--output-dir="+blocks,
		"--start="+end.Add(-2*time.Hour).Format(time.RFC3339), "--end="+end.Format(time.RFC3339), recordingsFile).CombinedOutput()
	made, globErr := filepath.Glob(blocks + "/*/meta.json")
	if err != nil || globErr != nil || len(made) == 0 {
		c.Errorf("promtool has made %d blocks of the past: %v\n%s", len(made), err, tail(string(out), 2000))
	}
}

// selection is a state of a dashboard's variables.
type selection struct {
	offered   map[string][]string
	all, each variableValues // with All where it can be chosen, and with each value chosen
}

// checkDashboards asks what the dashboards ask: with All, with each value chosen, and with each alone.
func (c *dashboardRun) checkDashboards(all []*dashboardFile) {
	answered := map[string]bool{}
	for _, b := range all {
		selections := c.selections(b)
		for _, q := range b.queries() {
			n, chosen := 0, 0
			for _, s := range selections {
				n += c.countPanelSeries(q, s.all)
				chosen += c.countPanelSeries(q, s.each)
			}
			answered[q.location] = n > 0
			c.seriesCount += n
			if n == 0 && expectedEmpty[q.location] == "" {
				c.Errorf("%s: nothing comes of %s", q.location, q.Expr)
			}
			if n > 0 && chosen == 0 && expectedEmpty[q.location] == "" {
				c.Errorf("%s: nothing comes of it where each value is chosen, in place of All: %s", q.location, q.Expr)
			}
			c.checkValues(q, selections[0].all)
		}
		c.checkSingleValues(b, selections)
	}
	for _, where := range slices.Sorted(maps.Keys(expectedEmpty)) {
		if answered[where] {
			c.Errorf("%s: it is said to be empty, and is answered", where)
		}
	}
}

// selections returns the selections of a dashboard: one, or one for each value of the variable that has a single value.
func (c *dashboardRun) selections(b *dashboardFile) []selection {
	all := []selection{{map[string][]string{}, variableValues{}, variableValues{}}}
	for _, v := range b.Templating.List {
		offered := false
		var next []selection
		for _, s := range all {
			switch {
			case v.Type == "textbox":
				s.all[v.Name], s.each[v.Name] = price, price
			case v.Type != "query":
			default:
				found := c.labelValues(b, v, s.all)
				offered = offered || len(found) > 0
				if !v.Multi {
					for _, value := range found {
						one := selection{maps.Clone(s.offered), maps.Clone(s.all), maps.Clone(s.each)}
						one.offered[v.Name], one.all[v.Name], one.each[v.Name] = []string{value}, value, value
						next = append(next, one)
					}
					continue
				}
				s.offered[v.Name], s.all[v.Name], s.each[v.Name] = found, v.allValue(found), alternatives(found)
			}
			next = append(next, s)
		}
		if v.Type == "query" && !offered {
			c.Errorf("%s: $%s offers nothing", b.Name, v.Name)
		}
		all = next
	}
	if len(all) == 0 {
		c.Fatalf("%s: nothing can be selected", b.Name)
	}
	return all
}

// labelValues returns the values that a variable offers.
func (c *dashboardRun) labelValues(b *dashboardFile, v boardVariable, values variableValues) (offered []string) {
	series, label, err := v.labelValuesQuery()
	if err == nil {
		series, err = c.expandVariables(series, values)
	}
	if err != nil {
		c.Fatalf("%s: $%s: %v", b.Name, v.Name, err)
	}
	found, _, _, err := c.LabelValues(c.Context(), label, []string{series}, c.begin, c.end)
	c.queryCount++
	if err != nil {
		c.Errorf("%s: $%s: %v", b.Name, v.Name, err)
	}
	for _, value := range found {
		offered = append(offered, string(value))
	}
	return offered
}

// checkValues compares the values at the end of the run with the expected ones.
func (c *dashboardRun) checkValues(q panelQuery, values variableValues) {
	c.Helper()
	if expectedValues[q.location] == nil {
		return
	}
	found := map[string]float64{}
	for _, s := range c.querySeries(q.Expr, values, c.end) {
		labels := model.LabelSet{}
		for name, value := range s.Labels {
			labels[model.LabelName(name)] = model.LabelValue(value)
		}
		found[labels.String()] = s.Value
	}
	for of, want := range expectedValues[q.location] {
		if got, ok := found[of]; !ok || got != want {
			c.Errorf("%s: %s is %v (%t), want %v; all: %v", q.location, of, got, ok, want, found)
		}
	}
}

// checkSingleValues chooses each value of each variable alone: something has to be shown of it. A hidden variable always has all values.
func (c *dashboardRun) checkSingleValues(b *dashboardFile, selections []selection) {
	for _, v := range b.Templating.List {
		shown := map[string]bool{}
		for _, s := range selections {
			for _, value := range s.offered[v.Name] {
				one := maps.Clone(s.all)
				if v.Multi {
					one[v.Name] = alternatives([]string{value})
				}
				shown[value] = shown[value] || v.Hide != 0 || slices.ContainsFunc(b.queries(), func(q panelQuery) bool {
					return strings.Contains(q.Expr, "$"+v.Name) && !strings.Contains(q.Expr, "vector(0)") && c.countPanelSeries(q, one) > 0
				})
			}
		}
		for value, is := range shown {
			if !is {
				c.Errorf("%s: nothing is shown of %s %q", b.Name, v.Name, value)
			}
		}
	}
}

// countPanelSeries is how many series come of a panel's query. One of an instant is asked as at the end, and
// then further and further back: what it shows may have been over by then.
func (c *dashboardRun) countPanelSeries(q panelQuery, values variableValues) int {
	c.Helper()
	if q.interval != "" {
		values = maps.Clone(values)
		values["__interval"] = q.interval
	}
	expr, err := c.expandVariables(q.Expr, values)
	if err != nil {
		c.Errorf("%s: %v", q.location, err)
		return 0
	}
	if !q.Instant && q.interval == "" {
		return c.countOverRange(expr)
	}
	for at := c.end; at.After(c.begin); at = at.Add(-3 * scrapeInterval) {
		if n := c.countAt(expr, at); n > 0 {
			return n
		}
	}
	return 0
}

// countOverRange asks for the whole range.
func (c *dashboardRun) countOverRange(expr string) int {
	c.Helper()
	c.queryCount++
	value, warnings, _, err := c.QueryRange(c.Context(), expr, prometheus.Range{Start: c.begin, End: c.end, Step: c.interval()})
	return c.countSeries(expr, value, warnings, err)
}

func (c *dashboardRun) countAt(expr string, at time.Time) int {
	c.Helper()
	c.queryCount++
	value, warnings, _, err := c.Query(c.Context(), expr, at)
	return c.countSeries(expr, value, warnings, err)
}

func (c *dashboardRun) countSeries(expr string, value model.Value, warnings prometheus.Warnings, err error) int {
	c.Helper()
	if len(warnings) > 0 {
		err = errors.Join(err, fmt.Errorf("%q", warnings))
	}
	if err != nil {
		c.Errorf("%s: %v", expr, err)
	}
	switch v := value.(type) {
	case model.Matrix:
		return len(v)
	case model.Vector:
		return len(v)
	default:
		return 0
	}
}
