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

// expectedAlerts are all alerts.
var expectedAlerts = map[string]expectedAlert{
	"PodgaugePodFailedOnUnhealthyDevice": {"node-a", causeScript},
	"PodgaugeUnhealthyDeviceHeld":        {"node-a", causeScript},
	"PodgaugeDeviceUnhealthy":            {"node-a", causeScript},
	"PodgaugeGpuLost":                    {"node-a", causeScript},
	"PodgaugeHardwareXid":                {"node-a", causeScript},
	"PodgaugeXidStorm":                   {"node-a", causeScript},
	"PodgaugeRecoveryActionWanted":       {"node-a", causeScript},
	"PodgaugeRowRemapFailure":            {"node-a", causeScript},
	"PodgaugeUncorrectedEccErrors":       {"node-a", causeScript},
	"PodgaugeDeviceFlapping":             {"node-a", causeBackfill},
	"PodgaugeDeviceMissing":              {"node-a", causeBackfill},

	"PodgaugeThermalThrottling":     {"node-a", causeScript},
	"PodgaugePowerBrake":            {"node-a", causeScript},
	"PodgaugeNearSlowdown":          {"node-a", causeScript},
	"PodgaugePcieWidthReduced":      {"node-a", causeScript},
	"PodgaugePcieGenerationReduced": {"node-a", causeScript},
	"PodgaugePcieReplays":           {"node-a", causeScript},
	"PodgaugeNvlinkDown":            {"node-a", causeScript},
	"PodgaugeNvlinkErrors":          {"node-a", causeScript},
	"PodgaugeFabricNotReady":        {"node-a", causeScript},
	"PodgaugeIdleDeviceHeld":        {"node-a", causeScript},
	"PodgaugeMemoryNearlyFull":      {"node-a", causeScript},

	"PodgaugeAbsent":              {"", causeShutdown},
	"PodgaugeDriverDown":          {"node-c", causeScript},
	"PodgaugeEventsNotHeard":      {"node-c", causeScript},
	"PodgaugeCollectionStalled":   {"node-c", causeScript},
	"PodgaugePluginNotRegistered": {"node-b", causeScript},
	"PodgaugeContainersRefused":   {"node-b", causeScript},
	"PodgaugeHoldersStale":        {"node-b", causeScript},
	"PodgaugeStateNotKept":        {"node-c", causeScript},
	"PodgaugeSeriesDropped":       {"node-c", causeScript},
}

// lookBackPattern are what an expression looks back for.
var lookBackPattern = regexp.MustCompile(`(\[|offset )\d+[hd]`)

// TestTables: each alert is accounted for, and what the tables name is there.
func TestTables(t *testing.T) {
	var named []string
	for _, r := range readRules(t, rulesFile) {
		named = append(named, r.Alert)
		of, ok := expectedAlerts[r.Alert]
		if !ok {
			t.Errorf("%s: where it is to be active is not said", r.Alert)
		}
		if looksBack := lookBackPattern.MatchString(r.Expr); of.cause == causeBackfill && !looksBack {
			t.Errorf("%s does not look back for hours: a script can show it", r.Alert)
		}
	}
	for alert := range expectedAlerts {
		if !slices.Contains(named, alert) {
			t.Errorf("no alert is called %s", alert)
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
	var all []prometheus.Alert
	for _, name := range slices.Sorted(maps.Keys(expectedAlerts)) {
		all = append(all, alert(name, expectedAlerts[name].node, "it is so"))
	}
	if wrong := alertErrors(all); len(wrong) > 0 {
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
		if wrong := strings.Join(alertErrors(spoilt), "; "); !strings.Contains(wrong, says) {
			t.Errorf("%q, want %s", wrong, says)
		}
	}
}
