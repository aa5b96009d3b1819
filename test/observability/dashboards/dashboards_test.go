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

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// scriptDuration is the duration of the scripts; shutdownDuration is the time for the alerts about stopped nodes.
const (
	scriptDuration   = 190 * time.Second
	shutdownDuration = 6 * scrapeInterval
)

// skipUnlessEnabled skips tests that take minutes and need more programs than Go.
func skipUnlessEnabled(t *testing.T) {
	t.Helper()
	if os.Getenv("PODGAUGE_DASHBOARDS") == "" {
		t.Skip("only with make dashboards-check")
	}
}

// dashboardRun is a run of the test.
type dashboardRun struct {
	prometheus.API
	*testing.T
	panelRange
	queryCount, seriesCount int
}

// TestDashboardQueries checks that each query of the dashboards and each recording rule has series, and that each alert is active.
// A real Prometheus scrapes simulated nodes with scripts.
func TestDashboardQueries(t *testing.T) {
	skipUnlessEnabled(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	nodes := startNodes(t, dir)
	begun := time.Now()
	scrape := nodes[0].waitForMetrics(t, `pod="serve.v2-0"`, `pod="notebook-0"`, `pod="embed-1"`)
	samples := backfill(t, dir, data, nodes[0], scrape, time.Now())
	exporters := kubeStateMetrics(t, nodes, begun)
	config := honoring
	config.rules = append(slices.Clone(config.rules), fasterJobRules(t, dir, ""))
	writePrometheusConfig(t, dir, config, nodes, exporters)
	client, url := startPrometheus(t, dir, data)
	c := &dashboardRun{API: client, T: t}
	c.begin = time.Now()
	overriding := c.startOverriding(nodes, exporters)
	t.Logf("%d backfilled samples; Prometheus is ready after %s", samples, time.Since(begun).Round(time.Second))

	alerts := c.collectAlerts(begun.Add(scriptDuration))
	c.end = time.Now()
	c.checkOwnerLabels(overriding)
	c.checkDashboards(readDashboards(t))
	c.checkTables(readDashboards(t))
	c.checkRecordings(readRules(t, recordingsFile))
	c.checkRecordings(readRules(t, jobsFile))
	c.checkRecordings(append(readRules(t, recordingsFile), readRules(t, costFile)...))
	c.checkBackfill(url, filepath.Join(dir, "recorded"))
	for _, n := range nodes {
		expect.NoError(t, n.stop(), n.name)
	}
	c.checkAlerts(append(alerts, c.collectAlerts(time.Now().Add(shutdownDuration))...))
	t.Logf("%d queries, %d series, %d alerts; %s", c.queryCount, c.seriesCount, len(expectedAlerts(t)), time.Since(begun).Round(time.Second))
}

// startNodes starts all nodes; the first node gets the backfill.
func startNodes(t *testing.T, dir string) []*simNode {
	t.Helper()
	shared := filepath.Join(dir, "shared.yaml")
	unwritable := filepath.Join(dir, "state")
	for file, text := range map[string]string{
		unwritable: "a file, where a folder should be",
		shared:     "version: v1\nsharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n    resources: [{name: nvidia.com/gpu, replicas: 2}]\nunknown: 1\n",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	return []*simNode{
		startNode(t, "east", "node-a", "--mig-strategy=mixed", "--metrics.rdma", "--metrics.cpu", "--state-dir="+filepath.Join(dir, "a")),
		startNode(t, "west", "node-b", "--config-file="+shared, "--expected-gpus=64"),
		startNode(t, "east", "node-c", "--state-dir="+filepath.Join(unwritable, "c"), "--metrics.series-limit=250"),
		startNode(t, "west", "node-d", "--state-dir="+filepath.Join(dir, "d")),
	}
}

// collectAlerts returns the alerts up to a time.
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
	require.NoError(c, err)
	return now.Alerts
}

// alertStates has the states of alerts by name and node.
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

// alertErrors returns the expected alerts that were not active, and incomplete texts of alerts.
func alertErrors(expected map[string]expectedAlert, all []prometheus.Alert) (wrong []string) {
	active, badTexts := alertStatesOf(all), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		if _, ok := active[name][expected[name].node]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: not active on %q, but on %v", name, expected[name].node, active[name]))
		}
	}
	for _, a := range all {
		for name, text := range a.Annotations {
			if text == "" || strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "<error") {
				badTexts[fmt.Sprintf("%s: %s: %q", a.Labels["alertname"], name, text)] = true
			}
		}
	}
	return append(wrong, slices.Sorted(maps.Keys(badTexts))...)
}

// checkAlerts checks the alerts of a run.
func (c *dashboardRun) checkAlerts(all []prometheus.Alert) {
	expected := expectedAlerts(c.T)
	for _, wrong := range alertErrors(expected, all) {
		c.Error(wrong)
	}
	for _, a := range all {
		if a.Labels["alertname"] == "PodgaugeSuspectDevice" && a.Labels["reason"] != "xid_13" {
			c.Errorf("a faulty job makes a device suspect: %v", a.Labels)
		}
	}
	firing := 0
	for _, on := range alertStatesOf(all) {
		if slices.Contains(slices.Collect(maps.Values(on)), prometheus.AlertStateFiring) {
			firing++
		}
	}
	c.Logf("%d of %d alerts fired, the others were pending: %v", firing, len(expected), alertStatesOf(all))
}

// checkRecordings checks that each recording rule has series. Rules about RDMA links need a job on several nodes (podgauge-jobs_test.yaml).
func (c *dashboardRun) checkRecordings(all []alertOrRecording) {
	for _, r := range all {
		if r.Record == "" || strings.HasPrefix(r.Record, "port_workload") {
			continue
		}
		if n := c.countAt(r.Record, c.end); n == 0 {
			c.Errorf("%s has no series", r.Record)
		}
	}
	c.Logf("%d recording rules", len(all))
}

// checkBackfill evaluates the rules over the past with promtool, as documented in docs/reference/dashboards.md.
func (c *dashboardRun) checkBackfill(url, blocks string) {
	end := c.begin.Add(-10 * time.Minute)
	out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "rules", "--url="+url, "--output-dir="+blocks,
		"--start="+end.Add(-2*time.Hour).Format(time.RFC3339), "--end="+end.Format(time.RFC3339), recordingsFile).CombinedOutput()
	made, globErr := filepath.Glob(blocks + "/*/meta.json")
	if err != nil || globErr != nil || len(made) == 0 {
		c.Errorf("promtool: got %d blocks of the past, want some: %v\n%s", len(made), err, tail(string(out), 2000))
	}
}

// selection is a set of values of a dashboard's variables.
type selection struct {
	options   map[string][]string
	all, each variableValues // with All, if possible, and with all values selected
}

// checkDashboards runs the queries of the dashboards with All, with all values selected, and with each value alone.
func (c *dashboardRun) checkDashboards(all []*dashboardFile) {
	hasSeries := map[string]bool{}
	for _, b := range all {
		selections := c.selections(b)
		for _, q := range b.queries() {
			n, selected := 0, 0
			for _, s := range selections {
				n += c.countPanelSeries(q, s.all)
				selected += c.countPanelSeries(q, s.each)
			}
			hasSeries[q.location] = n > 0
			c.seriesCount += n
			if n == 0 && expectedEmpty[q.location] == "" {
				c.Errorf("%s: no series with All: %s", q.location, q.Expr)
			}
			if n > 0 && selected == 0 && expectedEmpty[q.location] == "" {
				c.Errorf("%s: no series with all values selected: %s", q.location, q.Expr)
			}
		}
		c.checkSingleValues(b, selections)
	}
	for _, location := range slices.Sorted(maps.Keys(expectedEmpty)) {
		if hasSeries[location] {
			c.Errorf("%s: got series, want none", location)
		}
	}
}

// selections returns the selections of a dashboard: a single one, or one for each value of a single-value variable.
func (c *dashboardRun) selections(b *dashboardFile) []selection {
	all := []selection{{map[string][]string{}, variableValues{}, variableValues{}}}
	for _, v := range b.Templating.List {
		hasOptions := false
		var next []selection
		for _, s := range all {
			switch {
			case v.Type == "textbox":
				s.all[v.Name], s.each[v.Name] = price, price
			case v.Type != "query":
			default:
				found := c.labelValues(b, v, s.all)
				hasOptions = hasOptions || len(found) > 0
				if !v.Multi {
					for _, value := range found {
						one := selection{maps.Clone(s.options), maps.Clone(s.all), maps.Clone(s.each)}
						one.options[v.Name], one.all[v.Name], one.each[v.Name] = []string{value}, value, value
						next = append(next, one)
					}
					continue
				}
				s.options[v.Name], s.all[v.Name], s.each[v.Name] = found, v.allValue(found), alternatives(found)
			}
			next = append(next, s)
		}
		if v.Type == "query" && !hasOptions {
			c.Errorf("%s: $%s has no values", b.Name, v.Name)
		}
		all = next
	}
	if len(all) == 0 {
		c.Fatalf("%s: no selection", b.Name)
	}
	return all
}

// labelValues returns the values of a variable.
func (c *dashboardRun) labelValues(b *dashboardFile, v boardVariable, values variableValues) (options []string) {
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
		options = append(options, string(value))
	}
	return options
}

// checkSingleValues checks that each single value of a variable selects series. A hidden variable always has all values.
func (c *dashboardRun) checkSingleValues(b *dashboardFile, selections []selection) {
	for _, v := range b.Templating.List {
		shown := map[string]bool{}
		for _, s := range selections {
			for _, value := range s.options[v.Name] {
				one := maps.Clone(s.all)
				if v.Multi {
					one[v.Name] = alternatives([]string{value})
				}
				shown[value] = shown[value] || v.Hide != 0 || slices.ContainsFunc(b.queries(), func(q panelQuery) bool {
					return strings.Contains(q.Expr, "$"+v.Name) && !strings.Contains(q.Expr, "vector(0)") && c.countPanelSeries(q, one) > 0
				})
			}
		}
		for value, ok := range shown {
			if !ok {
				c.Errorf("%s: no series with $%s = %q", b.Name, v.Name, value)
			}
		}
	}
}

// countPanelSeries returns the number of series of a panel's query. An instant query runs at the end and, without series, at earlier
// times, because its series may have ended.
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

// countOverRange returns the number of series of a query over the whole range.
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
	expect.NoError(c, err, expr)
	switch v := value.(type) {
	case model.Matrix:
		return len(v)
	case model.Vector:
		return len(v)
	default:
		return 0
	}
}
