package dashboards

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// expectedEmpty are the queries to which nothing is the right answer here, and why. One that is answered
// is an error, and so is one that no dashboard asks.
var expectedEmpty = map[string]string{
	"podgauge: Unsupported families: A": "a simulated driver supports all families",
}

// price is typed into the variables of prices.
const price = "0.5"

// expectedValues are values at the end of a run, counted by hand from the scripts: node-a has two MIG devices 1g.10gb, one of them
// allocated, and an idle one 3g.40gb; its notebook is idle, too. One pod waits for two GPUs in each cluster.
var expectedValues = map[string]map[string]float64{
	"fleet: Nodes: A":                     {`{}`: 3},
	"fleet: Idle but allocated: A":        {`{}`: 2},
	"fleet: Requested by pending pods: A": {`{}`: 4},
	"fleet: By MIG profile: A":            {`{mig_profile="1g.10gb"}`: 2, `{mig_profile="3g.40gb"}`: 1},
	"fleet: By MIG profile: B":            {`{mig_profile="1g.10gb"}`: 1, `{mig_profile="3g.40gb"}`: 1},
	"fleet: By MIG profile: C":            {`{mig_profile="1g.10gb"}`: 1, `{mig_profile="3g.40gb"}`: 0},
	"fleet: MIG devices, by profile: B":   {`{mig_profile="1g.10gb"}`: 1, `{mig_profile="3g.40gb"}`: 0},
	"fleet: Unallocated devices and pending pods: A": {
		`{resource="nvidia.com/mig-1g.10gb"}`: 1, `{resource="nvidia.com/mig-3g.40gb"}`: 0,
	},
	"fleet: Unallocated devices and pending pods: B": {`{resource="nvidia_com_gpu"}`: 4},
}

// expectedAlert is where an alert has to be active in a run, and by what.
type expectedAlert struct {
	node  string // none is absent()'s
	cause alertCause
}

type alertCause string

const (
	causeScript   alertCause = "what the node's script has happen, or its flags"
	causeBackfill alertCause = "blocks of its past, which promtool makes"
	causeShutdown alertCause = "the end of all podgauges"
)

// usualAlert applies to alerts without a row in unusualAlerts.
var usualAlert = expectedAlert{"node-a", causeScript}

// unusualAlerts are active on another node, or by another cause.
var unusualAlerts = map[string]expectedAlert{
	"PodgaugeDeviceFlapping": {"node-a", causeBackfill},
	"PodgaugeDeviceMissing":  {"node-a", causeBackfill},

	"PodgaugeAbsent":              {"", causeShutdown},
	"PodgaugeDown":                {"node-a", causeShutdown},
	"PodgaugeDaemonSetNotReady":   {"", causeScript},
	"PodgaugeVersionSkew":         {"", causeScript},
	"PodgaugeFleetUnhealthy":      {"", causeScript},
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
	"PodgaugeSeriesDropped":       {"node-c", causeScript},
}

// expectedAlerts returns the expectation for each alert of the rules.
func expectedAlerts(t *testing.T) map[string]expectedAlert {
	t.Helper()
	expected := map[string]expectedAlert{}
	for _, r := range readRules(t, rulesFile) {
		expected[r.Alert] = usualAlert
	}
	for alert, e := range unusualAlerts {
		if expected[alert] == (expectedAlert{}) {
			t.Errorf("no alert is called %s", alert)
		}
		expected[alert] = e
	}
	return expected
}

// lookBackPattern are what an expression looks back for.
var lookBackPattern = regexp.MustCompile(`(\[|offset )\d+[hd]`)

// TestTables: the alerts and queries of the tables exist.
func TestTables(t *testing.T) {
	expected := expectedAlerts(t)
	for _, r := range readRules(t, rulesFile) {
		if looksBack := lookBackPattern.MatchString(r.Expr); expected[r.Alert].cause == causeBackfill && !looksBack {
			t.Errorf("%s does not look back for hours: a script can show it", r.Alert)
		}
	}
	asked := map[string]bool{}
	for _, b := range readDashboards(t) {
		for _, q := range b.queries() {
			if asked[q.location] {
				t.Errorf("%s: two are called so", q.location)
			}
			asked[q.location] = true
		}
	}
	for where := range expectedValues {
		if !asked[where] {
			t.Errorf("%s: no query is called so", where)
		}
	}
	for where, why := range expectedEmpty {
		if !asked[where] || strings.TrimSpace(why) == "" {
			t.Errorf("%s: nobody asks that, or it is not said why nothing comes of it", where)
		}
	}
}

// TestAlertFaults: what is wrong with a run's alerts is found.
func TestAlertFaults(t *testing.T) {
	alert := func(name, node, summary string) prometheus.Alert {
		return prometheus.Alert{
			Labels:      model.LabelSet{"alertname": model.LabelValue(name), "node": model.LabelValue(node)},
			Annotations: model.LabelSet{"summary": model.LabelValue(summary)}, State: prometheus.AlertStatePending,
		}
	}
	expected := expectedAlerts(t)
	var all []prometheus.Alert
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		all = append(all, alert(name, expected[name].node, "it is so"))
	}
	if wrong := alertErrors(expected, all); len(wrong) > 0 {
		t.Errorf("nothing is wrong, and yet: %q", wrong)
	}
	for says, spoil := range map[string]func(a *prometheus.Alert){
		`PodgaugeAbsent was not active on "", but on map[]`: func(a *prometheus.Alert) { a.Labels["alertname"] = "PodgaugePresent" },
		`but on map[node-z:pending]`:                        func(a *prometheus.Alert) { a.Labels["node"] = "node-z" },
		`"GPU <no value>"`:                                  func(a *prometheus.Alert) { a.Annotations["summary"] = "GPU <no value>" },
		`<error expanding`:                                  func(a *prometheus.Alert) { a.Annotations["summary"] = "<error expanding template>" },
		`summary: ""`:                                       func(a *prometheus.Alert) { a.Annotations["summary"] = "" },
	} {
		spoilt := slices.Clone(all)
		spoilt[0] = alert("PodgaugeAbsent", "", "it is so")
		spoil(&spoilt[0])
		if wrong := strings.Join(alertErrors(expected, spoilt), "; "); !strings.Contains(wrong, says) {
			t.Errorf("%q, want %s", wrong, says)
		}
	}
}
