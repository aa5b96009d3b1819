package migrate

import (
	"regexp"

	"go.yaml.in/yaml/v3"
)

// templateLabel matches a label in a template of an alert: $labels.gpu, or in a legend: {{gpu}}.
var templateLabel = regexp.MustCompile(`(\$labels\.|\.Labels\.|{{\s*|__field\.labels\.|__data\.fields\.)(\w+)`)

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
