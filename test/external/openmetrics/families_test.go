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

// familyCatalogue has the families that may be asked for: their labels, and which values those have.
type familyCatalogue map[string]labelValuesByName

type labelValuesByName map[string]labelValueSet

// labelValueSet are a label's. What is no list is not known: of families whose values depend on the clock.
type labelValueSet map[string]bool

// targetLabels are labels that Prometheus adds: of the target, and by relabelling (docs/how-to/monitor.md).
var targetLabels = []string{"cluster", "node", "instance", "job"}

// externalFamilies are families that somebody else writes.
var externalFamilies = map[string][]string{
	"kube_pod_status_phase":                          {"namespace", "pod", "phase"}, // kube-state-metrics
	"kube_pod_status_unschedulable":                  {"namespace", "pod"},
	"kube_pod_container_resource_requests":           {"namespace", "pod", "container", "resource"},
	"kube_daemonset_status_desired_number_scheduled": {"namespace", "daemonset"},
	"kube_daemonset_status_number_ready":             {"namespace", "daemonset"},
	"kube_daemonset_status_updated_number_scheduled": {"namespace", "daemonset"},
	"up":                            nil, // Prometheus
	"process_cpu_seconds_total":     nil,
	"process_resident_memory_bytes": nil,
}

// readCatalogue reads the families of docs/reference/metrics.md, with the labels that it names, and of those which the
// golden files have, all labels and values that are written there by the binary.
func readCatalogue(t *testing.T) familyCatalogue {
	t.Helper()
	page, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := familyCatalogue{}
	for name, of := range externalFamilies {
		all.add(name, of...)
	}
	label := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\|`([a-z0-9_]+)`<br>[^|]*\\|([a-z-]+)\\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		var of []string
		for _, l := range label.FindAllStringSubmatch(row[3], -1) {
			of = append(of, l[1])
		}
		all.add(row[1], of...)
		if row[2] == "histogram" {
			all.add(row[1]+"_sum", of...)
			all.add(row[1]+"_count", of...)
			all.add(row[1]+"_bucket", append(of, "le")...)
		}
	}
	all.addFromGoldens(t)
	return all
}

func (c familyCatalogue) add(name string, of ...string) {
	c[name] = labelValuesByName{}
	for _, l := range slices.Concat(targetLabels, of) {
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
			name, _, labelled := strings.Cut(line, "{")
			of := c[name]
			if !labelled || of == nil {
				continue
			}
			for _, l := range labelPattern.FindAllStringSubmatch(line, -1) {
				if of[l[1]] == nil {
					of[l[1]] = labelValueSet{}
				}
				of[l[1]][l[2]] = true
			}
		}
	}
}

// labelPattern finds labels and values, those that are empty too, which a parser drops.
var labelPattern = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)

// exprChecker reads an expression and finds what there is not.
type exprChecker struct {
	familyCatalogue
	wrong []string
}

func (a *exprChecker) addError(what string) { a.wrong = append(a.wrong, what) }

// labels are those that an expression's series can have. In matchers, groups and joins a label
// has to be one that the series can have: else the expression is valid, and says something else.
func (a *exprChecker) labels(expr parser.Expr) labelValuesByName {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return a.selectorLabels(e)
	case *parser.AggregateExpr:
		of := a.labels(e.Expr)
		a.requireLabels(of, e.Grouping, e)
		if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
			return of
		}
		if !e.Without {
			return keepLabels(of, e.Grouping)
		}
		return dropLabels(of, e.Grouping)
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
		a.addError("what this is, is not known: " + expr.String())
		return labelValuesByName{}
	}
}

func (a *exprChecker) selectorLabels(e *parser.VectorSelector) labelValuesByName {
	of, ok := a.familyCatalogue[e.Name]
	if !ok {
		a.addError("there is no family " + e.Name)
		return labelValuesByName{}
	}
	for _, m := range e.LabelMatchers {
		known, ok := of[m.Name]
		switch {
		case m.Name == model.MetricNameLabel:
		case !ok:
			a.addError(e.Name + " has no label " + m.Name)
		case m.Type == labels.MatchEqual && m.Value != "" && known != nil && !known[m.Value]:
			a.addError(e.Name + " is never seen with " + m.String())
		}
	}
	return of
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

// checkMatching finds sides that can have no pair: without on(), every label is compared.
func (a *exprChecker) checkMatching(e *parser.BinaryExpr, left, right labelValuesByName) {
	if match := e.VectorMatching; match.On || len(match.MatchingLabels) > 0 || e.Op == parser.LOR {
		return
	}
	if l, r := slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(right)); !slices.Equal(l, r) {
		a.addError("the sides have other labels: " + strings.Join(l, ",") + " and " + strings.Join(r, ",") + ": " + e.String())
	}
}

func (a *exprChecker) callLabels(e *parser.Call) labelValuesByName {
	of := labelValuesByName{}
	for _, arg := range e.Args {
		of = mergeLabels(of, a.labels(arg))
	}
	switch e.Func.Name {
	case "histogram_quantile":
		a.requireLabels(of, []string{"le"}, e)
		return dropLabels(of, []string{"le"})
	case "label_replace":
		a.requireLabels(of, []string{e.Args[3].(*parser.StringLiteral).Val}, e)
		return mergeLabels(of, labelValuesByName{e.Args[1].(*parser.StringLiteral).Val: nil})
	case "vector", "time":
		return labelValuesByName{}
	default:
		return of
	}
}

func (a *exprChecker) requireLabels(known labelValuesByName, names []string, e parser.Expr) {
	for _, name := range names {
		if _, ok := known[name]; !ok {
			a.addError("there is no label " + name + " in " + e.String())
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
