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
	if expr == nil { // of Grafana
		m.walk(rule, name)
		return
	}
	templates := []*yaml.Node{get(rule, "labels"), get(rule, "annotations")}
	flow, ok := m.translate(source{place: name, labelNames: labelsIn(templates)}, expr)
	if !ok {
		return
	}
	m.renameLabels(templates, flow)
	if record != "" {
		for key := range members(templates[0]) {
			flow = flow.with(labelFlow{own: map[string]struct{}{key.Value: {}}})
		}
		m.records[record] = flow
	}
}
