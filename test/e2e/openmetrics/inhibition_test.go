package openmetrics

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/alert"
	amcommon "github.com/prometheus/alertmanager/config/common"
	"github.com/prometheus/alertmanager/eventrecorder"
	"github.com/prometheus/alertmanager/inhibit"
	amlabels "github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/alertmanager/provider/mem"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	inhibitionFile = "../../../deploy/alertmanager/podgauge.inhibit.yaml"
	xid79File      = "../../../deploy/rules/podgauge-xid79_test.yaml"
	xid79Duration  = 100 * time.Minute
)

// TestXid79RaisesOnePage evaluates all alerts from an Xid 79 to the GPU's recovery with Alertmanager's inhibitor. It checks that a single
// alert is not muted while the GPU is lost, that there is a single page, and no notification about the GPU's pod.
func TestXid79RaisesOnePage(t *testing.T) {
	rules := inhibitionRules(t)
	pages, all := map[string]bool{}, map[string]bool{}
	for minute, firing := range firingAlerts(t, readRuleTests(t, xid79File).Tests[0], xid79Duration) {
		var notified []string
		for _, a := range unmuted(t, rules, firing) {
			notified = append(notified, alertName(a))
			if a["severity"] == "critical" {
				pages[a.String()] = true
			}
		}
		isLost := slices.ContainsFunc(firing, func(a model.LabelSet) bool { return alertName(a) == "PodgaugeGpuLost" })
		if isLost && !slices.Equal(notified, []string{"PodgaugeGpuLost"}) {
			t.Errorf("minute %d: got notifications %q, want only PodgaugeGpuLost", minute, notified)
		}
		if slices.Contains(notified, "PodgaugePodFailedOnUnhealthyDevice") {
			t.Errorf("minute %d: got a notification about the pod of the lost GPU", minute)
		}
		for _, a := range firing {
			all[alertName(a)] = true
		}
	}
	if len(pages) != 1 {
		t.Errorf("got pages %q, want one", slices.Sorted(maps.Keys(pages)))
	}
	// The fault causes all these alerts.
	for _, name := range []string{"DeviceUnhealthy", "FabricNotReady", "HardwareXid", "NvlinkDown", "PodFailedOnUnhealthyDevice", "RecoveryActionNeeded", "UnhealthyDeviceAllocated"} {
		if !all["Podgauge"+name] {
			t.Errorf("Podgauge%s does not fire, so its inhibition is not tested", name)
		}
	}
}

// TestFleetFaultRaisesOnePage checks that two nodes without a driver or podgauge, of four, raise a single page, and so do three lost GPUs.
func TestFleetFaultRaisesOnePage(t *testing.T) {
	fires := map[string][]string{
		"PodgaugeFleetUnhealthy by nodes":     {"PodgaugeDown", "PodgaugeDriverDown"},
		"PodgaugeFleetUnhealthy by lost GPUs": {"PodgaugeGpuLost"},
	}
	for _, test := range readRuleTests(t, "../../../deploy/rules/podgauge-health_test.yaml").Tests {
		others, ok := fires[test.Name]
		if !ok {
			continue
		}
		delete(fires, test.Name)
		t.Run(test.Name, func(t *testing.T) {
			pages, all := map[string]bool{}, map[string]bool{}
			for _, firing := range firingAlerts(t, test, 55*time.Minute) {
				for _, a := range unmuted(t, inhibitionRules(t), firing) {
					if a["severity"] == "critical" {
						pages[alertName(a)] = true
					}
				}
				for _, a := range firing {
					all[alertName(a)] = true
				}
			}
			if got := slices.Sorted(maps.Keys(pages)); !slices.Equal(got, []string{"PodgaugeFleetUnhealthy"}) {
				t.Errorf("got pages %q, want only PodgaugeFleetUnhealthy", got)
			}
			for _, name := range others {
				if !all[name] {
					t.Errorf("got alerts %q, want %s", slices.Sorted(maps.Keys(all)), name)
				}
			}
		})
	}
	if len(fires) > 0 {
		t.Errorf("no tests %q", slices.Sorted(maps.Keys(fires)))
	}
}

// TestInhibitionNames checks that the inhibition rules name existing alerts, and that only a page mutes a page.
func TestInhibitionNames(t *testing.T) {
	severities := map[string]string{}
	for _, r := range alertRules(t) {
		severities[r.Alert] = r.Labels["severity"]
	}
	for i, rule := range inhibitionRules(t) {
		sources, targets := matchingNames(rule.SourceMatchers, severities), matchingNames(rule.TargetMatchers, severities)
		if len(sources) == 0 || len(targets) == 0 {
			t.Errorf("rule %d: sources %q, targets %q", i, sources, targets)
		}
		for _, m := range append(slices.Clone(rule.SourceMatchers), rule.TargetMatchers...) {
			for _, name := range strings.FieldsFunc(m.Value, func(r rune) bool { return strings.ContainsRune("()|", r) }) {
				name = "Podgauge" + strings.TrimPrefix(name, "Podgauge")
				if severities[name] == "" && !strings.HasSuffix(name, "+") && name != "Podgauge" {
					t.Errorf("rule %d: unknown alert %s", i, name)
				}
			}
		}
		for _, source := range sources {
			for _, target := range targets {
				if severities[target] == "critical" && severities[source] != "critical" {
					t.Errorf("rule %d: %s mutes the page %s", i, source, target)
				}
			}
		}
	}
}

// matchingNames returns the alerts that matchers select by name.
func matchingNames(matchers amcommon.Matchers, severities map[string]string) (names []string) {
	for name := range severities {
		if !slices.ContainsFunc(matchers, func(m *amlabels.Matcher) bool { return m.Name == "alertname" && !m.Matches(name) }) {
			names = append(names, name)
		}
	}
	return names
}

// inhibitionRules reads the rules with Alertmanager's parser.
func inhibitionRules(t *testing.T) []amcommon.InhibitRule {
	t.Helper()
	var file struct {
		InhibitRules []amcommon.InhibitRule `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal([]byte(testfile.Read(t, inhibitionFile)), &file); err != nil || len(file.InhibitRules) == 0 {
		t.Fatalf("%s: %d rules, %v", inhibitionFile, len(file.InhibitRules), err)
	}
	return file.InhibitRules
}

func alertName(a model.LabelSet) string { return string(a[model.AlertNameLabel]) }

// firingAlerts returns the firing alerts of each minute of the series of a test.
func firingAlerts(t *testing.T, test ruleTest, duration time.Duration) [][]model.LabelSet {
	t.Helper()
	series := newHistory()
	for _, s := range test.InputSeries {
		series.add(t, s.Series, s.Values, time.Minute)
	}
	minutes := make([][]model.LabelSet, duration/time.Minute+1)
	for minute, firing := range series.evaluate(t, append(serviceRules(t), alertRules(t)...), time.Minute, duration) {
		for _, a := range firing {
			set := model.LabelSet{}
			for name, value := range a.Map() {
				set[model.LabelName(name)] = model.LabelValue(value)
			}
			minutes[minute] = append(minutes[minute], set)
		}
	}
	return minutes
}

// unmuted returns the alerts that Alertmanager's inhibitor does not mute.
func unmuted(t *testing.T, rules []amcommon.InhibitRule, firing []model.LabelSet) []model.LabelSet {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	alerts, err := mem.NewAlerts(t.Context(), time.Hour, 0, nil, log, eventrecorder.NopRecorder(), prometheus.NewRegistry(), nil)
	require.NoError(t, err)
	defer alerts.Close()
	now := time.Now()
	for _, a := range firing {
		one := &alert.Alert{Alert: model.Alert{Labels: a, StartsAt: now, EndsAt: now.Add(time.Hour)}, UpdatedAt: now}
		require.NoError(t, alerts.Put(t.Context(), one))
	}
	inhibitor := inhibit.NewInhibitor(alerts, rules, log, eventrecorder.NopRecorder())
	go inhibitor.Run()
	defer inhibitor.Stop()
	inhibitor.WaitForLoading()
	isMuted := func(a model.LabelSet) bool { return inhibitor.Mutes(t.Context(), a) }
	return slices.DeleteFunc(slices.Clone(firing), isMuted)
}
