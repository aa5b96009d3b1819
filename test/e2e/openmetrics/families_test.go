package openmetrics

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// familyCatalogue has the labels and label values of all families.
type familyCatalogue map[string]labelValuesByName

type labelValuesByName map[string]labelValueSet

// labelValueSet has the values of a label; nil if the values are unknown, as for families that golden files omit.
type labelValueSet map[string]bool

// targetLabels are labels of the target and of relabeling (docs/how-to/monitor.md).
var targetLabels = []string{"cluster", "node", "instance", "job"}

// externalFamilies are families of other exporters.
var externalFamilies = map[string][]string{
	"kube_pod_status_phase":                                   {"namespace", "pod", "phase"}, // kube-state-metrics
	"kube_pod_status_unschedulable":                           {"namespace", "pod"},
	"kube_pod_labels":                                         {"namespace", "pod"},
	"kube_pod_container_resource_requests":                    {"namespace", "pod", "container", "resource"},
	"kube_daemonset_status_desired_number_scheduled":          {"namespace", "daemonset"},
	"kube_daemonset_status_number_ready":                      {"namespace", "daemonset"},
	"kube_daemonset_status_updated_number_scheduled":          {"namespace", "daemonset"},
	"kube_node_info":                                          {"node"},
	"kube_node_spec_unschedulable":                            {"node"},
	"kube_node_status_condition":                              {"node", "condition", "status"},
	"podgauge_kube_events_dropped_total":                      nil,       // podgauge-kube
	"model:podgauge_gpu_price_per_hour:max":                   {"model"}, // the chart's prices
	"podgauge_kube_requests_total":                            {"code"},
	"model:nvidia_gpu_nvlink_links_up:override":               {"model"}, // recorded by users
	"model:nvidia_gpu_nvlink_speed_bytes_per_second:override": {"model"},
	"up":                            nil, // Prometheus
	"process_cpu_seconds_total":     nil,
	"process_resident_memory_bytes": nil,
}

// serviceSeries are the series recorded by the alerts' file.
var serviceSeries = map[string][]string{
	"device:podgauge_not_retired:max1d":              {"gpu", "uuid", "mig_uuid", "pci_bus_id"},
	"device:podgauge_in_service:max1d":               {"gpu", "uuid", "mig_uuid", "pci_bus_id"},
	"node:podgauge_out_of_service:max30d":            nil,
	"node:podgauge_gpus:count":                       nil,
	"node:podgauge_gpus_failed:count":                nil,
	"gpu_model:nvidia_gpu_nvlink_links_up:max7d":     {"uuid", "model"},
	"gpu_model:podgauge_nvlink_links_expected:max7d": {"uuid", "model"},

	"device:podgauge_shared_timestamp_seconds:max1d":                            {"uuid", "mig_uuid"},
	"device_workload_reason:podgauge_application_error_timestamp_seconds:max1d": {"uuid", "mig_uuid", "namespace", "workload", "reason"},
	"device_reason:podgauge_suspect_workloads:count1d":                          {"uuid", "mig_uuid", "reason"},
	"gpu_domain:nvidia_gpu_info:last1h":                                         {"uuid", "cluster_uuid", "clique_id"},
	"node:podgauge_gpu_lost_or_driver_down:group":                               nil,
	"device_port:podgauge_rdma_port_active_timestamp_seconds:max1d":             {"device", "port"},
	"gpu:podgauge_nvlink_links_missing:max":                                     {"gpu", "uuid"},
	"gpu:podgauge_fabric_not_ready:max":                                         {"uuid"},
	"gpu:podgauge_nvlink_slow:max":                                              {"gpu", "uuid"},
	"gpu_model:podgauge_nvlink_speed_expected:max":                              {"uuid", "model"},
	// recorded by users
	"model:nvidia_gpu_nvlink_links_up:override":               {"model"},
	"model:nvidia_gpu_nvlink_speed_bytes_per_second:override": {"model"},
}

// jobSeries are the series recorded by the jobs' file.
var jobSeries = map[string][]string{
	"gpu_workload:podgauge_allocated:group3m":                            jobGPU,
	"workload:podgauge_gpus:count":                                       {"namespace", "workload"},
	"gpu_workload:podgauge_low_power:max2m":                              jobGPU,
	"gpu_workload_evidence:podgauge_waiting:min2m":                       append(jobGPU, "evidence"),
	"gpu_workload_evidence:podgauge_waiting:min10m":                      append(jobGPU, "evidence"),
	"workload_evidence:podgauge_waiting_since_timestamp_seconds:min":     {"namespace", "workload", "evidence"},
	"gpu_workload:podgauge_culprit_since_timestamp_seconds:min":          jobGPU,
	"gpu_workload_model:podgauge_busy:group2m":                           append(jobGPU, "model"),
	"gpu_workload_model_reason:podgauge_slow:deviation2m":                append(jobGPU, "model", "reason"),
	"gpu_workload_model_reason:podgauge_straggler:deviation10m":          append(jobGPU, "model", "reason"),
	"port_workload_model:podgauge_rdma_port_rate_bytes_per_second:min2m": jobPort,
	"port_workload_model_reason:podgauge_slow:deviation2m":               append(jobPort, "reason"),
	"port_workload_model_reason:podgauge_straggler:deviation10m":         append(jobPort, "reason"),
}

var jobGPU = []string{"node", "gpu", "uuid", "namespace", "pod", "workload"}

var jobPort = []string{"node", "device", "port", "pci_bus_id", "resource", "namespace", "pod", "workload", "model"}

// podLabel matches the labels of allowlisted pod labels.
var podLabel = regexp.MustCompile(`"(label_\w+)"`)

// documentedFamily is a row of docs/reference/metrics.md.
type documentedFamily struct {
	name, kind string
	labels     []string
	values     map[string][]string // listed values by label
	sets       []string            // "default", "minimal: uncorrected"
	isReading  bool                // of a device, with a kind that names the owner labels
}

var (
	documentedLabel  = regexp.MustCompile("`([a-z_]+)`")
	documentedValues = regexp.MustCompile("`([a-z0-9_]+)`: ([a-z0-9_, ]+)")
)

func documentedFamilies(t *testing.T) (all []documentedFamily) {
	t.Helper()
	text := testfile.Read(t, "../../../docs/reference/metrics.md")
	others := strings.Index(text, "\n## Health\n")
	for _, row := range regexp.MustCompile("(?m)^\\|`([a-z0-9_]+)`<br>.*\\|$").FindAllStringSubmatchIndex(text, -1) {
		cells := strings.Split(text[row[0]:row[1]], "|")
		f := documentedFamily{
			name: text[row[2]:row[3]], kind: cells[2], values: map[string][]string{}, sets: strings.Split(cells[len(cells)-2], "<br>"),
			isReading: row[0] < others,
		}
		for _, l := range documentedLabel.FindAllStringSubmatch(cells[3], -1) {
			f.labels = append(f.labels, l[1])
		}
		for _, l := range documentedValues.FindAllStringSubmatch(cells[3], -1) {
			if l[1] != "link" {
				f.values[l[1]] = strings.Split(strings.TrimSpace(l[2]), ", ")
			}
		}
		all = append(all, f)
	}
	if len(all) < 150 {
		t.Fatalf("docs/reference/metrics.md: got %d families, want at least 150", len(all))
	}
	return all
}

// readCatalogue returns the families and labels of docs/reference/metrics.md, and the labels and values in the golden files.
func readCatalogue(t *testing.T) familyCatalogue {
	t.Helper()
	all := familyCatalogue{}
	for name, labelNames := range externalFamilies {
		all.add(name, labelNames...)
	}
	for name, labelNames := range serviceSeries {
		all[name] = labelValuesByName{}
		for _, l := range slices.Concat([]string{"cluster", "node"}, labelNames) {
			all[name][l] = nil
		}
	}
	for name, labelNames := range jobSeries {
		all[name] = labelValuesByName{"cluster": nil}
		for _, l := range labelNames {
			all[name][l] = nil
		}
	}
	for _, f := range documentedFamilies(t) {
		all.add(f.name, f.labels...)
		if f.kind == "histogram" {
			all.add(f.name+"_sum", f.labels...)
			all.add(f.name+"_count", f.labels...)
			all.add(f.name+"_bucket", append(f.labels, "le")...)
		}
	}
	all.addFromGoldens(t)
	for _, l := range podLabel.FindAllStringSubmatch(testfile.Read(t, jobsFile), -1) {
		all["nvidia_gpu_allocation_info"][l[1]] = nil
	}
	all.add("nvidia_gpu_health_state_seconds_total", "uuid", "gpu", "mig_uuid", "state", "reason") // without series in the golden files
	// The golden files have few Xids and reasons.
	all["nvidia_gpu_unallocatable_info"]["reason"], all["nvidia_gpu_info"]["chassis_serial"] = nil, nil
	all["nvidia_gpu_xid_errors_total"]["xid"], all["nvidia_gpu_unhealthy_info"]["reason"] = nil, nil
	return all
}

func (c familyCatalogue) add(name string, labelNames ...string) {
	c[name] = labelValuesByName{}
	for _, l := range slices.Concat(targetLabels, labelNames) {
		c[name][l] = nil
	}
}

// addFromGoldens adds labels and their values from the golden files.
func (c familyCatalogue) addFromGoldens(t *testing.T) {
	t.Helper()
	for _, file := range append(filesOf(t, goldenDir+"*.prom"), "../../../exporter/testdata/rdma.prom") {
		for line := range strings.Lines(testfile.Read(t, file)) {
			name, _, hasLabels := strings.Cut(line, "{")
			values := c[name]
			if !hasLabels || values == nil {
				continue
			}
			for _, l := range labelPattern.FindAllStringSubmatch(line, -1) {
				if values[l[1]] == nil {
					values[l[1]] = labelValueSet{}
				}
				values[l[1]][l[2]] = true
			}
		}
	}
}

// labelPattern matches labels and values, including empty values, which a parser drops.
var labelPattern = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)

// exprChecker finds unknown families, labels and label values in an expression.
type exprChecker struct {
	familyCatalogue
	wrong []string
}

func (a *exprChecker) addError(text string) { a.wrong = append(a.wrong, text) }

// labels returns the possible labels of an expression's series. It reports impossible labels in matchers, groups and joins, because
// such an expression is valid, but wrong.
func (a *exprChecker) labels(expr parser.Expr) labelValuesByName {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return a.selectorLabels(e)
	case *parser.AggregateExpr:
		known := a.labels(e.Expr)
		a.requireLabels(known, e.Grouping, e)
		if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
			return known
		}
		if !e.Without {
			return keepLabels(known, e.Grouping)
		}
		return dropLabels(known, e.Grouping)
	case *parser.BinaryExpr:
		return a.binaryLabels(e)
	case *parser.Call:
		return a.callLabels(e)
	case *parser.MatrixSelector:
		return a.labels(e.VectorSelector)
	case *parser.SubqueryExpr:
		return a.labels(e.Expr)
	case *parser.ParenExpr:
		return a.labels(e.Expr)
	case *parser.UnaryExpr:
		return a.labels(e.Expr)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return labelValuesByName{}
	default:
		a.addError("unsupported expression: " + expr.String())
		return labelValuesByName{}
	}
}

func (a *exprChecker) selectorLabels(e *parser.VectorSelector) labelValuesByName {
	family, ok := a.familyCatalogue[e.Name]
	if !ok {
		a.addError("unknown family " + e.Name)
		return labelValuesByName{}
	}
	for _, m := range e.LabelMatchers {
		known, ok := family[m.Name]
		switch {
		case m.Name == model.MetricNameLabel:
		case !ok:
			a.addError(e.Name + " has no label " + m.Name)
		case m.Type == labels.MatchEqual && m.Value != "" && known != nil && !known[m.Value]:
			a.addError(e.Name + " never has " + m.String())
		}
	}
	return family
}

func (a *exprChecker) binaryLabels(e *parser.BinaryExpr) labelValuesByName {
	left, right := a.labels(e.LHS), a.labels(e.RHS)
	match := e.VectorMatching
	if match == nil { // with a number
		if e.LHS.Type() == parser.ValueTypeVector {
			return left
		}
		return right
	}
	if match.On {
		a.requireLabels(left, match.MatchingLabels, e.LHS)
		a.requireLabels(right, match.MatchingLabels, e.RHS)
	}
	a.checkMatching(e, left, right)
	switch {
	case match.Card == parser.CardManyToMany && e.Op == parser.LOR:
		return mergeLabels(left, right)
	case match.Card == parser.CardManyToMany:
		return left
	case match.Card == parser.CardManyToOne:
		a.requireLabels(right, match.Include, e.RHS)
		return mergeLabels(left, keepLabels(right, match.Include))
	case match.Card == parser.CardOneToMany:
		a.requireLabels(left, match.Include, e.LHS)
		return mergeLabels(right, keepLabels(left, match.Include))
	case match.On:
		return keepLabels(left, match.MatchingLabels)
	default:
		return left
	}
}

// checkMatching reports sides without possible matches: without on(), all labels are compared.
func (a *exprChecker) checkMatching(e *parser.BinaryExpr, left, right labelValuesByName) {
	if match := e.VectorMatching; match.On || len(match.MatchingLabels) > 0 || e.Op == parser.LOR {
		return
	}
	if l, r := slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(right)); !slices.Equal(l, r) {
		a.addError("the sides have different labels: " + strings.Join(l, ",") + " and " + strings.Join(r, ",") + ": " + e.String())
	}
}

func (a *exprChecker) callLabels(e *parser.Call) labelValuesByName {
	known := labelValuesByName{}
	for _, arg := range e.Args {
		known = mergeLabels(known, a.labels(arg))
	}
	switch e.Func.Name {
	case "histogram_quantile":
		a.requireLabels(known, []string{"le"}, e)
		return dropLabels(known, []string{"le"})
	case "label_replace":
		a.requireLabels(known, []string{e.Args[3].(*parser.StringLiteral).Val}, e)
		return mergeLabels(known, labelValuesByName{e.Args[1].(*parser.StringLiteral).Val: nil})
	case "vector", "time":
		return labelValuesByName{}
	default:
		return known
	}
}

func (a *exprChecker) requireLabels(known labelValuesByName, names []string, e parser.Expr) {
	for _, name := range names {
		if _, ok := known[name]; !ok {
			a.addError("unknown label " + name + " in " + e.String())
		}
	}
}

func keepLabels(known labelValuesByName, names []string) labelValuesByName {
	some := labelValuesByName{}
	for _, name := range names {
		some[name] = known[name]
	}
	return some
}

func dropLabels(known labelValuesByName, names []string) labelValuesByName {
	some := maps.Clone(known)
	for _, name := range names {
		delete(some, name)
	}
	return some
}

func mergeLabels(one, other labelValuesByName) labelValuesByName {
	all := maps.Clone(one)
	for name := range other {
		all[name] = nil
	}
	return all
}
