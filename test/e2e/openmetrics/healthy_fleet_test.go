package openmetrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	fleetNodes    = 50 // in two clusters with the same node names
	fleetInterval = 2 * time.Minute
	fleetDuration = 150 * time.Minute // longer than any "for", except that of PodgaugeVersionSkew
	fleetPodLife  = 20 * time.Minute
	fleetSteps    = int(fleetDuration/fleetInterval) + 1 // scrapes
)

// fleetSeries is a series in promtool's notation.
type fleetSeries struct{ name, labels, values string }

// TestHealthyFleetRaisesNoAlert checks that no alert fires for a busy healthy fleet. GPUs are at full load: power-capped, with
// preallocated memory, or with warm inference models. Pods run for 20 minutes, applications cause Xids, and links have single errors. A
// rollout of podgauge restarts one pod after another.
func TestHealthyFleetRaisesNoAlert(t *testing.T) {
	selected := map[string][]*parser.VectorSelector{}
	// The rules for jobs need an evaluation each minute.
	ofJobs := func(r rulefmt.Rule) bool { return strings.Contains(r.Expr, "workload") }
	rules := append(recordingsOf(t, rulesFile), slices.DeleteFunc(alertRules(t), ofJobs)...)
	for _, rule := range rules {
		for _, selector := range selectors(t, rule.Expr) {
			selected[selector.Name] = append(selected[selector.Name], selector)
		}
	}
	h, exported := newHistory(), map[string]bool{}
	eachFleetSeries(t, func(s fleetSeries) {
		if len(selected[s.name]) > 0 {
			h.add(t, s.name+s.labels, s.values, fleetInterval)
			exported[s.name] = true
		}
	})
	for _, rule := range recordingsOf(t, rulesFile) {
		exported[rule.Record] = true
	}
	for name := range selected {
		if !exported[name] && !slices.Contains(faultFamilies, name) {
			t.Errorf("the fleet lacks %s", name)
		}
	}
	for step, firing := range h.evaluate(t, rules, fleetInterval, fleetDuration) {
		for _, a := range firing {
			t.Errorf("after %s: %s fires", time.Duration(step)*fleetInterval, a)
		}
	}
}

// faultFamilies are families that a healthy fleet lacks, and overrides.
var faultFamilies = []string{
	"nvidia_gpu_unhealthy_info", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds", "nvidia_gpu_unallocatable_info", "kube_node_info",
	"model:nvidia_gpu_nvlink_links_up:override", "model:nvidia_gpu_nvlink_speed_bytes_per_second:override",
}

// selectors returns a selector of an expression for each family.
func selectors(t *testing.T, text string) (all []*parser.VectorSelector) {
	t.Helper()
	for _, s := range nodesOf[*parser.VectorSelector](parseExpr(t, text)) {
		if !slices.ContainsFunc(all, func(known *parser.VectorSelector) bool { return known.Name == s.Name }) {
			all = append(all, s)
		}
	}
	return all
}

// eachFleetSeries calls a function for each series of the fleet. The nodes' series derive from golden files.
func eachFleetSeries(t *testing.T, add func(s fleetSeries)) {
	t.Helper()
	for number := range fleetNodes {
		n := fleetNode{number, []string{"east", "west"}[number%2], fmt.Sprintf("node-%d", number/2)}
		// Three of five nodes have H100s, the others MIG devices of A100s, or B200s.
		golden := []string{"h100", "h100", "h100", "a100_mig", "b200_nvl"}[number%5]
		replaced := map[string]bool{"nvidia_gpu_unallocatable_info": true} // a GPU without MIG devices is not healthy
		own := n.ownSeries()
		for _, s := range own {
			replaced[s.name] = true
			add(s)
		}
		eachGoldenSeries(t, golden, func(metric labels.Labels, value float64) {
			if !replaced[metric.Get(model.MetricNameLabel)] {
				for _, s := range n.series(metric, value) {
					add(s)
				}
			}
		})
	}
	for _, cluster := range []string{"east", "west"} {
		set := fmt.Sprintf(`{cluster=%q,namespace="gpu",daemonset="podgauge"}`, cluster)
		const pods = fleetNodes / 2
		add(fleetSeries{"kube_daemonset_status_desired_number_scheduled", set, fmt.Sprintf("%dx%d", pods, fleetSteps)})
		add(fleetSeries{"kube_daemonset_status_number_ready", set, fmt.Sprintf("%dx%d", pods-1, fleetSteps)})
		add(fleetSeries{"kube_daemonset_status_updated_number_scheduled", set, fmt.Sprintf("0+0.5x%d", fleetSteps)})
		failed := fmt.Sprintf(`{cluster=%q,namespace="research",pod="job-0",phase="Failed"}`, cluster)
		for code, rate := range map[string]int{"200": 900, "409": 50, "error": 2} {
			kube := fmt.Sprintf(`{cluster=%q,job="podgauge-kube",instance="10.0.0.1:9401",code=%q}`, cluster, code)
			add(fleetSeries{"podgauge_kube_requests_total", kube, fmt.Sprintf("0+%dx%d", rate, fleetSteps)})
		}
		add(fleetSeries{"kube_pod_status_phase", failed, fmt.Sprintf("0x3 1x%d", fleetSteps)})
	}
}

// fleetNode is a node of the fleet.
type fleetNode struct {
	number        int
	cluster, name string
}

// series returns the node's series for a series of a golden file: a series for each pod, if it has the labels of a pod.
func (n fleetNode) series(metric labels.Labels, value float64) (all []fleetSeries) {
	b := labels.NewBuilder(metric).Del(model.MetricNameLabel).Set("cluster", n.cluster).Set("node", n.name)
	for _, id := range []string{"uuid", "mig_uuid", "device_id"} {
		if metric.Get(id) != "" {
			b.Set(id, fmt.Sprintf("%s-%d", metric.Get(id), n.number))
		}
	}
	add := func(values string) {
		all = append(all, fleetSeries{metric.Get(model.MetricNameLabel), b.Labels().String(), values})
	}
	if metric.Get("pod") == "" || isWarm(metric) {
		add(busyValues(metric, value, fleetSteps))
		return all
	}
	life := int(fleetPodLife / fleetInterval)
	for pod, begin := 0, 0; begin < fleetSteps; pod++ {
		end := min(fleetSteps, (pod+1)*life-n.number%life)
		b.Set("pod", fmt.Sprintf("job-%d", pod))
		if begin == 0 {
			add(busyValues(metric, value, end) + " stale")
		} else {
			// A scrape between two pods lacks the series of both.
			add(fmt.Sprintf("_x%d %s stale", begin, busyValues(metric, value, end-begin-1)))
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
func (n fleetNode) ownSeries() (all []fleetSeries) {
	node := fmt.Sprintf(`cluster=%q,node=%q`, n.cluster, n.name)
	pods := func(pod string) string {
		return node + fmt.Sprintf(`,gpu="1",uuid="GPU-xid-%d",mig_uuid="",namespace="research",pod="%s",container="main",reason="xid_31"`, n.number, pod)
	}
	gpu := node + fmt.Sprintf(`,gpu="1",uuid="GPU-xid-%d",mig_uuid="",namespace="",pod="",container=""`, n.number)
	restart := 3 + n.number // the scrape that fails during the rollout of podgauge
	left := fleetSteps - restart - 1
	target := func(pod int) string {
		return fmt.Sprintf(`%s,job="podgauge",instance="10.%d.0.%d:9400"`, node, pod, n.number)
	}
	for _, s := range [][3]string{
		{"up", target(0), fmt.Sprintf("1x%d stale", restart-1)},
		{"up", target(1), fmt.Sprintf("_x%d 0 1x%d", restart, left)},
		{"podgauge_build_info", target(0) + `,version="v1",goversion="go1"`, fmt.Sprintf("1x%d stale", restart-1)},
		{"podgauge_build_info", target(1) + `,version="v2",goversion="go1"`, fmt.Sprintf("_x%d 1x%d", restart+1, left)},
		{"podgauge_events_up", node, fmt.Sprintf("1x%d _ 1x%d", restart-1, left)},
		{"podgauge_allocations_age_seconds", node, fmt.Sprintf("9x%d", fleetSteps)},
		{"podgauge_state_up", node, fmt.Sprintf("1x%d", fleetSteps)},
		{"podgauge_missing_gpus", node, fmt.Sprintf("0x%d", fleetSteps)},
		{"nvidia_gpu_allocation_application_error_last_timestamp_seconds", pods("job-1"), fmt.Sprintf("_x9 1000x%d", fleetSteps)},
		{"nvidia_gpu_allocation_application_error_last_timestamp_seconds", pods(fmt.Sprintf("own-%c", 'a'+n.number%26)), fmt.Sprintf("_x9 1000x%d", fleetSteps)},
		{"nvidia_gpu_xid_errors_total", gpu + `,xid="31"`, fmt.Sprintf("0+0.1x%d", fleetSteps)},
		{"nvidia_gpu_xid_last_timestamp_seconds", gpu + `,xid="13"`, fmt.Sprintf("_x5 600x%d", fleetSteps)},
		{"nvidia_gpu_repair_pending", gpu + `,unit="channel"`, fmt.Sprintf("0x%d", fleetSteps)},
		{"nvidia_gpu_unrepairable_memory", gpu, fmt.Sprintf("0x%d", fleetSteps)},
		{"nvidia_gpu_health_since_timestamp_seconds", gpu, fmt.Sprintf("0x%d", fleetSteps)},
		{"nvidia_gpu_unattributed_processes", gpu, fmt.Sprintf("2x%d", fleetSteps)}, // a display
		{"nvidia_gpu_unattributed_memory_used_bytes", gpu, fmt.Sprintf("3e8x%d", fleetSteps)},
		{"nvidia_gpu_row_remap_banks", gpu + `,availability="low"`, fmt.Sprintf("0x%d", fleetSteps)},
		{"podgauge_cdi_spec_up", node + `,class="gpu"`, fmt.Sprintf("1x%d", fleetSteps)},
		{"podgauge_nvswitch_error_last_timestamp_seconds", node + `,switch="0000:c2:00.0",sxid="12028",severity="nonfatal"`, fmt.Sprintf("600x%d", fleetSteps)},
		{"podgauge_rdma_allocation_info", node + `,device="mlx5_0",namespace="research",pod="job-0",container="main"`, fmt.Sprintf("1x%d", fleetSteps)},
		{"podgauge_rdma_port_up", node + `,device="mlx5_0",port="1"`, fmt.Sprintf("1x%d", fleetSteps)},
		{"podgauge_rdma_port_link_downed_total", node + `,device="mlx5_0",port="1"`, fmt.Sprintf("2x20 3x%d", fleetSteps)},
		{"podgauge_config_unknown_keys", node, fmt.Sprintf("0x%d", fleetSteps)},
	} {
		all = append(all, fleetSeries{s[0], "{" + s[1] + "}", s[2]})
	}
	return all
}
