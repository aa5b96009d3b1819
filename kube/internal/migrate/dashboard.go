package migrate

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func (m *migration) dashboard(n *yaml.Node) {
	m.walk(n, "")
}

// walk translates the queries of a dashboard's object and of those in it. The place is the title around it.
func (m *migration) walk(n *yaml.Node, place string) {
	place = cmp.Or(valueOf(n, "title"), valueOf(n, "name"), place)
	switch expr := get(n, "expr"); {
	case expr != nil && expr.Kind == yaml.ScalarNode:
		m.target(n, expr, place)
		return
	case get(n, "targets") != nil || get(n, "target", "expr") != nil:
		m.panel(n, place)
		return
	case valueOf(n, "type") == "query" && get(n, "query") != nil:
		m.variable(n, "$"+valueOf(n, "name"))
		return
	}
	for _, child := range items(n) {
		m.walk(child, place)
	}
	for _, child := range members(n) {
		m.walk(child, place)
	}
}

// target translates a query with its legend.
func (m *migration) target(n, expr *yaml.Node, place string, tableLabels ...string) (labelFlow, bool) {
	var templates []*yaml.Node
	for _, key := range []string{"legendFormat", "titleFormat", "textFormat"} {
		templates = append(templates, get(n, key))
	}
	names := union(labelsIn(templates), tableLabels)
	flow, ok := m.translate(source{place, true, names}, expr)
	if ok {
		m.renameLabels(templates, flow)
	}
	return flow, ok
}

// panel translates the queries of a panel or of an annotation, and the names of labels in its other parts.
func (m *migration) panel(n *yaml.Node, place string) {
	var templates, columns []*yaml.Node
	for key, value := range members(n) {
		switch key.Value {
		case "targets", "target", "panels", "datasource":
		case "transformations", "fieldConfig", "options":
			columns = append(columns, value)
			templates = append(templates, value)
		default:
			templates = append(templates, value)
		}
	}
	names := labelsIn(templates)
	for _, c := range columns {
		eachScalar(c, func(n *yaml.Node) {
			if isLabelOfDCGM(n.Value) && labelOf(n.Value).name != n.Value {
				names = append(names, n.Value)
			}
		})
	}
	var all labelFlow
	for _, target := range append(items(get(n, "targets")), get(n, "target")) {
		if expr := get(target, "expr"); expr != nil && expr.Kind == yaml.ScalarNode {
			if flow, ok := m.target(target, expr, place, names...); ok {
				all = all.with(flow)
			}
		} else {
			m.walk(target, place)
		}
	}
	m.walk(get(n, "panels"), place)
	if !all.ofDCGM {
		return
	}
	m.renameLabels(templates, all)
	for _, c := range columns {
		eachScalar(c, func(n *yaml.Node) {
			if slices.Contains(names, n.Value) {
				m.set(n, all.rename(n.Value))
			}
		})
	}
}

var (
	labelValues = regexp.MustCompile(`(?s)^\s*label_values\(\s*(?:(.*),)?\s*(\w+)\s*\)\s*$`)
	queryResult = regexp.MustCompile(`(?s)^\s*query_result\((.*)\)\s*$`)
	regexLabel  = regexp.MustCompile(`\b(\w+)=`)
)

// variable translates the query of a variable.
func (m *migration) variable(n *yaml.Node, place string) {
	query := get(n, "query")
	if query.Kind == yaml.MappingNode {
		query = get(query, "query")
	}
	if query == nil || query.Kind != yaml.ScalarNode {
		return
	}
	original := query.Value
	if parts := labelValues.FindStringSubmatch(original); parts != nil {
		m.labelValues(source{place: place, isGrafana: true}, query, parts[1], parts[2])
	} else if parts := queryResult.FindStringSubmatch(original); parts != nil {
		var names []string
		for _, found := range regexLabel.FindAllStringSubmatch(valueOf(n, "regex"), -1) {
			if isLabelOfDCGM(found[1]) {
				names = append(names, found[1])
			}
		}
		around := func(inner string) string { return "query_result(" + inner + ")" }
		count := len(m.report.Queries)
		inner, flow, ok := m.translation(source{place, true, names}, parts[1])
		m.rephrase(count, original, around)
		if ok {
			m.set(query, around(inner))
			if regex := get(n, "regex"); regex != nil {
				m.set(regex, regexLabel.ReplaceAllStringFunc(regex.Value, func(found string) string {
					return flow.rename(strings.TrimSuffix(found, "=")) + "="
				}))
			}
		}
	} else if namePattern.MatchString(original) {
		m.add(source{place: place}, original, "", "only label_values and query_result are translated")
	} else {
		m.report.Others++
	}
	if definition := get(n, "definition"); definition != nil && definition.Value == original {
		m.set(definition, query.Value)
	}
}

// labelValues translates label_values(selector, label), which reads the values of a label.
func (m *migration) labelValues(s source, query *yaml.Node, selector, name string) {
	if selector == "" || !m.isRelevant(selector) {
		m.report.Others++
		return
	}
	hidden, e, err := parseQuery(selector)
	if err != nil {
		m.add(s, query.Value, "", "not valid PromQL: "+err.Error())
		return
	}
	t := m.translator(hidden, true)
	v, ok := e.(*parser.VectorSelector)
	if !ok {
		m.add(s, query.Value, "", "label_values reads a selector only")
		return
	}
	t.outer = []string{name}
	series, label := t.labelSelector(v, name)
	result := "label_values(" + hidden.restore(series) + ", " + label + ")"
	m.finish(s, query.Value, result, t, hidden)
	if len(t.reasons) == 0 {
		m.set(query, result)
	}
}

// labelSelector returns a selector of series with the values of a label, and podgauge's name of the label. Without a
// label, it returns a selector of a field's series.
func (t *translator) labelSelector(v *parser.VectorSelector, name string) (selector, label string) {
	out := *v
	l := labelOf(name)
	f := fieldOf(v.Name)
	flow, recorded := t.records[v.Name]
	if !recorded {
		flow = t.flowOf(v, f)
		flow.noInfo = nil
	}
	own, info := t.matchers(v, flow)
	if !slices.Contains(flow.own, name) && l.reason != "" {
		t.fail(l.reason)
	}
	switch {
	case recorded:
		out.LabelMatchers = own
	case !t.isDCGM(v):
		t.fail("selects series of dcgm-exporter's own scrape job")
	case l.isInfo || name != "" && len(info) > 0 || f.reason != "":
		flow.noOwner = true
		for _, m := range own {
			t.requireLabels(flow, []string{m.Name})
		}
		out.Name, out.LabelMatchers = "nvidia_gpu_info", slices.Concat(own, info)
	default:
		for _, m := range info {
			t.note("left out the matcher " + m.String() + " of a seriesQuery, which selects no values")
		}
		out.Name, out.LabelMatchers = f.sum[0].name, own
		if f.isSimple() {
			out.LabelMatchers = slices.Concat(own, f.sum[0].rows[0].matchers)
		}
	}
	t.requireLabels(flow, []string{name})
	return out.String(), flow.rename(name)
}
