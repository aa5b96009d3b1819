package openmetrics

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
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
	"kube_pod_status_phase":                          {"namespace", "pod", "phase"}, // kube-state-metrics
	"kube_pod_status_unschedulable":                  {"namespace", "pod"},
	"kube_pod_container_resource_requests":           {"namespace", "pod", "container", "resource"},
	"kube_daemonset_status_desired_number_scheduled": {"namespace", "daemonset"},
	"kube_daemonset_status_number_ready":             {"namespace", "daemonset"},
	"kube_daemonset_status_updated_number_scheduled": {"namespace", "daemonset"},
	"kube_node_info":                                 {"node"},
	"kube_node_spec_unschedulable":                   {"node"},
	"kube_node_status_condition":                     {"node", "condition", "status"},
	"up":                                             nil, // Prometheus
	"process_cpu_seconds_total":                      nil,
	"process_resident_memory_bytes":                  nil,
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
}

// readCatalogue returns the families and labels of docs/reference/metrics.md, and the labels and values in the golden files.
func readCatalogue(t *testing.T) familyCatalogue {
	t.Helper()
	page, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
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
	label := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\|`([a-z0-9_]+)`<br>[^|]*\\|([a-z-]+)\\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		var labelNames []string
		for _, l := range label.FindAllStringSubmatch(row[3], -1) {
			labelNames = append(labelNames, l[1])
		}
		all.add(row[1], labelNames...)
		if row[2] == "histogram" {
			all.add(row[1]+"_sum", labelNames...)
			all.add(row[1]+"_count", labelNames...)
			all.add(row[1]+"_bucket", append(labelNames, "le")...)
		}
	}
	all.addFromGoldens(t)
	// The golden files have few Xids and reasons.
	all["nvidia_gpu_unallocatable_info"]["reason"] = nil
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
	files, err := filepath.Glob("../../../internal/app/testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
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
