package migrate

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// translate returns the translation of a parsed query. The labels of dcgm-exporter in labelNames are read from the
// result: by a legend, or by a template of an alert.
func (t *translator) translate(e parser.Expr, labelNames []string) (parser.Expr, labelFlow) {
	t.collectLabels(e)
	if keepsLabels(e) {
		t.needed = append(t.needed, labelNames...)
		t.outer = labelNames
	}
	for _, name := range t.needed {
		l := labelOf(name)
		if l.reason != "" {
			t.fail(l.reason)
			continue
		} else if l.note != "" {
			t.note(l.note)
		}
		if l.isInfo && !slices.Contains(t.info, l.name) {
			t.info = append(t.info, l.name)
		}
		t.mig = t.mig || isMIGLabel(name)
	}
	out, flow := t.rewrite(e)
	t.requireLabels(flow, t.outer)
	if flow.ofDCGM && !t.mig {
		t.note(migNote)
	}
	return unwrap(out), flow
}

// read marks labels that are read from the results of the expressions until done is called.
func (t *translator) read(names []string) (done func()) {
	outer := t.outer
	t.outer = slices.Concat(outer, names)
	return func() { t.outer = outer }
}

// collectLabels collects the labels of dcgm-exporter that the query reads.
func (t *translator) collectLabels(e parser.Expr) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if expr, ok := n.(parser.Expr); !ok || !t.readsDCGM(expr) {
			return nil
		}
		var names []string
		switch n := n.(type) {
		case *parser.VectorSelector:
			t.mig = t.mig || slices.ContainsFunc(n.LabelMatchers, selectsSomeMIGDevices)
		case *parser.AggregateExpr:
			if !n.Without {
				names = n.Grouping
			}
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil {
				names = slices.Clone(m.Include)
				if m.On {
					names = append(names, m.MatchingLabels...)
				}
			}
		case *parser.Call:
			names = sourceLabels(n)
		}
		t.needed = union(t.needed, names)
		return nil
	})
}

// sourceLabels returns the labels that label_replace and label_join read.
func sourceLabels(c *parser.Call) (names []string) {
	first := map[string]int{"label_replace": 3, "label_join": 3}[c.Func.Name]
	for i := first; first > 0 && i < len(c.Args); i++ {
		if s, ok := c.Args[i].(*parser.StringLiteral); ok && (c.Func.Name == "label_join" || i == first) {
			names = append(names, s.Val)
		}
	}
	return names
}

// readsDCGM reports whether an expression reads a field of DCGM, or a series recorded from one.
func (t *translator) readsDCGM(e parser.Expr) bool {
	found := errors.New("found")
	return errors.Is(parser.Walk(inspector(func(n parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok && t.isDCGM(v) {
			return found
		}
		return nil
	}), e, nil), found)
}

type inspector func(parser.Node) error

// Visit implements parser.Visitor.
func (f inspector) Visit(n parser.Node, _ []parser.Node) (parser.Visitor, error) {
	return f, f(n)
}

var namePattern = regexp.MustCompile(`(?i)dcgm_`)

func (t *translator) isDCGM(v *parser.VectorSelector) bool {
	_, recorded := t.records[v.Name]
	return recorded || namePattern.MatchString(nameOf(v))
}

// nameOf returns the name of a selector's family, or the pattern of its name.
func nameOf(v *parser.VectorSelector) string {
	for _, m := range v.LabelMatchers {
		if m.Name == model.MetricNameLabel {
			return m.Value
		}
	}
	return v.Name
}

// keepsLabels reports whether the labels of the series are in the result.
func keepsLabels(e parser.Expr) bool {
	switch e := e.(type) {
	case *parser.VectorSelector, *parser.MatrixSelector:
		return true
	case *parser.AggregateExpr:
		return selectsSeries(e) && keepsLabels(e.Expr)
	case *parser.Call:
		return !strings.HasPrefix(e.Func.Name, "absent") && slices.ContainsFunc(e.Args, keepsLabels)
	case *parser.BinaryExpr:
		return keepsLabels(e.LHS) || keepsLabels(e.RHS)
	case *parser.ParenExpr:
		return keepsLabels(e.Expr)
	case *parser.UnaryExpr:
		return keepsLabels(e.Expr)
	case *parser.SubqueryExpr:
		return keepsLabels(e.Expr)
	default:
		return false
	}
}

// selectsSeries reports whether the result of an aggregation is some of its series.
func selectsSeries(a *parser.AggregateExpr) bool {
	return slices.Contains([]parser.ItemType{parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO}, a.Op)
}

// rewrite returns the translation of an expression, in parentheses if it is no longer a single term.
func (t *translator) rewrite(e parser.Expr) (parser.Expr, labelFlow) {
	switch e := e.(type) {
	case *parser.VectorSelector:
		return t.vector(e, e, instant)
	case *parser.AggregateExpr:
		return t.aggregation(e)
	case *parser.BinaryExpr:
		return t.binary(e)
	case *parser.Call:
		return t.call(e)
	case *parser.ParenExpr:
		inner, flow := t.rewrite(e.Expr)
		return paren(unwrap(inner)), flow
	case *parser.UnaryExpr:
		inner, flow := t.rewrite(e.Expr)
		return &parser.UnaryExpr{Op: e.Op, Expr: inner}, flow
	case *parser.SubqueryExpr:
		inner, flow := t.rewrite(e.Expr)
		out := *e
		out.Expr = inner
		return &out, flow
	default:
		return e, labelFlow{}
	}
}

func (t *translator) call(c *parser.Call) (parser.Expr, labelFlow) {
	for i, arg := range c.Args {
		apply := func(selector string) string { return callText(c, i, selector) }
		switch arg := unwrap(arg).(type) {
		case *parser.MatrixSelector:
			return t.vector(c, arg.VectorSelector.(*parser.VectorSelector), useBy(c.Func.Name, spanOf(arg), apply))
		case *parser.VectorSelector:
			if name := c.Func.Name; name == "absent" || name == "timestamp" {
				return t.vector(c, arg, useBy(name, "", apply))
			}
		}
	}
	defer t.read(sourceLabels(c))()
	out := &parser.Call{Func: c.Func, Args: make(parser.Expressions, len(c.Args))}
	var flow labelFlow
	for i, arg := range c.Args {
		inner, f := t.rewrite(arg)
		out.Args[i], flow = unwrap(inner), flow.with(f)
	}
	if !flow.ofDCGM {
		return c, flow
	}
	return t.renameSources(out, flow)
}

// renameSources renames the labels that label_replace and label_join read. The labels that they set keep their names.
func (t *translator) renameSources(c *parser.Call, flow labelFlow) (parser.Expr, labelFlow) {
	sources := sourceLabels(c)
	if len(sources) == 0 {
		return c, flow
	}
	for i, arg := range c.Args[3:] {
		if s, ok := arg.(*parser.StringLiteral); ok && i < len(sources) {
			t.requireLabels(flow, []string{s.Val})
			t.requireValues(flow, s.Val)
			c.Args[3+i] = &parser.StringLiteral{Val: flow.rename(s.Val)}
		}
	}
	target := c.Args[1].(*parser.StringLiteral).Val
	if c.Func.Name == "label_replace" && c.Args[3].(*parser.StringLiteral).Val == target &&
		c.Args[2].(*parser.StringLiteral).Val == "$1" && c.Args[4].(*parser.StringLiteral).Val == "(.*)" {
		return paren(c.Args[0]), flow.with(labelFlow{own: []string{target}}) // no change
	}
	return c, flow.with(labelFlow{own: []string{target}})
}

// callText returns a call with another argument.
func callText(c *parser.Call, index int, argument string) string {
	args := make([]string, len(c.Args))
	for i, arg := range c.Args {
		args[i] = arg.String()
	}
	args[index] = argument
	return c.Func.Name + "(" + strings.Join(args, ", ") + ")"
}

// spanOf returns the text of a range: [5m].
func spanOf(m *parser.MatrixSelector) string {
	bare := *m
	bare.VectorSelector = &parser.VectorSelector{Name: "x"}
	return strings.TrimPrefix(bare.String(), "x")
}

func (t *translator) aggregation(a *parser.AggregateExpr) (parser.Expr, labelFlow) {
	out := *a
	defer t.read(a.Grouping)()
	inner, flow := t.operand(a)
	out.Expr = unwrap(inner)
	if !flow.ofDCGM {
		return a, flow
	}
	if !a.Without {
		t.requireLabels(flow, a.Grouping)
	}
	out.Grouping = nil
	for _, name := range a.Grouping {
		l := flow.rename(name)
		if !a.Without || l == name || !labelOf(name).isInfo {
			out.Grouping = append(out.Grouping, l)
		}
		if a.Without && (name == "UUID" || name == "GPU_I_ID") {
			out.Grouping = append(out.Grouping, "mig_uuid")
		}
	}
	if a.Without {
		out.Grouping = append(out.Grouping, flow.variantNames()...)
	}
	slices.Sort(out.Grouping)
	out.Grouping = slices.Compact(out.Grouping)
	if len(out.Grouping) == len(a.Grouping) && !a.Without {
		out.Grouping = renamed(a.Grouping, flow) // in the order of the query
	}
	if !selectsSeries(a) {
		flow.variant = nil
		flow.grouped = nil
		if !a.Without {
			flow.grouped = a.Grouping
			flow.noOwner, flow.noInfo = false, nil
		}
	}
	if s, ok := a.Param.(*parser.StringLiteral); ok { // count_values
		flow = flow.with(labelFlow{own: []string{s.Val}})
	}
	return &out, flow
}

// operand returns the operand of an aggregation, without the factor where only the number of series counts.
func (t *translator) operand(a *parser.AggregateExpr) (parser.Expr, labelFlow) {
	if v, ok := unwrap(a.Expr).(*parser.VectorSelector); ok && (a.Op == parser.COUNT || a.Op == parser.GROUP) {
		return t.vector(v, v, useBy("count", "", instant.apply))
	}
	return t.rewrite(a.Expr)
}

func renamed(names []string, flow labelFlow) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = flow.rename(name)
	}
	return out
}

func (t *translator) binary(b *parser.BinaryExpr) (parser.Expr, labelFlow) {
	out := *b
	if b.VectorMatching != nil {
		defer t.read(slices.Concat(b.VectorMatching.MatchingLabels, b.VectorMatching.Include))()
	}
	lhs, left := t.rewrite(b.LHS)
	rhs, right := t.rewrite(b.RHS)
	flow := left.with(right)
	if !flow.ofDCGM {
		return b, flow
	}
	if m := b.VectorMatching; m != nil {
		if flow.foreign && left.ofDCGM != right.ofDCGM { // the other side has the labels of dcgm-exporter
			names := m.MatchingLabels
			if !m.On {
				names = t.outer
			}
			if !m.On && len(flow.own) == 0 {
				names = union(names, flow.grouped)
			}
			lhs, left = t.restoreLabels(lhs, left, names)
			rhs, right = t.restoreLabels(rhs, right, names)
			flow = left.with(right)
		}
		out.VectorMatching, flow.noOwner = t.matching(b, left, right)
	}
	out.LHS, out.RHS = lhs, rhs
	return fold(&out), flow
}

// matching returns how the sides match, and whether the result lacks owners.
func (t *translator) matching(b *parser.BinaryExpr, left, right labelFlow) (*parser.VectorMatching, bool) {
	m := *b.VectorMatching
	flow := left.with(right)
	names := m.MatchingLabels
	if !m.On {
		names = flow.own
	}
	for _, name := range names {
		if left.ofDCGM && right.ofDCGM && left.rename(name) != right.rename(name) {
			t.fail("matches the label " + name + " by which one side replaces dcgm-exporter's")
		}
	}
	m.MatchingLabels = renamed(m.MatchingLabels, flow)
	if m.On {
		t.requireLabels(left, b.VectorMatching.MatchingLabels)
		t.requireLabels(right, b.VectorMatching.MatchingLabels)
	} else if left.ofDCGM && right.ofDCGM {
		if !slices.Equal(left.variant, right.variant) {
			m.MatchingLabels = union(m.MatchingLabels, flow.variantNames())
		}
		if left.noOwner != right.noOwner {
			m.MatchingLabels = union(m.MatchingLabels, ownerLabels)
			switch {
			case m.Card != parser.CardOneToOne:
			case left.noOwner:
				m.Card = parser.CardOneToMany
			default:
				m.Card = parser.CardManyToOne
			}
		}
	}
	switch m.Card {
	case parser.CardManyToOne:
		t.requireLabels(right, m.Include)
		m.Include = renamed(m.Include, right)
		return &m, left.noOwner
	case parser.CardOneToMany:
		t.requireLabels(left, m.Include)
		m.Include = renamed(m.Include, left)
		return &m, right.noOwner
	case parser.CardManyToMany:
		return &m, left.noOwner || b.Op == parser.LOR && right.noOwner
	default:
		return &m, flow.noOwner && !m.On
	}
}

// requireValues fails if podgauge's label has other values than the label of dcgm-exporter.
func (t *translator) requireValues(flow labelFlow, name string) {
	if !slices.Contains(flow.own, name) && labelOf(name).value != nil {
		t.fail("compares or changes values of the label " + name + ", and " + labelOf(name).note)
	}
}

// restoreLabels gives podgauge's labels the names of dcgm-exporter, which the other side of a join has.
func (t *translator) restoreLabels(e parser.Expr, flow labelFlow, names []string) (parser.Expr, labelFlow) {
	if !flow.ofDCGM {
		return e, flow
	}
	for _, name := range names {
		t.requireValues(flow, name)
		if to := flow.rename(name); to != name && to != "" {
			e = t.parse(fmt.Sprintf(`label_replace(%s, %q, "$1", %q, "(.*)")`, unwrap(e), name, to))
			flow = flow.with(labelFlow{own: []string{name}})
		}
	}
	return e, flow
}

// fold combines the numbers of (x / 1000000) * 1000000 and the like.
func fold(b *parser.BinaryExpr) parser.Expr {
	inner, ok := unwrap(b.LHS).(*parser.BinaryExpr)
	if !ok {
		return b
	}
	first, ok1 := factorOf(inner)
	second, ok2 := factorOf(b)
	if !ok1 || !ok2 {
		return b
	}
	x := inner.LHS
	factor := first * second
	switch {
	case factor == 1:
		return paren(unwrap(x))
	case factor > 1 && factor == math.Trunc(factor):
		return &parser.BinaryExpr{Op: parser.MUL, LHS: x, RHS: &parser.NumberLiteral{Val: factor}}
	case factor < 1 && 1/factor == math.Trunc(1/factor):
		return &parser.BinaryExpr{Op: parser.DIV, LHS: x, RHS: &parser.NumberLiteral{Val: 1 / factor}}
	default:
		return b
	}
}

// factorOf returns n of x * n and 1/n of x / n.
func factorOf(b *parser.BinaryExpr) (float64, bool) {
	n, ok := b.RHS.(*parser.NumberLiteral)
	switch {
	case !ok || n.Val <= 0 || n.Val > 1e10: // placeholders of variables are not combined
		return 0, false
	case b.Op == parser.MUL:
		return n.Val, true
	default:
		return 1 / n.Val, b.Op == parser.DIV
	}
}

// vector translates a term of one selector: the selector itself, or a function of it.
func (t *translator) vector(term parser.Expr, v *parser.VectorSelector, u use) (parser.Expr, labelFlow) {
	if !t.isDCGM(v) {
		if slices.ContainsFunc(v.LabelMatchers, selectsDCGMExporter) {
			t.fail("selects series of dcgm-exporter's own scrape job")
		}
		return term, labelFlow{foreign: true}
	}
	if flow, ok := t.records[v.Name]; ok {
		out := *v
		out.LabelMatchers, _ = t.matchers(v, flow)
		return t.parse(u.apply(selectorText(&out, u.span))), flow
	}
	if v.Name == "" {
		t.fail("selects names by a pattern: " + nameOf(v))
		return term, labelFlow{ofDCGM: true}
	}
	f := fieldOf(v.Name)
	if f.reason != "" {
		t.fail(f.reason)
		return term, labelFlow{ofDCGM: true}
	}
	return t.reading(v, f, u)
}
