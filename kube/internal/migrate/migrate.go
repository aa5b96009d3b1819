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
		m.object(d.root, name)
	}
	return m.changed
}

// object translates an object of a file or of a part of it. An object of an unknown kind is an error if it names DCGM.
func (m *migration) object(n *yaml.Node, file string) {
	switch valueOf(n, "kind") {
	case "List":
		for _, item := range items(get(n, "items")) {
			m.object(item, file)
		}
		return
	case "ConfigMap":
		for key, value := range members(get(n, "data")) {
			m.embedded(key.Value, value)
		}
		return
	case "GrafanaDashboard":
		m.embedded("json", get(n, "spec", "json"))
		return
	case "ScaledObject", "ScaledJob":
		m.scaledObject(n)
		return
	case "HorizontalPodAutoscaler":
		m.autoscaler(n)
		return
	}
	for _, root := range []*yaml.Node{n, get(n, "spec")} {
		switch {
		case get(root, "groups") != nil:
			m.rules(get(root, "groups"))
			return
		case get(root, "rules") != nil || get(root, "externalRules") != nil:
			m.adapter(root)
			return
		}
	}
	for _, root := range []*yaml.Node{n, get(n, "dashboard"), get(n, "spec")} {
		for _, key := range []string{"panels", "rows", "templating"} {
			if get(root, key) != nil {
				m.dashboard(root)
				return
			}
		}
	}
	reason := "no dashboard, rules, ScaledObject, HorizontalPodAutoscaler or configuration of prometheus-adapter"
	if get(n, "elements") != nil || get(n, "spec", "elements") != nil {
		reason = "dashboard of schema v2 (elements): export it in the classic model"
	}
	if namesDCGM(n) && !m.recording {
		m.report.Errors = append(m.report.Errors, fmt.Sprintf("%s: line %d: %s", file, max(n.Line, 1), reason))
	}
}

// namesDCGM reports whether a text in an object has the name of a field.
func namesDCGM(n *yaml.Node) (found bool) {
	eachScalar(n, func(n *yaml.Node) { found = found || namePattern.MatchString(n.Value) })
	return found
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
		m.object(d.root, m.file+": "+name)
	}
	if m.changed {
		if out, err := documentText(all); err == nil {
			n.Value = string(out)
		}
	}
	m.changed = m.changed || changed
}
