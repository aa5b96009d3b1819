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
	lives = 190 * time.Second
	dies  = 6 * scrapeInterval
)

// gated skips what takes minutes, and what a machine with Go alone lacks.
func gated(t *testing.T) {
	t.Helper()
	if os.Getenv("PODGAUGE_DASHBOARDS") == "" {
		t.Skip("make dashboards-check runs it")
	}
}

// check is one run.
type check struct {
	prometheus.API
	*testing.T
	sight
	asked, series int
}

// TestDashboardsAnswer: real Prometheus scrapes nodes on which the scripts have things happen.
// Each query of the dashboards, each recording rule and each alert has to come to something.
func TestDashboardsAnswer(t *testing.T) {
	gated(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	nodes := startNodes(t, dir)
	begun := time.Now()
	scrape := nodes[0].lives(t, `pod="serve.v2-0"`, `pod="notebook-0"`, `pod="embed-1"`)
	samples := backfill(t, dir, data, nodes[0], scrape, time.Now())
	configure(t, dir, nodes, kubeStateMetrics(t, nodes, begun))
	asks, url := startPrometheus(t, dir, data)
	c := &check{API: asks, T: t}
	c.begin = time.Now()
	t.Logf("%d samples of the past; Prometheus after %s", samples, time.Since(begun).Round(time.Second))

	told := c.watch(begun.Add(lives))
	c.end = time.Now()
	c.boards(boards(t))
	c.tables(boards(t))
	c.recorded(rules(t, recordingsFile))
	c.recordedBefore(url, filepath.Join(dir, "recorded"))
	for _, n := range nodes {
		if err := n.end(); err != nil {
			t.Errorf("%s: %v", n.name, err)
		}
	}
	c.alerted(append(told, c.watch(time.Now().Add(dies))...))
	t.Logf("%d queries, %d series came of them; %d alerts; %s", c.asked, c.series, len(witnessed), time.Since(begun).Round(time.Second))
}

// startNodes starts them all; the first is the one that gets a past.
func startNodes(t *testing.T, dir string) []*node {
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
	return []*node{
		startNode(t, "node-a", "--mig-strategy=mixed", "--state-dir="+filepath.Join(dir, "a")),
		startNode(t, "node-b", "--config-file="+shared),
		startNode(t, "node-c", "--state-dir="+filepath.Join(unwritable, "c"), "--metrics.series-limit=600"),
	}
}

// watch takes down the alerts until a time.
func (c *check) watch(end time.Time) (all []prometheus.Alert) {
	for time.Now().Before(end) {
		all = append(all, c.alerts()...)
		sleepUntil(c.Context(), time.Now().Add(scrapeInterval))
	}
	return all
}

func (c *check) alerts() []prometheus.Alert {
	c.Helper()
	now, err := c.Alerts(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return now.Alerts
}

// activity is how far alerts have come, by name and node.
type activity map[string]map[string]prometheus.AlertState

func activeIn(all []prometheus.Alert) activity {
	active := activity{}
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

// alertFaults are alerts that were not active where they were to be, and what alerts say that is
// not whole.
func alertFaults(all []prometheus.Alert) (wrong []string) {
	active, said := activeIn(all), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(witnessed)) {
		if _, ok := active[name][witnessed[name].node]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s was not active on %q, but on %v", name, witnessed[name].node, active[name]))
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

// alerted checks the alerts of a run.
func (c *check) alerted(all []prometheus.Alert) {
	for _, wrong := range alertFaults(all) {
		c.Error(wrong)
	}
	firing := 0
	for _, on := range activeIn(all) {
		if slices.Contains(slices.Collect(maps.Values(on)), prometheus.AlertStateFiring) {
			firing++
		}
	}
	c.Logf("%d of %d alerts have fired, the others were pending: %v", firing, len(witnessed), activeIn(all))
}

// recorded wants series of each rule, of this run.
func (c *check) recorded(all []rule) {
	for _, r := range all {
		if n := c.at(r.Record, c.end); n == 0 {
			c.Errorf("%s has no series", r.Record)
		}
	}
	c.Logf("%d recording rules", len(all))
}

// recordedBefore has promtool work the rules out over the past, as docs/dashboards.md says.
func (c *check) recordedBefore(url, blocks string) {
	end := c.begin.Add(-10 * time.Minute)
	out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "rules", "--url="+url, "--output-dir="+blocks,
		"--start="+end.Add(-2*time.Hour).Format(time.RFC3339), "--end="+end.Format(time.RFC3339), recordingsFile).CombinedOutput()
	made, globErr := filepath.Glob(blocks + "/*/meta.json")
	if err != nil || globErr != nil || len(made) == 0 {
		c.Errorf("promtool has made %d blocks of the past: %v\n%s", len(made), err, last(string(out), 2000))
	}
}

// boards asks what the dashboards ask: with All, with each value chosen, and with each alone.
func (c *check) boards(all []*board) {
	answered := map[string]bool{}
	for _, b := range all {
		offered := c.variables(b)
		everything, each := chosen{}, chosen{}
		for _, v := range b.Templating.List {
			if v.Type == "query" {
				everything[v.Name], each[v.Name] = v.all(offered[v.Name]), several(offered[v.Name])
			}
			if len(offered[v.Name]) == 0 { // which was said
				each[v.Name] = everything[v.Name]
			}
		}
		for _, q := range b.questions() {
			n := c.shows(q, everything)
			answered[q.where] = n > 0
			c.series += n
			if n == 0 && quiet[q.where] == "" {
				c.Errorf("%s: nothing comes of %s", q.where, q.Expr)
			}
			if n > 0 && c.shows(q, each) == 0 && quiet[q.where] == "" {
				c.Errorf("%s: nothing comes of it where each value is chosen, in place of All: %s", q.where, q.Expr)
			}
		}
		c.single(b, offered, everything)
	}
	for _, where := range slices.Sorted(maps.Keys(quiet)) {
		if answered[where] {
			c.Errorf("%s: it is said to be empty, and is answered", where)
		}
	}
}

// variables are the values that each of a dashboard's offers, where All is chosen in those before it.
func (c *check) variables(b *board) map[string][]string {
	offered, values := map[string][]string{}, chosen{}
	for _, v := range b.Templating.List {
		if v.Type != "query" {
			continue
		}
		series, label, err := v.asks()
		if err == nil {
			series, err = c.fill(series, values)
		}
		if err != nil {
			c.Fatalf("%s: $%s: %v", b.Name, v.Name, err)
		}
		found, _, _, err := c.LabelValues(c.Context(), label, []string{series}, c.begin, c.end)
		c.asked++
		if err != nil || len(found) == 0 {
			c.Errorf("%s: $%s offers nothing: %v", b.Name, v.Name, err)
		}
		for _, value := range found {
			offered[v.Name] = append(offered[v.Name], string(value))
		}
		values[v.Name] = v.all(offered[v.Name])
	}
	return offered
}

// single chooses each value of each variable alone: something has to be shown of it.
func (c *check) single(b *board, offered map[string][]string, everything chosen) {
	for name, values := range offered {
		for _, value := range values {
			one := maps.Clone(everything)
			one[name] = several([]string{value})
			if !slices.ContainsFunc(b.questions(), func(q question) bool {
				return strings.Contains(q.Expr, "$"+name) && !strings.Contains(q.Expr, "vector(0)") && c.shows(q, one) > 0
			}) {
				c.Errorf("%s: nothing is shown of %s %q", b.Name, name, value)
			}
		}
	}
}

// shows is how many series come of a panel's query. One of an instant is asked as at the end, and
// then further and further back: what it shows may have been over by then.
func (c *check) shows(q question, values chosen) int {
	c.Helper()
	expr, err := c.fill(q.Expr, values)
	if err != nil {
		c.Errorf("%s: %v", q.where, err)
		return 0
	}
	if !q.Instant {
		return c.over(expr)
	}
	for at := c.end; at.After(c.begin); at = at.Add(-3 * scrapeInterval) {
		if n := c.at(expr, at); n > 0 {
			return n
		}
	}
	return 0
}

// over asks for the whole range.
func (c *check) over(expr string) int {
	c.Helper()
	c.asked++
	value, warnings, _, err := c.QueryRange(c.Context(), expr, prometheus.Range{Start: c.begin, End: c.end, Step: c.interval()})
	return c.count(expr, value, warnings, err)
}

func (c *check) at(expr string, at time.Time) int {
	c.Helper()
	c.asked++
	value, warnings, _, err := c.Query(c.Context(), expr, at)
	return c.count(expr, value, warnings, err)
}

func (c *check) count(expr string, value model.Value, warnings prometheus.Warnings, err error) int {
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
