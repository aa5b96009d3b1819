package migrate

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// scaledObject translates the queries of KEDA.
func (m *migration) scaledObject(n *yaml.Node) {
	name := "ScaledObject " + valueOf(n, "metadata", "name")
	for _, trigger := range items(get(n, "spec", "triggers")) {
		if query := get(trigger, "metadata", "query"); query != nil && valueOf(trigger, "type") == "prometheus" {
			m.translate(source{place: name}, query)
		}
	}
}

// autoscaler reports the metrics of a HorizontalPodAutoscaler, which prometheus-adapter or KEDA serves.
func (m *migration) autoscaler(n *yaml.Node) {
	s := source{place: "HorizontalPodAutoscaler " + valueOf(n, "metadata", "name")}
	for _, metric := range items(get(n, "spec", "metrics")) {
		for _, kind := range []string{"pods", "object", "external"} {
			name := valueOf(metric, kind, "metric", "name")
			_, served := m.served[name]
			switch {
			case !namePattern.MatchString(name):
			case served:
				m.add(s, name, name)
			default:
				m.add(s, name, "", "the name of a metric that prometheus-adapter serves: translate its rule "+
					"together with this object, then the name stays")
			}
		}
	}
}

// Placeholders of the templates of prometheus-adapter.
const (
	adapterMatchers = `adapter_matchers="x"`
	adapterGroups   = "adapter_groups"
)

// adapter translates the rules of prometheus-adapter. A metric keeps its name, because autoscalers refer to it.
func (m *migration) adapter(n *yaml.Node) {
	for _, key := range []string{"rules", "externalRules"} {
		for _, rule := range items(get(n, key)) {
			if get(rule, "seriesQuery") == nil { // of a Grafana operator's GrafanaAlertRuleGroup
				m.rule(rule)
			} else {
				m.adapterRule(rule)
			}
		}
	}
}

func (m *migration) adapterRule(rule *yaml.Node) {
	series, query := get(rule, "seriesQuery"), get(rule, "metricsQuery")
	if query == nil || !m.isRelevant(series.Value) && !m.isRelevant(query.Value) {
		m.report.Others++
		return
	}
	hidden, e, err := parseQuery(series.Value)
	s := source{place: "rule of prometheus-adapter " + series.Value}
	if err != nil {
		m.add(s, series.Value, "", "not valid PromQL: "+err.Error())
		return
	}
	v, ok := unwrap(e).(*parser.VectorSelector)
	if !ok || v.Name == "" {
		m.add(s, series.Value, "", "selects names by a pattern: write a rule for each family")
		return
	}
	t := m.translator(hidden, false)
	if !t.isDCGM(v) {
		m.add(s, series.Value, "", "seriesQuery selects a series of another exporter: translate the rule by hand")
		return
	}
	t.outer = objectLabels(rule)
	selector, _ := t.labelSelector(v, "")
	t.requireLabels(t.flowOf(v, fieldOf(v.Name)), t.outer)
	name := t.metricName(rule, v.Name)
	if rule.Line == 0 {
		t.fail("a rule in JSON gets no new key name: write it as YAML")
	}
	if len(t.reasons) > 0 {
		m.finish(s, series.Value, "", t, hidden)
		return
	}
	plain := strings.NewReplacer(
		"<<.Series>>", v.Name, "<<.LabelMatchers>>", adapterMatchers, "<<.GroupBy>>", adapterGroups)
	back := strings.NewReplacer(adapterMatchers, "<<.LabelMatchers>>", adapterGroups, "<<.GroupBy>>")
	count := len(m.report.Queries)
	out, flow, ok := m.translation(s, plain.Replace(query.Value))
	m.rephrase(count, query.Value, back.Replace)
	if !ok {
		return
	}
	m.report.Notes = union(m.report.Notes, t.notes)
	m.set(series, hidden.restore(selector))
	m.set(query, back.Replace(out))
	for k := range members(get(rule, "resources", "overrides")) {
		m.set(k, flow.rename(k.Value))
	}
	if template := get(rule, "resources", "template"); template != nil && flow.rename(podLabel(template)) == "pod" {
		m.set(template, "<<.Resource>>")
	}
	m.served[name] = struct{}{}
	m.setName(rule, name)
}

// objectLabels returns the labels by which a rule finds its objects.
func objectLabels(rule *yaml.Node) (names []string) {
	for k := range members(get(rule, "resources", "overrides")) {
		names = append(names, k.Value)
	}
	if template := get(rule, "resources", "template"); template != nil {
		names = append(names, podLabel(template))
	}
	return names
}

// podLabel returns the label of pods by a rule's template.
func podLabel(template *yaml.Node) string {
	return strings.ReplaceAll(template.Value, "<<.Resource>>", "pod")
}

// metricName returns the name that a rule gives its metric:
// https://github.com/kubernetes-sigs/prometheus-adapter/blob/master/pkg/naming/metric_namer.go
func (t *translator) metricName(rule *yaml.Node, series string) string {
	if get(rule, "seriesFilters") != nil {
		t.fail("seriesFilters select names of dcgm-exporter: remove them")
	}
	as := valueOf(rule, "name", "as")
	pattern, err := regexp.Compile(cmp.Or(valueOf(rule, "name", "matches"), ".*"))
	if err != nil {
		t.fail("name.matches is not a valid expression: " + err.Error())
		return ""
	}
	found := pattern.FindStringSubmatchIndex(series)
	if found == nil || as == "" && pattern.NumSubexp() > 1 {
		t.fail("the rule gives its metric no name")
		return ""
	}
	if as == "" {
		as = fmt.Sprintf("$%d", pattern.NumSubexp())
	}
	return string(pattern.ExpandString(nil, as, series, found))
}

// setName gives a rule the name under which autoscalers know its metric.
func (m *migration) setName(rule *yaml.Node, name string) {
	text := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
	node := yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{text("as"), text(name)}}
	switch old := get(rule, "name"); {
	case m.recording:
	case old == nil:
		rule.Content = append(rule.Content, text("name"), &node)
	case valueOf(old, "as") != name || get(old, "matches") != nil:
		*old = node
	}
}
