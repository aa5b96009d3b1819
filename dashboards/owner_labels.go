package dashboards

import (
	"bytes"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	ownerLabel      = regexp.MustCompile(`\$?\b(?:namespace|pod|container)\b:?`)
	ownerField      = regexp.MustCompile(`([Ll]abels\.|sortByLabel "|{{)(namespace|pod|container)\b`)
	ownerQuery      = regexp.MustCompile(`printf "[^"]*"`)
	podSeries       = regexp.MustCompile(`\bkube_pod_`)
	hasOwnerLabels  = regexp.MustCompile(`\b(?:nvidia_gpu|podgauge|kube_pod)_`)
	ruleAnnotations = []string{"summary", "description"}
)

// prefixExpr adds a prefix to the owner labels of a query, and to the names of
// kube-state-metrics' series of pods. deploy/rules/podgauge.owner-labels.yaml
// records the series with prefixed names and labels.
func prefixExpr(expr, prefix string) string {
	if !hasOwnerLabels.MatchString(expr) {
		return expr // series of other objects keep the label names of kube-state-metrics
	}
	expr = ownerLabel.ReplaceAllStringFunc(expr, func(name string) string {
		// a variable, or the name of a recorded series
		if strings.HasPrefix(name, "$") || strings.HasSuffix(name, ":") {
			return name
		}
		return prefix + name
	})
	return podSeries.ReplaceAllString(expr, prefix+"$0")
}

// prefixText adds a prefix to the owner labels in templates of alerts and
// legends, and in the templates' queries.
func prefixText(text, prefix string) string {
	text = ownerField.ReplaceAllString(text, "${1}"+prefix+"$2")
	return ownerQuery.ReplaceAllStringFunc(text, func(query string) string { return prefixExpr(query, prefix) })
}

// Rules returns a file of Prometheus rules with a prefix before the owner
// labels namespace, pod and container. A Prometheus without honor_labels
// prefixes these labels by "exported_".
func Rules(file []byte, prefix string) ([]byte, error) {
	var content yaml.Node
	if err := yaml.Unmarshal(file, &content); err != nil {
		return nil, err
	}
	prefixRules(&content, prefix)
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	err := encoder.Encode(&content)
	return b.Bytes(), err
}

// prefixRules changes the rules below a node.
func prefixRules(n *yaml.Node, prefix string) {
	if expr := field(n, "expr"); expr != nil && hasOwnerLabels.MatchString(expr.Value) {
		expr.Value = prefixExpr(expr.Value, prefix)
		for _, name := range ruleAnnotations {
			if text := field(field(n, "annotations"), name); text != nil {
				text.Value = prefixText(text.Value, prefix)
			}
		}
		return
	}
	for _, child := range n.Content {
		prefixRules(child, prefix)
	}
}

// field returns the value of a key; nil if n has none.
func field(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
