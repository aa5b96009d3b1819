// Package migrate translates queries of dcgm-exporter's series to podgauge's: those of Grafana dashboards, of rules of
// Prometheus, of KEDA and of prometheus-adapter.
package migrate

import (
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// File is a file to translate.
type File struct {
	Name string
	Data []byte
	// Translated is Data with the translated queries; nil: no query was translated.
	Translated []byte
}

// Files translates the queries of files. A recorded series keeps its name in all of them.
func Files(files []*File, o Options) *Report {
	m := &migration{options: o, report: &Report{}, served: map[string]struct{}{}}
	parsed := make([][]document, len(files))
	for i, f := range files {
		var err error
		if parsed[i], err = parseDocuments(f.Data); err != nil {
			m.report.Errors = append(m.report.Errors, fmt.Sprintf("%s: %v", f.Name, err))
		}
	}
	unreadable := m.report.Errors
	m.recording = true
	for pass := 0; pass <= len(m.known); pass++ { // rules can read series of later ones
		m.records = map[string]labelFlow{}
		for i, f := range files {
			m.documents(f.Name, parsed[i])
		}
		if reflect.DeepEqual(m.records, m.known) {
			break
		}
		m.known = m.records
	}
	m.recording = false
	*m.report = Report{Errors: unreadable}
	for i, f := range files {
		if !m.documents(f.Name, parsed[i]) {
			continue
		}
		var err error
		if f.Translated, err = documentText(parsed[i]); err != nil {
			m.report.Errors = append(m.report.Errors, fmt.Sprintf("%s: %v", f.Name, err))
		}
	}
	return m.report
}

// documents translates the documents of a file, and reports whether any changed.
func (m *migration) documents(name string, all []document) bool {
	m.file, m.changed = name, false
	for _, d := range all {
		if !m.object(d.root) && !m.recording {
			m.report.Errors = append(m.report.Errors, name+": no dashboard, rules, ScaledObject, "+
				"HorizontalPodAutoscaler or configuration of prometheus-adapter")
		}
	}
	return m.changed
}

// object translates an object, and reports whether it is of a known kind.
func (m *migration) object(n *yaml.Node) bool {
	switch valueOf(n, "kind") {
	case "List":
		for _, item := range items(get(n, "items")) {
			m.object(item)
		}
		return true
	case "ConfigMap":
		for key, value := range members(get(n, "data")) {
			m.embedded(key.Value, value)
		}
		return true
	case "GrafanaDashboard":
		m.embedded("json", get(n, "spec", "json"))
		return true
	case "ScaledObject", "ScaledJob":
		m.scaledObject(n)
		return true
	case "HorizontalPodAutoscaler":
		m.autoscaler(n)
		return true
	}
	for _, root := range []*yaml.Node{n, get(n, "spec")} {
		switch {
		case get(root, "groups") != nil:
			m.rules(get(root, "groups"))
			return true
		case get(root, "rules") != nil || get(root, "externalRules") != nil:
			m.adapter(root)
			return true
		}
	}
	for _, root := range []*yaml.Node{n, get(n, "dashboard"), get(n, "spec")} {
		for _, key := range []string{"panels", "rows", "elements", "templating"} {
			if get(root, key) != nil {
				m.dashboard(root)
				return true
			}
		}
	}
	return false
}

// embedded translates a file in a string.
func (m *migration) embedded(name string, n *yaml.Node) {
	if n == nil || n.Kind != yaml.ScalarNode || !namePattern.MatchString(n.Value) {
		return
	}
	all, err := parseDocuments([]byte(n.Value))
	if err != nil {
		m.report.Errors = append(m.report.Errors, fmt.Sprintf("%s: %s: %v", m.file, name, err))
		return
	}
	changed := m.changed
	m.changed = false
	for _, d := range all {
		m.object(d.root)
	}
	if m.changed {
		if out, err := documentText(all); err == nil {
			n.Value = string(out)
		}
	}
	m.changed = m.changed || changed
}
