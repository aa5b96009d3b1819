package openmetrics

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// expectedEmpty are the panels with queries without series for the golden files' nodes, with the reason.
var expectedEmpty = map[string]string{
	"Plugin response time (slowest 20 nodes)":  "the golden files omit durations",
	"Kubelet response time (slowest 20 nodes)": "the golden files omit durations",
	"Registrations":                 "no registration is repeated",
	"Rejected requests":             "no request is rejected",
	"Throttled, by reason":          "counters are constant",
	"Throttled, by reason (top 20)": "counters are constant",
	"Kubelet errors":                "the golden files omit failed requests",
	"Required actions":              "no action is required",
	"PCIe errors":                   "no errors",
	"Xids":                          "no Xid is new",
}

// TestDashboardQueries runs the dashboards' queries with Prometheus' engine on a fleet with a node for each golden file. It finds
// ambiguous joins and queries without series.
func TestDashboardQueries(t *testing.T) {
	nodes := recordedFleet(t, "*")
	empty := map[string]int{}
	for name, b := range readDashboards(t) {
		for _, q := range b.targets() {
			if len(nodes.query(t, selectAll.Replace(q.Expr), steadyDuration)) > 0 {
				continue
			}
			empty[q.title]++
			if expectedEmpty[q.title] == "" {
				t.Errorf("%s: %s: no series: %s", name, q.title, q.Expr)
			}
		}
	}
	for title := range expectedEmpty {
		if empty[title] == 0 {
			t.Errorf("%s: all queries have series, or unknown panel", title)
		}
	}
}

// fleetValues are values of the Fleet dashboard, by query and golden file, counted by hand. The energy is that of 600 W on each node and
// in each namespace; prices are 0.3 per kWh and 2 per GPU-hour, and the time range is half an hour.
var fleetValues = []struct {
	panel, query, node, labels string
	want                       float64
}{
	// Five of eight GPUs are allocated: four to research, 90 % utilized, and one to serving, idle.
	{"Devices", "A", "h100", `{}`, 8},
	{"Allocated", "A", "h100", `{}`, 5.0 / 8},
	{"Unallocated", "A", "h100", `{}`, 3},
	{"Utilization", "A", "h100", `{}`, 4 * 0.9 / 8},
	{"Power", "A", "h100", `{}`, 4*637 + 4*70},
	{"Energy", "A", "h100", `{}`, 0.3},
	{"Idle but allocated", "A", "h100", `{}`, 1},
	{"Idle but allocated", "B", "h100", `{}`, 1.0 / 5},
	{"Requested by pending pods", "A", "h100", `{}`, 4},
	{"Hottest nodes (top 20)", "A", "h100", `{node="h100"}`, 25},
	{"Idle GPU-hours, by namespace (top 20)", "A", "h100", `{namespace="serving"}`, 0.5},
	{"Idle allocated devices (longest 50)", "A", "h100", `{container="main", gpu="4", model="NVIDIA H100 80GB HBM3", namespace="serving", ` +
		`node="h100", pod="embed", uuid="GPU-0000a104-5eed-4000-8000-000000000004"}`, 0.5},
	{"Energy, by namespace (top 20)", "A", "h100", `{namespace="(unattributed)"}`, 0.3},
	{"Cost, by namespace (top 20)", "A", "h100", `{namespace="research"}`, 0.3*0.3 + 4*0.5*2},
	{"Cost, by namespace (top 20)", "A", "h100", `{namespace="(unattributed)"}`, 0.3 * 0.3},
	{"Devices, by namespace (top 20)", "A", "h100", `{namespace="research"}`, 4},
	{"By namespace", "B", "h100", `{namespace="research"}`, 0.9},
	{"By namespace", "E", "h100", `{namespace="research"}`, 2},
	{"By namespace", "F", "h100", `{namespace="serving"}`, 0.5},
	{"By namespace", "G", "h100", `{namespace="research"}`, 0.3},
	{"By namespace", "H", "h100", `{namespace="serving"}`, 0.3*0.3 + 0.5*2},
	// One of seven MIG devices of a profile is allocated; a whole GPU is allocated and idle. Limit and temperature are 89 and 32 °C.
	{"Devices", "A", "a100_mig", `{}`, 11},
	{"By MIG profile", "A", "a100_mig", `{mig_profile="1g.10gb"}`, 7},
	{"By MIG profile", "B", "a100_mig", `{mig_profile="1g.10gb"}`, 1},
	{"By MIG profile", "C", "a100_mig", `{mig_profile="1g.10gb"}`, 6},
	{"MIG devices, by profile", "A", "a100_mig", `{mig_profile="1c.3g.40gb"}`, 1},
	{"MIG devices, by profile", "B", "a100_mig", `{mig_profile="3g.40gb"}`, 1},
	{"Unallocated devices and pending pods", "A", "a100_mig", `{resource="nvidia.com/mig-1g.10gb"}`, 6},
	{"Unallocated devices and pending pods", "A", "a100_mig", `{resource="nvidia.com/gpu"}`, 0},
	{"Idle but allocated", "A", "a100_mig", `{}`, 1},
	{"Hottest nodes (top 20)", "A", "a100_mig", `{node="a100_mig"}`, 89 - 32},
	// One of four GPUs is unhealthy, and allocated.
	{"Unhealthy", "A", "gpu_failed", `{}`, 1},
	{"Unhealthy", "B", "gpu_failed", `{}`, 1.0 / 4},
	{"Unallocated", "A", "gpu_failed", `{}`, 1},
	{"By node", "C", "gpu_failed", `{node="gpu_failed"}`, 1.0 / 4},
	// The two containers of a shared GPU have no separate readings.
	{"By namespace", "A", "time_sliced", `{namespace="lab"}`, 1},
}

// TestFleetValues checks values of the Fleet dashboard.
func TestFleetValues(t *testing.T) {
	exprs := map[string]string{}
	for _, q := range readDashboards(t)["fleet"].targets() {
		exprs[q.title+q.RefID] = q.Expr
	}
	fleets := map[string]*history{}
	for _, want := range fleetValues {
		if fleets[want.node] == nil {
			fleets[want.node] = recordedFleet(t, want.node)
		}
		got := math.NaN()
		for _, sample := range fleets[want.node].query(t, selectAll.Replace(exprs[want.panel+want.query]), steadyDuration) {
			if sample.Metric.String() == want.labels {
				got = sample.F
			}
		}
		if math.IsNaN(got) || math.Abs(got-want.want) > 1e-9 {
			t.Errorf("%s, %s: %s of %s: got %v, want %v", want.panel, want.query, want.labels, want.node, got, want.want)
		}
	}
}

// TestRecordingRulesCount checks that sums over recorded series, which join devices with their models, equal sums over the devices'
// series.
func TestRecordingRulesCount(t *testing.T) {
	nodes := loadFleet(t, "*")
	const withInfo = ` and on (node) nvidia_gpu_info` // some golden files have few families
	each := map[string]string{
		"node:podgauge_nvml_up:min":                             `podgauge_nvml_up`,
		"node_model_mig_profile:podgauge_devices:count":         `nvidia_gpu_healthy >= bool 0`,
		"node_model_mig_profile:podgauge_devices_allocated:sum": `nvidia_gpu_allocated`,
		"node_model_mig_profile:podgauge_devices_unhealthy:sum": `nvidia_gpu_healthy == bool 0`,
		"node_model:nvidia_gpu_utilization_ratio:sum":           `nvidia_gpu_utilization_ratio`,
		"node_model:nvidia_gpu_utilization_ratio:count":         `nvidia_gpu_utilization_ratio >= bool 0`,
		"node_model:nvidia_gpu_power_watts:sum":                 `nvidia_gpu_power_watts`,
		"node_model:nvidia_gpu_memory_used_bytes:sum":           `nvidia_gpu_memory_used_bytes{mig_uuid=""}`,
	}
	for _, r := range recordingRules(t) {
		if want := each[r.Record]; want != "" {
			delete(each, r.Record)
			if len(nodes.query(t, `abs(sum((`+r.Expr+`)`+withInfo+`) - sum((`+want+`)`+withInfo+`)) < 1e-6`, steadyDuration)) == 0 {
				t.Errorf("sum of %s differs from the sum of %s", r.Record, want)
			}
		}
	}
	if len(each) > 0 {
		t.Errorf("unknown rules %v", each)
	}
}

// steadyDuration is the duration of the fleet's constant series.
const steadyDuration = 40 * time.Minute

// selectAll expands the variables of a query with All.
var selectAll = strings.NewReplacer("$__range", "30m", "$__rate_interval", "5m", "$__interval", "30m", "$price_per_kwh", "0.3",
	"$price_per_gpu_hour", "2", "$cluster", ".*", "$node_pods", ".*", `="$node"`, `=~".*"`, "$node", ".*", "$gpu", ".*", "$namespace", ".+",
	"$pod", ".+", "$container", ".+")

// recordedFleet returns the series of a fleet and its recorded series. Recorded energy is 600 W, as the golden files' energy is constant.
func recordedFleet(t *testing.T, names string) *history {
	t.Helper()
	nodes := loadFleet(t, names)
	for _, r := range recordingRules(t) {
		for _, sample := range nodes.query(t, r.Expr, steadyDuration) {
			if strings.Contains(r.Record, "energy_joules") {
				sample.F = 600
			}
			nodes.addConstant(t, labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, r.Record).Labels(), sample.F)
		}
	}
	return nodes
}

// addConstant adds a series with a constant value, with a sample per minute.
func (h *history) addConstant(t *testing.T, metric labels.Labels, value float64) {
	t.Helper()
	h.add(t, metric.String(), fmt.Sprintf("%gx%d", value, steadyDuration/time.Minute), time.Minute)
}

// excludedFamilies are families that the golden files omit, because their values differ between runs.
var excludedFamilies = []string{"podgauge_build_info", "podgauge_events_up", "podgauge_series", "process_cpu_seconds_total", "process_resident_memory_bytes"}

// loadFleet returns the series of a node for each golden file of a pattern, and some series of kube-state-metrics.
func loadFleet(t *testing.T, names string) *history {
	t.Helper()
	nodes := newHistory()
	failed := map[string]bool{}
	for _, file := range filesOf(t, goldenDir+names+".prom") {
		node := strings.TrimSuffix(filepath.Base(file), ".prom")
		target := func(metric labels.Labels) labels.Labels {
			return labels.NewBuilder(metric).Set("node", node).Set("instance", node).Set("job", "podgauge").Labels()
		}
		for _, name := range excludedFamilies {
			if !strings.Contains(testfile.Read(t, file), "\n"+name+" ") { // as in series_limit.prom
				nodes.addConstant(t, target(labels.FromStrings(model.MetricNameLabel, name)), 1)
			}
		}
		eachGoldenSeries(t, node, func(metric labels.Labels, value float64) {
			nodes.addConstant(t, target(metric), value)
			if pod := metric.Get("namespace") + "/" + metric.Get("pod"); metric.Get("pod") != "" && !failed[pod] {
				failed[pod] = true
				nodes.addConstant(t, labels.FromStrings(model.MetricNameLabel, "kube_pod_status_phase",
					"namespace", metric.Get("namespace"), "pod", metric.Get("pod"), "phase", "Failed"), 1)
			}
		})
	}
	pendingPod := []string{"namespace", "research", "pod", "waiting"}
	nodes.addConstant(t, labels.FromStrings(append(pendingPod, model.MetricNameLabel, "kube_pod_status_unschedulable")...), 1)
	nodes.addConstant(t, labels.FromStrings(append(pendingPod, model.MetricNameLabel, "kube_pod_container_resource_requests",
		"container", "main", "resource", "nvidia_com_gpu", "unit", "integer")...), 4)
	return nodes
}

const goldenDir = "../../../internal/app/testdata/"

// eachGoldenSeries calls a function for each series of a golden file.
func eachGoldenSeries(t *testing.T, name string, call func(metric labels.Labels, value float64)) {
	t.Helper()
	for line := range strings.Lines(testfile.Read(t, goldenDir+name+".prom")) {
		end := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || end < 0 {
			continue
		}
		metric, err := promQL.ParseMetric(line[:end])
		if err != nil {
			t.Fatalf("%s: %s: %v", name, line, err)
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		if err != nil {
			t.Fatalf("%s: %s: %v", name, line, err)
		}
		call(metric, value)
	}
}
