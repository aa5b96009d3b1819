package migrate

import (
	"cmp"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// templateLabel matches a label in a template of an alert: $labels.gpu, or in a legend: {{gpu}}.
var templateLabel = regexp.MustCompile(`(\$labels\.|\.Labels\.|{{\s*|__field\.labels\.|__data\.fields\.)(\w+)`)

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
	record := text(rule, "record")
	name := cmp.Or(text(rule, "alert"), record, text(rule, "title"))
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

// labelsIn returns the names of labels in templates.
func labelsIn(templates []*yaml.Node) (names []string) {
	for _, n := range templates {
		eachScalar(n, func(n *yaml.Node) {
			for _, found := range templateLabel.FindAllStringSubmatch(n.Value, -1) {
				if isLabelOfDCGM(found[2]) {
					names = append(names, found[2])
				}
			}
		})
	}
	return union(names, nil)
}

// renameLabels renames the labels in templates.
func (m *migration) renameLabels(templates []*yaml.Node, flow labelFlow) {
	for _, n := range templates {
		eachScalar(n, func(n *yaml.Node) {
			m.set(n, templateLabel.ReplaceAllStringFunc(n.Value, func(found string) string {
				parts := templateLabel.FindStringSubmatch(found)
				return parts[1] + flow.rename(parts[2])
			}))
		})
	}
}
