package openmetrics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	fleetNodes    = 50 // in two clusters with the same node names
	fleetInterval = 2 * time.Minute
	fleetDuration = 150 * time.Minute // longer than any "for", except that of PodgaugeVersionSkew
	fleetPodLife  = 20 * time.Minute
)

// fleetSteps is the number of scrapes.
const fleetSteps = int(fleetDuration/fleetInterval) + 1

// TestHealthyFleetRaisesNoAlert checks that no alert fires for a busy healthy fleet. GPUs are at full load: power-capped, with
// preallocated memory, or with warm inference models. Pods run for 20 minutes, applications cause Xids, and links have single errors. A
// rollout of podgauge restarts one pod after another. With make dashboards-check, promtool evaluates the same series.
func TestHealthyFleetRaisesNoAlert(t *testing.T) {
	fleet := healthyFleet(t)
	promQL := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promQL})
	families := map[string]recordedSeries{}
	for _, s := range fleet {
		name, _, _ := strings.Cut(s, "{")
		family := families[name]
		family.record(t, promQL, s, fleetInterval)
		families[name] = family
	}
	var recorded recordedSeries
	for _, rule := range serviceRules(t) {
		for _, selector := range selectors(t, rule.Expr) {
			recorded = append(recorded, families[selector.Name]...)
			delete(families, selector.Name)
		}
	}
	recorded.evaluateRecordings(t, engine, serviceRules(t), fleetInterval, fleetDuration)
	for _, series := range recorded {
		name := series.Labels().Get(model.MetricNameLabel)
		families[name] = append(families[name], series)
	}
	for _, rule := range alertRules(t) {
		var recorded recordedSeries
		for _, selector := range selectors(t, rule.Expr) {
			recorded = append(recorded, families[selector.Name]...)
			if len(families[selector.Name]) == 0 && !slices.Contains(faultFamilies, selector.Name) {
				t.Errorf("%s: the fleet lacks %s", rule.Alert, selector.Name)
			}
		}
		for step, firing := range recorded.evaluate(t, engine, rule, fleetInterval, fleetDuration) {
			for _, labels := range firing {
				t.Errorf("%s fires after %s: %s", rule.Alert, time.Duration(step)*fleetInterval, labels)
			}
		}
	}
	if os.Getenv("PODGAUGE_PROMTOOL") == "" {
		t.Log("not evaluated with promtool: run make dashboards-check")
		return
	}
	promtool := exec.CommandContext(t.Context(), "promtool", "test", "rules", writeFleetRuleTest(t, fleet))
	if output, err := promtool.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%.4000s", err, output)
	}
}

// faultFamilies are families that a healthy fleet lacks.
var faultFamilies = []string{
	"nvidia_gpu_unhealthy_info", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds", "nvidia_gpu_unallocatable_info", "kube_node_info",
	"node:podgauge_out_of_service:max30d", "node:podgauge_gpus_failed:count",
}

// selectors returns a selector of an expression for each family.
func selectors(t *testing.T, text string) (all []*parser.VectorSelector) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Fatal(err)
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok && !slices.ContainsFunc(all, func(known *parser.VectorSelector) bool { return known.Name == s.Name }) {
			all = append(all, s)
		}
		return nil
	})
	return all
}

// writeFleetRuleTest writes a file for `promtool test rules` that expects no alert at several times.
func writeFleetRuleTest(t *testing.T, fleet []string) (file string) {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "rule_files: [%q]\nevaluation_interval: %s\ntests:\n  - interval: %s\n    input_series:\n", rules, model.Duration(fleetInterval), model.Duration(fleetInterval))
	for _, s := range fleet {
		series, values, _ := strings.Cut(s, "} ")
		fmt.Fprintf(&text, "      - series: '%s}'\n        values: %s\n", series, values)
	}
	text.WriteString("    alert_rule_test:\n")
	for _, rule := range alertRules(t) {
		for _, at := range []time.Duration{fleetDuration / 3, fleetDuration * 2 / 3, fleetDuration} {
			fmt.Fprintf(&text, "      - {eval_time: %s, alertname: %s, exp_alerts: []}\n", model.Duration(at), rule.Alert)
		}
	}
	file = filepath.Join(t.TempDir(), "fleet_test.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// healthyFleet returns the series of the fleet that alerts select, in promtool's notation. The nodes' series derive from golden files.
func healthyFleet(t *testing.T) (fleet []string) {
	t.Helper()
	promQL := parser.NewParser(parser.Options{})
	selected := map[string][]*parser.VectorSelector{}
	for _, rule := range parseRules(t, readFile(t, rulesFile)) {
		for _, selector := range selectors(t, rule.Expr) {
			selected[selector.Name] = append(selected[selector.Name], selector)
		}
	}
	for number := range fleetNodes {
		n := fleetNode{number: number, cluster: []string{"east", "west"}[number%2], name: fmt.Sprintf("node-%d", number/2)}
		// Three of five nodes have H100s, the others MIG devices of A100s, or B200s.
		golden := []string{"h100", "h100", "h100", "a100_mig", "b200_nvl"}[number%5]
		for line := range strings.Lines(readFile(t, "../../../internal/app/testdata/"+golden+".prom")) {
			end := strings.LastIndex(line, " ")
			if strings.HasPrefix(line, "#") || end < 0 {
				continue
			}
			metric, err := promQL.ParseMetric(line[:end])
			if err != nil {
				t.Fatal(err)
			}
			value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
			if err != nil {
				t.Fatal(err)
			}
			if metric.Get(model.MetricNameLabel) == "nvidia_gpu_unallocatable_info" { // a GPU without MIG devices is not healthy
				continue
			}
			if slices.ContainsFunc(selected[metric.Get(model.MetricNameLabel)], func(s *parser.VectorSelector) bool {
				return !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool { return !m.Matches(metric.Get(m.Name)) })
			}) {
				fleet = append(fleet, n.series(metric, value)...)
			}
		}
		fleet = append(fleet, n.ownSeries()...)
	}
	for _, cluster := range []string{"east", "west"} {
		set := fmt.Sprintf(`{cluster=%q,namespace="gpu",daemonset="podgauge"} `, cluster)
		pods := fleetNodes / 2
		fleet = append(fleet,
			fmt.Sprintf("kube_daemonset_status_desired_number_scheduled%s%dx%d", set, pods, fleetSteps),
			fmt.Sprintf("kube_daemonset_status_number_ready%s%dx%d", set, pods-1, fleetSteps),
			fmt.Sprintf("kube_daemonset_status_updated_number_scheduled%s0+0.5x%d", set, fleetSteps),
			fmt.Sprintf(`kube_pod_status_phase{cluster=%q,namespace="research",pod="job-0",phase="Failed"} 0x3 1x%d`, cluster, fleetSteps))
	}
	return fleet
}

// fleetNode is a node of the fleet.
type fleetNode struct {
	number        int
	cluster, name string
}

// series returns the node's series for a series of a golden file: a series for each pod, if it has the labels of a pod.
func (n fleetNode) series(metric labels.Labels, value float64) (all []string) {
	name := metric.Get(model.MetricNameLabel)
	b := labels.NewBuilder(metric).Del(model.MetricNameLabel).Set("cluster", n.cluster).Set("node", n.name)
	for _, id := range []string{"uuid", "mig_uuid", "device_id"} {
		if metric.Get(id) != "" {
			b.Set(id, fmt.Sprintf("%s-%d", metric.Get(id), n.number))
		}
	}
	if metric.Get("pod") == "" {
		return []string{name + b.Labels().String() + " " + busyValues(metric, value, fleetSteps)}
	}
	if isWarm(metric) {
		return []string{name + b.Labels().String() + " " + busyValues(metric, value, fleetSteps)}
	}
	life := int(fleetPodLife / fleetInterval)
	begin := 0
	for pod := 0; begin < fleetSteps; pod++ {
		end := min(fleetSteps, (pod+1)*life-n.number%life)
		if begin > 0 {
			// A scrape between two pods lacks the series of both.
			values := fmt.Sprintf("_x%d %s", begin, busyValues(metric, value, end-begin-1))
			all = append(all, name+b.Set("pod", fmt.Sprintf("job-%d", pod)).Labels().String()+" "+values+" stale")
		} else {
			all = append(all, name+b.Set("pod", "job-0").Labels().String()+" "+busyValues(metric, value, end)+" stale")
		}
		begin = end
	}
	return all
}

// isWarm reports whether a device has idle inference: the first GPU of each node, and MIG devices.
func isWarm(metric labels.Labels) bool {
	return metric.Get("mig_uuid") != "" || strings.HasSuffix(metric.Get("uuid"), "-000000000000")
}

// busyValues returns the values of a busy healthy GPU, or the golden file's value.
func busyValues(metric labels.Labels, value float64, steps int) string {
	perStep := fleetInterval.Seconds()
	rise := func(by float64) string { return fmt.Sprintf("%g+%gx%d", value, by, max(steps-1, 0)) }
	switch metric.Get(model.MetricNameLabel) {
	case "nvidia_gpu_throttle_seconds_total":
		if metric.Get("reason") == "sw_power_cap" {
			return rise(perStep * 0.9)
		}
		return rise(perStep * 0.02)
	case "nvidia_gpu_ecc_aggregate_errors_total":
		if metric.Get("severity") == "corrected" {
			return rise(3)
		}
	case "nvidia_gpu_nvlink_errors_total":
		if strings.HasPrefix(metric.Get("type"), "crc") {
			return rise(2)
		}
	case "nvidia_gpu_pcie_replays_total":
		return rise(1)
	case "nvidia_gpu_utilization_ratio", "nvidia_gpu_graphics_engine_active_ratio":
		value = 0.98
		if isWarm(metric) {
			value = 0
		}
	case "nvidia_gpu_memory_free_bytes":
		value = 0.5e9 // the rest is preallocated
	case "nvidia_gpu_memory_used_bytes":
		if metric.Get("pod") != "" {
			value = 9e9
		}
	}
	return fmt.Sprintf("%gx%d", value, max(steps-1, 0))
}

// ownSeries returns the node's series that golden files lack or that a rollout of podgauge changes.
func (n fleetNode) ownSeries() []string {
	node := fmt.Sprintf(`cluster=%q,node=%q`, n.cluster, n.name)
	gpu := node + fmt.Sprintf(`,gpu="1",uuid="GPU-xid-%d",mig_uuid="",namespace="",pod="",container=""`, n.number)
	restart := 3 + n.number // the scrape that fails during the rollout of podgauge
	left := fleetSteps - restart - 1
	target := func(pod int) string {
		return fmt.Sprintf(`%s,job="podgauge",instance="10.%d.0.%d:9400"`, node, pod, n.number)
	}
	return []string{
		fmt.Sprintf(`up{%s} 1x%d stale`, target(0), restart-1),
		fmt.Sprintf(`up{%s} _x%d 0 1x%d`, target(1), restart, left),
		fmt.Sprintf(`podgauge_build_info{%s,version="v1",goversion="go1"} 1x%d stale`, target(0), restart-1),
		fmt.Sprintf(`podgauge_build_info{%s,version="v2",goversion="go1"} _x%d 1x%d`, target(1), restart+1, left),
		fmt.Sprintf(`podgauge_events_up{%s} 1x%d _ 1x%d`, node, restart-1, left),
		fmt.Sprintf(`podgauge_allocations_age_seconds{%s} 9x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_state_up{%s} 1x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_missing_gpus{%s} 0x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_incident_store_up{%s} 1x%d`, node, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_xid_errors_total{%s,xid="31"} 0+0.1x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_xid_last_timestamp_seconds{%s,xid="13"} _x5 600x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_repair_pending{%s,unit="channel"} 0x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_unrepairable_memory{%s} 0x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_health_since_timestamp_seconds{%s} 0x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_unattributed_processes{%s} 2x%d`, gpu, fleetSteps), // a display
		fmt.Sprintf(`nvidia_gpu_unattributed_memory_used_bytes{%s} 3e8x%d`, gpu, fleetSteps),
		fmt.Sprintf(`nvidia_gpu_row_remap_banks{%s,availability="low"} 0x%d`, gpu, fleetSteps),
		fmt.Sprintf(`podgauge_cdi_spec_up{%s,class="gpu"} 1x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_config_unknown_keys{%s} 0x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_kubernetes_requests_total{%s,code="200"} 0+9x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_kubernetes_requests_total{%s,code="error"} 0+1x%d`, node, fleetSteps),
		fmt.Sprintf(`podgauge_kubernetes_requests_total{%s,code="409"} 0+5x%d`, node, fleetSteps),
	}
}
