package openmetrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// withoutServiceState are the alerts that also fire for devices and nodes out of service, with the reason.
var withoutServiceState = map[string]string{
	"PodgaugeAbsent":                   "there is no podgauge, so no device is known",
	"PodgaugeDaemonSetNotReady":        "the DaemonSet's status names no node",
	"PodgaugeKubernetesRequestsFailed": "podgauge-kube is of no node",
	"PodgaugeRetiredTooLong":           "it is the alert about retired devices",
}

// ofPresentDevices are the alerts that compare exported devices, or whose tests are shorter than a release and the alert's delay.
var ofPresentDevices = []string{"PodgaugeDriverSkew", "PodgaugeFabricNotReady", "PodgaugeMemoryNearlyFull", "PodgaugeNvlinkDown", "PodgaugeNvlinkSlow", "PodgaugeStraggler", "PodgaugeVbiosSkew"}

// cordonedMark begins the lines of rules that the chart's value prometheusRule.cordoned enables.
const cordonedMark = "# kube-state-metrics: "

// serviceState is a state of all devices and nodes of a test's series.
type serviceState struct {
	name     string
	cordoned bool   // with the rules for kube-state-metrics
	device   string // a series of each device; %s is its labels
	node     string // a series of each node
	values   string
	vanishes bool // the devices are exported for five intervals only
	inUse    bool // in service: the alert fires
}

var serviceStates = []serviceState{
	{name: "retired", device: `nvidia_gpu_unhealthy_info{%s,reason="retired",action=""}`, values: "1x3000"},
	{name: "released", device: `nvidia_gpu_unhealthy_info{%s,reason="released",action=""}`, values: "1x3000"},
	{name: "excluded", device: `nvidia_gpu_unallocatable_info{%s,reason="excluded"}`, values: "1x3000"},
	{name: "retired, then gone", device: `nvidia_gpu_unhealthy_info{%s,reason="retired",action=""}`, values: "1x5 stale", vanishes: true},
	{name: "released, then gone", device: `nvidia_gpu_unhealthy_info{%s,reason="released",action=""}`, values: "_x2 1x3 stale", vanishes: true, inUse: true},
	{name: "cordoned", cordoned: true, node: `kube_node_spec_unschedulable{%s}`, values: "1x3000"},
	{name: "not ready", cordoned: true, node: `kube_node_status_condition{%s,condition="Ready",status="true"}`, values: "0x3000"},
	{name: "schedulable", cordoned: true, node: `kube_node_spec_unschedulable{%s}`, values: "0x3000", inUse: true},
}

// TestServiceStates evaluates each alert on the series for which it fires, with all devices in each state. An alert must fire in service, and
// must not fire out of service.
func TestServiceStates(t *testing.T) {
	text := testfile.Read(t, rulesFile)
	isAlert := func(r rulefmt.Rule) bool { return r.Record == "" }
	recordings := map[bool][]rulefmt.Rule{
		false: recordingsOf(t, rulesFile),
		true:  slices.DeleteFunc(parseRules(t, strings.ReplaceAll(text, cordonedMark, "")), isAlert),
	}
	files := filesOf(t, ruleTests)
	for _, rule := range alertRules(t) {
		if withoutServiceState[rule.Alert] != "" {
			continue
		}
		t.Run(rule.Alert, func(t *testing.T) {
			t.Parallel()
			test, want, interval := firstFiring(t, files, rule.Alert)
			ofJobs := strings.Contains(testfile.Read(t, jobsFile), "- alert: "+rule.Alert+"\n")
			for _, state := range serviceStates {
				if state.inUse && state.vanishes && slices.Contains(ofPresentDevices, rule.Alert) {
					continue
				}
				tested := slices.Clone(recordings[state.cordoned])
				if ofJobs {
					tested = append(tested, recordingsOf(t, jobsFile)...)
				}
				tested = append(tested, rule)
				firing := state.series(t, test).evaluate(t, tested, interval, time.Duration(want.EvalTime))
				got := firingOf(rule.Alert, firing[len(firing)-1])
				if expected := want.expected(); state.inUse && !slices.Equal(got, expected) {
					t.Errorf("%s: got %q, want %q", state.name, got, expected)
				}
				if !state.inUse && len(got) > 0 {
					t.Errorf("%s: fires for %q", state.name, got)
				}
			}
		})
	}
}

// firstFiring returns a test in which an alert fires, its expectation, and the interval of evaluations.
func firstFiring(t *testing.T, files []string, alert string) (ruleTest, ruleAlertTest, time.Duration) {
	t.Helper()
	for _, name := range files {
		file := readRuleTests(t, name)
		for _, test := range file.Tests {
			for _, want := range test.AlertRuleTest {
				if want.Alertname == alert && len(want.ExpAlerts) > 0 {
					return test, want, time.Duration(file.EvaluationInterval)
				}
			}
		}
	}
	t.Fatalf("no test in which %s fires", alert)
	return ruleTest{}, ruleAlertTest{}, 0
}

// series returns the series of a test in the state. Each node has a further device, because some tests have series of the node only.
func (state *serviceState) series(t *testing.T, test ruleTest) *history {
	t.Helper()
	all := newHistory()
	devices, nodes, seen := map[string]bool{}, map[string]bool{}, map[string]bool{}
	interval := time.Duration(test.Interval)
	info := "1x3000"
	if state.vanishes {
		info = "1x5 stale"
	}
	for _, s := range test.InputSeries {
		metric, err := promQL.ParseMetric(s.Series)
		require.NoError(t, err)
		node := fmt.Sprintf("cluster=%q,node=%q", metric.Get("cluster"), metric.Get("node"))
		nodes[node] = nodes[node] || metric.Get("node") != ""
		if uuid := metric.Get("uuid"); uuid != "" {
			devices[fmt.Sprintf("%s,uuid=%q,mig_uuid=%q", node, uuid, metric.Get("mig_uuid"))] = true
		}
		values := s.Values
		if state.vanishes && metric.Get(model.MetricNameLabel) == "nvidia_gpu_info" {
			if values = info; seen[s.Series] { // a series with a gap
				continue
			}
			seen[s.Series] = true
		}
		all.add(t, s.Series, values, interval)
	}
	for node, ok := range nodes {
		if !ok {
			continue
		}
		if device := node + `,uuid="GPU-other",mig_uuid=""`; !state.inUse {
			devices[device] = true
			all.add(t, "nvidia_gpu_info{"+device+`,pci_bus_id="other"}`, info, interval)
		}
		if state.node != "" {
			all.add(t, fmt.Sprintf(state.node, node), state.values, interval)
		}
	}
	for device := range devices {
		if state.device != "" {
			all.add(t, fmt.Sprintf(state.device, device), state.values, interval)
		}
	}
	return all
}

// TestAlertsWithoutDelay checks that alerts without "for" are in the group that records the devices in service. In another group, their series
// would be older than the fault.
func TestAlertsWithoutDelay(t *testing.T) {
	_, health, _ := strings.Cut(testfile.Read(t, rulesFile), "- name: podgauge-health\n")
	health, _, _ = strings.Cut(health, "\n  - name: ")
	for _, rule := range alertRules(t) {
		if usesService := strings.Contains(rule.Expr, "_service:"); usesService && rule.For == 0 && !strings.Contains(health, "- alert: "+rule.Alert+"\n") {
			t.Errorf("%s has no \"for\", and is outside the group podgauge-health", rule.Alert)
		}
	}
}
