package openmetrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// dashboardModel has the queries, variables and table columns of a dashboard's file.
type dashboardModel struct {
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name        string           `json:"name"`
			Target      panelQueryTarget `json:"target"`
			TitleFormat string           `json:"titleFormat"`
			TextFormat  string           `json:"textFormat"`
			TagKeys     string           `json:"tagKeys"`
		} `json:"list"`
	} `json:"annotations"`
	Panels []struct {
		Title           string             `json:"title"`
		Targets         []panelQueryTarget `json:"targets"`
		Transformations []panelTransform   `json:"transformations"`
		FieldConfig     json.RawMessage    `json:"fieldConfig"`
	} `json:"panels"`
}

type panelQueryTarget struct {
	Expr         string `json:"expr"`
	RefID        string `json:"refId"`
	LegendFormat string `json:"legendFormat"`
}

type panelTransform struct {
	ID      string `json:"id"`
	Options struct {
		RenameByName map[string]string `json:"renameByName"`
	} `json:"options"`
}

// readDashboards returns the dashboards by name.
func readDashboards(t *testing.T) map[string]dashboardModel {
	t.Helper()
	all := map[string]dashboardModel{}
	for _, file := range filesOf(t, "../../../dashboards/*.json") {
		var b dashboardModel
		if err := json.Unmarshal([]byte(testfile.Read(t, file)), &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = b
	}
	return all
}

// panelTarget is a query of a panel.
type panelTarget struct {
	panelQueryTarget
	title string
}

// targets returns the queries of all panels.
func (b dashboardModel) targets() (all []panelTarget) {
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			all = append(all, panelTarget{q, p.Title})
		}
	}
	return all
}

// TestRecordingRules checks that each rule is valid, uses existing families, keeps the label cluster, and has the labels in its name, or
// those of serviceSeries.
func TestRecordingRules(t *testing.T) {
	families := readCatalogue(t)
	for _, r := range recordingRules(t) {
		families.checkRecording(t, r, levelLabels(r.Record))
	}
	for _, r := range recordingsOf(t, rulesFile) {
		families.checkRecording(t, r, slices.Sorted(slices.Values(slices.Concat([]string{"cluster", "node"}, serviceSeries[r.Record]))))
	}
	for _, r := range recordingsOf(t, jobsFile) {
		families.checkRecording(t, r, slices.Sorted(slices.Values(append([]string{"cluster"}, jobSeries[r.Record]...))))
	}
}

// checkRecording checks a rule, whose series must have these labels, and adds it for the rules that follow.
func (c familyCatalogue) checkRecording(t *testing.T, r rulefmt.Rule, labels []string) {
	t.Helper()
	known, wrong := c.checkExpr(r.Expr)
	known = maps.Clone(known)
	for name, value := range r.Labels {
		known[name] = labelValueSet{value: true}
	}
	expect.EqualSlices(t, slices.Sorted(maps.Keys(known)), labels, "labels of", r.Record)
	for _, problem := range append(wrong, dropsCluster(parseExpr(t, r.Expr))...) {
		if !strings.Contains(problem, ":override") { // of a model in all clusters
			t.Errorf("%s: %s", r.Record, problem)
		}
	}
	if c[r.Record] == nil {
		c[r.Record] = known
	}
}

// addRecorded adds the series of rules, with the labels in their names.
func (c familyCatalogue) addRecorded(rules []rulefmt.Rule) {
	for _, r := range rules {
		c[r.Record] = labelValuesByName{}
		for _, l := range levelLabels(r.Record) {
			c[r.Record][l] = nil
		}
	}
}

// levelLabels returns the labels in the first part of a name. The words device and container stand for several labels.
func levelLabels(record string) []string {
	level, _, _ := strings.Cut(record, ":")
	level = strings.NewReplacer("mig_profile", "mig profile", "mig_uuid", "mig uuid", "driver_version", "driver version", "chassis_serial", "chassis serial",
		"pci_bus_id", "pci bus id", "_", ",", "device", "node,gpu,uuid,mig uuid", "container", "namespace,pod,container").Replace(level)
	found := strings.Split(strings.ReplaceAll("cluster,"+level, " ", "_"), ",")
	slices.Sort(found)
	return found
}

// TestDashboards checks that each query of each dashboard is valid PromQL over existing families and labels, that legends and columns
// name labels of the results, and that links are valid.
func TestDashboards(t *testing.T) {
	families := readCatalogue(t)
	families.addRecorded(append(recordingRules(t), rulesOf(t, reliabilityFile)...))
	all := readDashboards(t)
	for name, b := range all {
		for _, wrong := range append(families.checkDashboard(b), b.mixedSources(name == "fleet" || name == "reliability")...) {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	for _, wrong := range brokenLinks(all) {
		t.Error(wrong)
	}
}

// TestExprErrors checks that checkExpr finds errors.
func TestExprErrors(t *testing.T) {
	families := readCatalogue(t)
	for expr, want := range map[string]string{
		`nvidia_gpu_power`: "unknown family nvidia_gpu_power",
		`nvidia_gpu_power_limit_watts{type="enforce"}`:                           "never has",
		`sum by (model) (nvidia_gpu_power_watts)`:                                "unknown label model",
		`nvidia_gpu_power_watts * on (uuid) group_left (models) nvidia_gpu_info`: "unknown label models",
		`max by (uuid) (nvidia_gpu_up) / max by (node) (nvidia_gpu_up)`:          "the sides have different labels",
	} {
		if _, wrong := families.checkExpr(expr); !strings.Contains(strings.Join(wrong, ";"), want) {
			t.Errorf("%s: got errors %q, want %q", expr, wrong, want)
		}
	}
}

// checkExpr returns the labels of an expression's result, and the errors of the expression.
func (c familyCatalogue) checkExpr(expr string) (labelValuesByName, []string) {
	parsed, err := promQL.ParseExpr(expr)
	if err != nil {
		return nil, []string{expr + ": " + err.Error()}
	}
	a := exprChecker{familyCatalogue: c}
	return a.labels(parsed), a.wrong
}

// mixedSources returns the queries that read raw series in a dashboard with recorded series, or recorded series in another dashboard,
// except those of jobs.
func (b dashboardModel) mixedSources(recorded bool) (wrong []string) {
	recordPattern := regexp.MustCompile(`\w:\w`)
	for _, q := range b.targets() {
		if strings.Contains(q.Expr, "workload") {
			continue
		}
		if recordPattern.MatchString(q.Expr) != recorded || recorded && rawFamilyPattern.MatchString(q.Expr) {
			wrong = append(wrong, q.title+": "+q.Expr+": unexpected raw or recorded series")
		}
	}
	return wrong
}

var (
	rawFamilyPattern    = regexp.MustCompile(`(?:^|[^\w:])(?:nvidia_gpu|podgauge)_\w+`)
	variableNamePattern = regexp.MustCompile(`\$(\w+)`)
	labelValuesPattern  = regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`)
	legendLabelPattern  = regexp.MustCompile(`{{(\w+)}}`)
)

// checkDashboard returns the errors of a dashboard.
func (c familyCatalogue) checkDashboard(b dashboardModel) (wrong []string) {
	variables := map[string]string{"__range": "6h", "__rate_interval": "2m", "__interval": "1h"}
	for _, v := range b.Templating.List {
		variables[v.Name] = "a|b"
		if v.Type == "textbox" {
			variables[v.Name] = "0.3"
		}
	}
	check := func(location, expr string) labelValuesByName {
		expr = variableNamePattern.ReplaceAllStringFunc(expr, func(name string) string {
			value, ok := variables[name[1:]]
			if !ok {
				wrong = append(wrong, location+": unknown variable "+name)
			}
			return value
		})
		if parsed, err := promQL.ParseExpr(expr); err == nil {
			for _, without := range joinsClusters(parsed) {
				wrong = append(wrong, location+": join across clusters: "+without)
			}
		}
		known, errs := c.checkExpr(expr)
		for _, err := range errs {
			wrong = append(wrong, location+": "+err)
		}
		return known
	}
	checkLegend := func(location, text string, known labelValuesByName) {
		for _, l := range legendLabelPattern.FindAllStringSubmatch(text, -1) {
			if _, ok := known[l[1]]; !ok {
				wrong = append(wrong, location+": unknown label "+l[1])
			}
		}
	}
	for _, v := range b.Templating.List {
		var query struct{ Query string }
		if v.Type == "query" {
			if err := json.Unmarshal(v.Query, &query); err != nil {
				wrong = append(wrong, v.Name+": "+err.Error())
			}
			parts := labelValuesPattern.FindStringSubmatch(query.Query)
			if parts == nil {
				wrong = append(wrong, v.Name+": "+query.Query+" is not label_values")
				continue
			}
			checkLegend("$"+v.Name, "{{"+parts[2]+"}}", check("$"+v.Name, parts[1]))
		}
	}
	for _, n := range b.Annotations.List {
		checkLegend(n.Name, n.TitleFormat+n.TextFormat+"{{"+n.TagKeys+"}}", check(n.Name, n.Target.Expr))
	}
	for _, p := range b.Panels {
		columns := map[string]bool{"Value": true}
		for _, q := range p.Targets {
			known := check(p.Title, q.Expr)
			checkLegend(p.Title, q.LegendFormat, known)
			columns["Value #"+q.RefID] = true
			for name := range known {
				columns[name] = true
			}
		}
		wrong = append(wrong, badColumns(p.Title, columns, p.Transformations)...)
	}
	return wrong
}

// badColumns returns errors for columns of a table that no query has, and for columns without title.
func badColumns(location string, columns map[string]bool, transformations []panelTransform) (wrong []string) {
	for _, t := range transformations {
		for name := range t.Options.RenameByName {
			if !columns[name] {
				wrong = append(wrong, location+": no query has the column "+name)
			}
		}
		for name := range columns {
			if t.ID == "organize" && name != "Value" && t.Options.RenameByName[name] == "" {
				wrong = append(wrong, location+": the column "+name+" has no title")
			}
		}
	}
	return wrong
}

var (
	dashboardLinkPattern  = regexp.MustCompile(`/d/([a-z-]+)\?([^"]*)`)
	passedVariablePattern = regexp.MustCompile(`var-(\w+)=\$\{__data\.fields\.(\w+)\}`)
)

// brokenLinks returns errors for links to unknown dashboards or variables, or with unknown columns.
func brokenLinks(all map[string]dashboardModel) (wrong []string) {
	variables := map[string][]string{}
	for _, b := range all {
		for _, v := range b.Templating.List {
			variables[b.UID] = append(variables[b.UID], v.Name)
		}
	}
	found := 0
	for _, b := range all {
		for _, p := range b.Panels {
			titles := map[string]bool{}
			for _, t := range p.Transformations {
				for _, title := range t.Options.RenameByName {
					titles[title] = true
				}
			}
			for _, l := range dashboardLinkPattern.FindAllStringSubmatch(string(p.FieldConfig), -1) {
				found++
				for _, passed := range passedVariablePattern.FindAllStringSubmatch(l[2], -1) {
					if !slices.Contains(variables[l[1]], passed[1]) || !titles[passed[2]] {
						wrong = append(wrong, b.UID+": "+p.Title+": "+passed[0]+" is invalid for "+l[1])
					}
				}
			}
		}
	}
	if found == 0 {
		wrong = append(wrong, "no links found")
	}
	return wrong
}

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
	"Jobs that wait":                "no job waits",
	"Culprits and stragglers":       "no job waits or has a straggler",
	"RDMA (top 20)":                 "the golden files have no RDMA ports",
	"GPUs, by use":                  "no foreign or leaked use",
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
	{"GPUs, by namespace (top 20)", "A", "h100", `{namespace="research"}`, 4},
	{"GPUs, by use", "A", "h100", `{}`, 8},
	{"GPUs, by use", "B", "h100", `{}`, 5 + 4},
	{"GPUs, by use", "C", "h100", `{}`, 5},
	{"GPUs, by use", "D", "h100", `{}`, 4 * 0.9},
	{"GPUs, by use", "E", "h100", `{}`, 1},
	{"Nodes with free GPUs", "B", "h100", `{}`, 1},
	{"Nodes with free GPUs", "C", "h100", `{}`, 0},
	{"By namespace", "I", "h100", `{namespace="research"}`, 4 * 0.9 / 2},
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
	{"By namespace", "A", "time_sliced", `{namespace="lab"}`, 2.0 / 4},
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
	"$cluster", ".*", "$node_pods", ".*", `="$node"`, `=~".*"`, "$node", ".*", "$gpu", ".*", "$namespace", ".+",
	"$pod", ".+", "$container", ".+")

// recordedFleet returns the series of a fleet and its recorded series. Recorded energy is 600 W, as the golden files' energy is constant.
func recordedFleet(t *testing.T, names string) *history {
	t.Helper()
	nodes := loadFleet(t, names)
	for _, r := range slices.Concat(recordingsOf(t, rulesFile), recordingRules(t), rulesOf(t, reliabilityFile)) {
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
				phase := labels.FromStrings(model.MetricNameLabel, "kube_pod_status_phase",
					"namespace", metric.Get("namespace"), "pod", metric.Get("pod"), "phase", "Failed")
				nodes.add(t, phase.String(), "0x38 1x1", time.Minute)
			}
			if metric.Get(model.MetricNameLabel) == "nvidia_gpu_unhealthy_info" { // the golden files omit times
				since := labels.NewBuilder(target(metric)).Set(model.MetricNameLabel, "nvidia_gpu_health_state_seconds_total").
					Set("state", "unhealthy").Del("action", "namespace", "pod", "container")
				nodes.add(t, since.Labels().String(), "0+60x40", time.Minute)
			}
		})
	}
	pendingPod := []string{"namespace", "research", "pod", "waiting"}
	nodes.addConstant(t, labels.FromStrings(append(pendingPod, model.MetricNameLabel, "kube_pod_status_unschedulable")...), 1)
	nodes.addConstant(t, labels.FromStrings(append(pendingPod, model.MetricNameLabel, "kube_pod_status_phase", "phase", "Pending")...), 1)
	nodes.addConstant(t, labels.FromStrings(model.MetricNameLabel, "model:podgauge_gpu_price_per_hour:max", "model", "NVIDIA H100 80GB HBM3"), 2)
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
