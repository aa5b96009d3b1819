package dashboards

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/helpers/expect"
)

// expectedEmpty are the queries without series, with the reason. A listed query with series is an error, and so is an unknown query.
var expectedEmpty = map[string]string{
	"podgauge: Unsupported families: A": "a simulated driver supports all families",
}

// price is the value of the price variables.
const price = "0.5"

// expectedAlert is the node of an active alert in a run, and its cause.
type expectedAlert struct {
	node  string // empty without a node label
	cause alertCause
}

type alertCause string

const (
	causeScript   alertCause = "the node's script or flags"
	causeBackfill alertCause = "backfilled blocks"
	causeShutdown alertCause = "the stop of all nodes"
)

// untriggered are the alerts that neither scripts nor flags cause, because they evaluate days or many nodes, or because the simulator lacks
// the fault. deploy/rules has tests of them.
var untriggered = []string{
	"PodgaugeAllocatableDropped", "PodgaugeCdiSpecMissing", "PodgaugeDeviceMissing", "PodgaugeDriverSkew", "PodgaugeFleetFailing",
	"PodgaugeFleetUnhealthy", "PodgaugeKubernetesRequestsFailed", "PodgaugeMigWithoutDevices", "PodgaugeNvlinkDown", "PodgaugeRetiredTooLong",
	"PodgaugeVbiosSkew",
}

// usualAlert applies to alerts without a row in unusualAlerts.
var usualAlert = expectedAlert{"node-a", causeScript}

// unusualAlerts are active on another node, or for another cause.
var unusualAlerts = map[string]expectedAlert{
	"PodgaugeDeviceFlapping": {"node-a", causeBackfill},

	"PodgaugeConfigKeysUnknown": {"", causeScript},

	"PodgaugeAbsent":              {"", causeShutdown},
	"PodgaugeDown":                {"node-a", causeShutdown},
	"PodgaugeDaemonSetNotReady":   {"", causeScript},
	"PodgaugeVersionSkew":         {"", causeScript},
	"PodgaugeMemoryNearlyFull":    {"node-b", causeScript},
	"PodgaugeUnrepairableMemory":  {"node-c", causeScript},
	"PodgaugeDriverDown":          {"node-c", causeScript},
	"PodgaugeEventsNotReceived":   {"node-c", causeScript},
	"PodgaugeCollectionStalled":   {"node-c", causeScript},
	"PodgaugeGpuMissing":          {"node-b", causeScript},
	"PodgaugePluginNotRegistered": {"node-b", causeScript},
	"PodgaugeContainersRejected":  {"node-b", causeScript},
	"PodgaugeAllocationsStale":    {"node-b", causeScript},
	"PodgaugeStateNotKept":        {"node-c", causeScript},
	"PodgaugeJobWaiting":          {"", causeScript},
	"PodgaugeJobCulprit":          {"node-d", causeScript},
	"PodgaugeStraggler":           {"node-d", causeScript},
	"PodgaugeSeriesDropped":       {"node-c", causeScript},
}

// expectedAlerts returns the expectation for each alert of the rules, apart from untriggered.
func expectedAlerts(t *testing.T) map[string]expectedAlert {
	t.Helper()
	expected := map[string]expectedAlert{}
	for _, r := range append(readRules(t, rulesFile), readRules(t, jobsFile)...) {
		if r.Alert != "" && !slices.Contains(untriggered, r.Alert) {
			expected[r.Alert] = usualAlert
		}
	}
	for alert, e := range unusualAlerts {
		if expected[alert] == (expectedAlert{}) {
			t.Errorf("unknown alert %s", alert)
		}
		expected[alert] = e
	}
	return expected
}

// longRangePattern matches ranges and offsets of hours or days.
var longRangePattern = regexp.MustCompile(`(\[|offset )\d+[hd]`)

// TestTables checks that the alerts and queries of the tables exist.
func TestTables(t *testing.T) {
	expected := expectedAlerts(t)
	for _, r := range readRules(t, rulesFile) {
		if longRange := longRangePattern.MatchString(r.Expr); expected[r.Alert].cause == causeBackfill && !longRange {
			t.Errorf("%s does not evaluate hours: use a script instead of the backfill", r.Alert)
		}
	}
	queries := map[string]bool{}
	for _, b := range readDashboards(t) {
		for _, q := range b.queries() {
			if queries[q.location] {
				t.Errorf("duplicate query %s", q.location)
			}
			queries[q.location] = true
		}
	}
	for location, reason := range expectedEmpty {
		if !queries[location] || strings.TrimSpace(reason) == "" {
			t.Errorf("%s: unknown query, or no reason", location)
		}
	}
}

// TestAlertErrors checks that alertErrors finds the errors of a run's alerts.
func TestAlertErrors(t *testing.T) {
	alert := func(name, node, summary string) prometheus.Alert {
		return prometheus.Alert{
			Labels:      model.LabelSet{"alertname": model.LabelValue(name), "node": model.LabelValue(node)},
			Annotations: model.LabelSet{"summary": model.LabelValue(summary)}, State: prometheus.AlertStatePending,
		}
	}
	expected := expectedAlerts(t)
	var all []prometheus.Alert
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		all = append(all, alert(name, expected[name].node, "a summary"))
	}
	expect.EqualSlices(t, alertErrors(expected, all), nil, "valid alerts")
	for want, change := range map[string]func(a *prometheus.Alert){
		`PodgaugeAbsent: not active on "", but on map[]`: func(a *prometheus.Alert) { a.Labels["alertname"] = "PodgaugePresent" },
		`but on map[node-z:pending]`:                     func(a *prometheus.Alert) { a.Labels["node"] = "node-z" },
		`"GPU <no value>"`:                               func(a *prometheus.Alert) { a.Annotations["summary"] = "GPU <no value>" },
		`<error expanding`:                               func(a *prometheus.Alert) { a.Annotations["summary"] = "<error expanding template>" },
		`summary: ""`:                                    func(a *prometheus.Alert) { a.Annotations["summary"] = "" },
	} {
		invalid := slices.Clone(all)
		invalid[0] = alert("PodgaugeAbsent", "", "a summary")
		change(&invalid[0])
		expect.Contains(t, strings.Join(alertErrors(expected, invalid), "; "), want)
	}
}
