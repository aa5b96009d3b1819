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

// catalogue has the families that may be asked for: their labels, and which values those have.
type catalogue map[string]family

type family map[string]values

// values are a label's. What is no list is not known: of families whose values depend on the clock.
type values map[string]bool

// scraped are labels that Prometheus adds: of the target, and by relabelling (docs/operations.md).
var scraped = []string{"node", "instance", "job"}

// others are families that somebody else writes.
var others = map[string][]string{
	"kube_pod_status_phase":         {"namespace", "pod", "phase"}, // kube-state-metrics
	"up":                            nil,                           // Prometheus
	"process_cpu_seconds_total":     nil,
	"process_resident_memory_bytes": nil,
}

// told reads the families of docs/metrics.md, with the labels that it names, and of those which the
// golden files have, all labels and values that are written there by the binary.
func told(t *testing.T) catalogue {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := catalogue{}
	for name, of := range others {
		all.add(name, of...)
	}
	label := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)`<br>[^|]*\\| ([a-z]+)[^|]*\\|[^|]*\\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
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
	all.seen(t)
	return all
}

func (c catalogue) add(name string, of ...string) {
	c[name] = family{}
	for _, l := range slices.Concat(scraped, of) {
		c[name][l] = nil
	}
}

// seen adds labels and their values from the golden files.
func (c catalogue) seen(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("../../internal/app/testdata/*.prom")
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
			for _, l := range labelOf.FindAllStringSubmatch(line, -1) {
				if of[l[1]] == nil {
					of[l[1]] = values{}
				}
				of[l[1]][l[2]] = true
			}
		}
	}
}

// labelOf finds labels and values, those that are empty too, which a parser drops.
var labelOf = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)

// asker reads an expression and finds what there is not.
type asker struct {
	catalogue
	wrong []string
}

func (a *asker) say(what string) { a.wrong = append(a.wrong, what) }

// labels are those that an expression's series can have. In matchers, groups and joins a label
// has to be one that the series can have: else the expression is valid, and says something else.
func (a *asker) labels(expr parser.Expr) family {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return a.selected(e)
	case *parser.AggregateExpr:
		of := a.labels(e.Expr)
		a.have(of, e.Grouping, e)
		if !e.Without {
			return only(of, e.Grouping)
		}
		return without(of, e.Grouping)
	case *parser.BinaryExpr:
		return a.joined(e)
	case *parser.Call:
		return a.called(e)
	case *parser.MatrixSelector:
		return a.labels(e.VectorSelector)
	case *parser.SubqueryExpr:
		return a.labels(e.Expr)
	case *parser.ParenExpr:
		return a.labels(e.Expr)
	case *parser.UnaryExpr:
		return a.labels(e.Expr)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return family{}
	default:
		a.say("what this is, is not known: " + expr.String())
		return family{}
	}
}

func (a *asker) selected(e *parser.VectorSelector) family {
	of, ok := a.catalogue[e.Name]
	if !ok {
		a.say("there is no family " + e.Name)
		return family{}
	}
	for _, m := range e.LabelMatchers {
		known, ok := of[m.Name]
		switch {
		case m.Name == model.MetricNameLabel:
		case !ok:
			a.say(e.Name + " has no label " + m.Name)
		case m.Type == labels.MatchEqual && m.Value != "" && known != nil && !known[m.Value]:
			a.say(e.Name + " is never seen with " + m.String())
		}
	}
	return of
}

func (a *asker) joined(e *parser.BinaryExpr) family {
	left, right := a.labels(e.LHS), a.labels(e.RHS)
	match := e.VectorMatching
	if match == nil { // with a number
		if e.LHS.Type() == parser.ValueTypeVector {
			return left
		}
		return right
	}
	if match.On {
		a.have(left, match.MatchingLabels, e.LHS)
		a.have(right, match.MatchingLabels, e.RHS)
	}
	a.pairs(e, left, right)
	switch {
	case match.Card == parser.CardManyToMany && e.Op == parser.LOR:
		return both(left, right)
	case match.Card == parser.CardManyToMany:
		return left
	case match.Card == parser.CardManyToOne:
		a.have(right, match.Include, e.RHS)
		return both(left, only(right, match.Include))
	case match.Card == parser.CardOneToMany:
		a.have(left, match.Include, e.LHS)
		return both(right, only(left, match.Include))
	case match.On:
		return only(left, match.MatchingLabels)
	default:
		return left
	}
}

// pairs finds sides that can have no pair: without on(), every label is compared.
func (a *asker) pairs(e *parser.BinaryExpr, left, right family) {
	if match := e.VectorMatching; match.On || len(match.MatchingLabels) > 0 || e.Op == parser.LOR {
		return
	}
	if l, r := slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(right)); !slices.Equal(l, r) {
		a.say("the sides have other labels: " + strings.Join(l, ",") + " and " + strings.Join(r, ",") + ": " + e.String())
	}
}

func (a *asker) called(e *parser.Call) family {
	of := family{}
	for _, arg := range e.Args {
		of = both(of, a.labels(arg))
	}
	switch e.Func.Name {
	case "histogram_quantile":
		a.have(of, []string{"le"}, e)
		return without(of, []string{"le"})
	case "label_replace":
		a.have(of, []string{e.Args[3].(*parser.StringLiteral).Val}, e)
		return both(of, family{e.Args[1].(*parser.StringLiteral).Val: nil})
	case "vector", "time":
		return family{}
	default:
		return of
	}
}

func (a *asker) have(of family, names []string, e parser.Expr) {
	for _, name := range names {
		if _, ok := of[name]; !ok {
			a.say("there is no label " + name + " in " + e.String())
		}
	}
}

func only(of family, names []string) family {
	some := family{}
	for _, name := range names {
		some[name] = of[name]
	}
	return some
}

func without(of family, names []string) family {
	some := maps.Clone(of)
	for _, name := range names {
		delete(some, name)
	}
	return some
}

func both(one, other family) family {
	all := maps.Clone(one)
	for name := range other {
		all[name] = nil
	}
	return all
}
