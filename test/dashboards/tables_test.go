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

// quiet are the queries to which nothing is the right answer here, and why. One that is answered
// is an error, and so is one that no dashboard asks.
var quiet = map[string]string{
	"podgauge: Families that the driver lacks: A": "a simulated driver lacks nothing",
}

// witness is where an alert has to be active in a run, and by what.
type witness struct {
	node string // none is absent()'s
	by   way
}

type way string

const (
	script way = "what the node's script has happen, or its flags"
	blocks way = "blocks of its past, which promtool makes"
	end    way = "the end of all podgauges"
)

// witnessed are all alerts.
var witnessed = map[string]witness{
	"PodgaugePodFailedOnUnhealthyDevice": {"node-a", script},
	"PodgaugeUnhealthyDeviceHeld":        {"node-a", script},
	"PodgaugeDeviceUnhealthy":            {"node-a", script},
	"PodgaugeGpuLost":                    {"node-a", script},
	"PodgaugeHardwareXid":                {"node-a", script},
	"PodgaugeXidStorm":                   {"node-a", script},
	"PodgaugeRecoveryActionWanted":       {"node-a", script},
	"PodgaugeRowRemapFailure":            {"node-a", script},
	"PodgaugeUncorrectedEccErrors":       {"node-a", script},
	"PodgaugeDeviceFlapping":             {"node-a", blocks},
	"PodgaugeDeviceMissing":              {"node-a", blocks},

	"PodgaugeThermalThrottling":     {"node-a", script},
	"PodgaugePowerBrake":            {"node-a", script},
	"PodgaugeNearSlowdown":          {"node-a", script},
	"PodgaugePcieWidthReduced":      {"node-a", script},
	"PodgaugePcieGenerationReduced": {"node-a", script},
	"PodgaugePcieReplays":           {"node-a", script},
	"PodgaugeNvlinkDown":            {"node-a", script},
	"PodgaugeNvlinkErrors":          {"node-a", script},
	"PodgaugeFabricNotReady":        {"node-a", script},
	"PodgaugeIdleDeviceHeld":        {"node-a", script},
	"PodgaugeMemoryNearlyFull":      {"node-a", script},

	"PodgaugeAbsent":              {"", end},
	"PodgaugeDriverDown":          {"node-c", script},
	"PodgaugeEventsNotHeard":      {"node-c", script},
	"PodgaugeCollectionStalled":   {"node-c", script},
	"PodgaugePluginNotRegistered": {"node-b", script},
	"PodgaugeContainersRefused":   {"node-b", script},
	"PodgaugeHoldersStale":        {"node-b", script},
	"PodgaugeStateNotKept":        {"node-c", script},
	"PodgaugeSeriesDropped":       {"node-c", script},
}

// hours are what an expression looks back for.
var hours = regexp.MustCompile(`(\[|offset )\d+[hd]`)

// TestTables: each alert is accounted for, and what the tables name is there.
func TestTables(t *testing.T) {
	var named []string
	for _, r := range rules(t, rulesFile) {
		named = append(named, r.Alert)
		of, ok := witnessed[r.Alert]
		if !ok {
			t.Errorf("%s: where it is to be active is not said", r.Alert)
		}
		if looksBack := hours.MatchString(r.Expr); of.by == blocks && !looksBack {
			t.Errorf("%s does not look back for hours: a script can show it", r.Alert)
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
		all = append(all, alert(name, witnessed[name].node, "it is so"))
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
