package dashboards

import (
	"maps"
	"slices"
	"strings"
	"testing"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// quiet are the queries to which nothing is the right answer here, and why. One that is answered
// is an error, and so is one that no dashboard asks.
var quiet = map[string]string{
	"podgauge: Families that the driver lacks: A": "a simulated driver lacks nothing",
}

// witnessed are all alerts, each with the node of which it has to be active in a run; absent() has
// none.
var witnessed = map[string]string{
	"PodgaugePodFailedOnUnhealthyDevice": "node-a",
	"PodgaugeUnhealthyDeviceHeld":        "node-a",
	"PodgaugeDeviceUnhealthy":            "node-a",
	"PodgaugeGpuLost":                    "node-a",
	"PodgaugeHardwareXid":                "node-a",
	"PodgaugeXidStorm":                   "node-a",
	"PodgaugeRecoveryActionWanted":       "node-a",
	"PodgaugeRowRemapFailure":            "node-a",
	"PodgaugeUncorrectedEccErrors":       "node-a",
	"PodgaugeDeviceFlapping":             "node-a", // by its past
	"PodgaugeDeviceMissing":              "node-a", // by its past

	"PodgaugeThermalThrottling":     "node-a",
	"PodgaugePowerBrake":            "node-a",
	"PodgaugeNearSlowdown":          "node-a",
	"PodgaugePcieWidthReduced":      "node-a",
	"PodgaugePcieGenerationReduced": "node-a",
	"PodgaugePcieReplays":           "node-a",
	"PodgaugeNvlinkDown":            "node-a",
	"PodgaugeNvlinkErrors":          "node-a",
	"PodgaugeFabricNotReady":        "node-a",
	"PodgaugeIdleDeviceHeld":        "node-a",
	"PodgaugeMemoryNearlyFull":      "node-a",

	"PodgaugeAbsent":              "", // when all podgauges have ended
	"PodgaugeDriverDown":          "node-c",
	"PodgaugeEventsNotHeard":      "node-c",
	"PodgaugeCollectionStalled":   "node-c",
	"PodgaugePluginNotRegistered": "node-b",
	"PodgaugeContainersRefused":   "node-b",
	"PodgaugeHoldersStale":        "node-b",
	"PodgaugeStateNotKept":        "node-c",
	"PodgaugeSeriesDropped":       "node-c",
}

// TestTables: each alert is accounted for, and what the tables name is there.
func TestTables(t *testing.T) {
	var named []string
	for _, r := range rules(t, rulesFile) {
		named = append(named, r.Alert)
		if _, ok := witnessed[r.Alert]; !ok {
			t.Errorf("%s: where it is to be active is not said", r.Alert)
		}
	}
	for alert := range witnessed {
		if !slices.Contains(named, alert) {
			t.Errorf("no alert is called %s", alert)
		}
	}
	asked := map[string]bool{}
	for _, b := range boards(t) {
		for _, q := range b.questions() {
			if asked[q.where] {
				t.Errorf("%s: two are called so", q.where)
			}
			asked[q.where] = true
		}
	}
	for where, why := range quiet {
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
	for _, name := range slices.Sorted(maps.Keys(witnessed)) {
		all = append(all, alert(name, witnessed[name], "it is so"))
	}
	if wrong := alertFaults(all); len(wrong) > 0 {
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
		if wrong := strings.Join(alertFaults(spoilt), "; "); !strings.Contains(wrong, says) {
			t.Errorf("%q, want %s", wrong, says)
		}
	}
}
