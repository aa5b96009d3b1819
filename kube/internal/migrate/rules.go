package migrate

import (
	"cmp"

	"go.yaml.in/yaml/v3"
)

// rules translates groups of rules.
func (m *migration) rules(groups *yaml.Node) {
	for _, group := range items(groups) {
		for _, rule := range items(get(group, "rules")) {
			m.rule(rule)
		}
	}
}

func (m *migration) rule(rule *yaml.Node) {
	expr := get(rule, "expr")
	record := valueOf(rule, "record")
	name := cmp.Or(valueOf(rule, "alert"), record, valueOf(rule, "title"))
	templates := []*yaml.Node{get(rule, "labels"), get(rule, "annotations")}
	if expr == nil { // of Grafana
		var all labelFlow
		for _, query := range items(get(rule, "data")) {
			model := get(query, "model")
			if expr := get(model, "expr"); expr != nil && expr.Kind == yaml.ScalarNode {
				if flow, ok := m.target(model, expr, name, labelsIn(templates)...); ok {
					all = all.with(flow)
				}
			}
		}
		m.renameLabels(templates, all)
		return
	}
	flow, ok := m.translate(source{place: name, labelNames: labelsIn(templates)}, expr)
	if !ok {
		return
	}
	m.renameLabels(templates, flow)
	if record != "" {
		for key := range members(templates[0]) {
			flow = flow.with(labelFlow{own: []string{key.Value}})
		}
		m.records[record] = flow
	}
}
