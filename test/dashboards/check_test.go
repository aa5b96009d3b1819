package dashboards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// The scripts' lives, and how long alerts are then waited for that tell of nobody's being there.
const (
	lives = 190 * time.Second
	dies  = time.Minute
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
	a := startNode(t, "node-a", "--mig-strategy=mixed", "--state-dir="+filepath.Join(dir, "a"))
	nodes := []*node{
		a,
		startNode(t, "node-b", "--config-file="+shared),
		startNode(t, "node-c", "--state-dir="+filepath.Join(unwritable, "c"), "--metrics.series-limit=600"),
	}
	begun := time.Now()
	scrape := a.lives(t, `pod="serve.v2-0"`, `pod="notebook-0"`, `pod="embed-1"`)
	samples := backfill(t, dir, data, a, scrape, time.Now())
	configure(t, dir, nodes, kubeStateMetrics(t, nodes, begun))
	c := &check{API: startPrometheus(t, dir, data), T: t}
	c.begin = time.Now()
	t.Logf("%d samples of the past; Prometheus after %s", samples, time.Since(begun).Round(time.Second))

	told := c.watch(begun.Add(lives))
	c.end = time.Now()
	c.boards(boards(t))
	c.recorded(rules(t, recordingsFile))
	for _, n := range nodes {
		if err := n.end(); err != nil {
			t.Errorf("%s: %v", n.name, err)
		}
	}
	absent := told
	until(t, "PodgaugeAbsent", func() bool {
		absent = append(absent, c.alerts()...)
		return slices.ContainsFunc(absent, func(a prometheus.Alert) bool { return a.Labels["alertname"] == "PodgaugeAbsent" })
	})
	c.alerted(absent)
	t.Logf("%d queries, %d series came of them; %d alerts; %s", c.asked, c.series, len(witnessed), time.Since(begun).Round(time.Second))
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

// alerted holds the alerts that were active against those that were to be. What an alert says has
// to be whole.
func (c *check) alerted(all []prometheus.Alert) {
	active := map[string]map[string]prometheus.AlertState{} // by name and node
	for _, a := range all {
		name, on := string(a.Labels["alertname"]), string(a.Labels["node"])
		if active[name] == nil {
			active[name] = map[string]prometheus.AlertState{}
		}
		if active[name][on] != prometheus.AlertStateFiring {
			active[name][on] = a.State
		}
		for of, text := range a.Annotations {
			if text == "" || strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "<error") {
				c.Errorf("%s: %s: %q", name, of, text)
			}
		}
	}
	firing := 0
	for _, name := range slices.Sorted(maps.Keys(witnessed)) {
		state, ok := active[name][witnessed[name]]
		if !ok {
			c.Errorf("%s was not active on %q, but on %v", name, witnessed[name], active[name])
		}
		if state == prometheus.AlertStateFiring {
			firing++
		}
		c.Logf("%s: %v", name, active[name])
	}
	c.Logf("%d of %d alerts have fired, the others were pending", firing, len(witnessed))
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
	if err != nil && !errors.Is(err, context.Canceled) {
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
