// Package migrate translates queries of dcgm-exporter's series to podgauge's: those of Grafana dashboards, of rules of
// Prometheus, of KEDA and of prometheus-adapter.
package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// File is a file to translate.
type File struct {
	Name string
	Data []byte
	// Translated is Data with the translated queries; nil: no query was translated.
	Translated []byte
}

// Query is a query that reads dcgm-exporter's series.
type Query struct {
	File, Place string
	Text        string
	Translation string   // empty: none
	Reasons     []string // why there is no translation
}

// Report is the result of a migration.
type Report struct {
	Queries []Query
	Others  int      // queries of other series, which stay
	Notes   []string // differences that hold for several queries
	Errors  []string // files that could not be read
}

// Complete reports whether each query has a translation.
func (r *Report) Complete() bool {
	return len(r.Errors) == 0 && !slices.ContainsFunc(r.Queries, func(q Query) bool { return q.Translation == "" })
}

// Options are the properties of the cluster.
type Options struct {
	// MIG is set if GPUs of the cluster are partitioned. Translations then read MIG devices as dcgm-exporter does.
	MIG bool
}

// Files translates the queries of files. A recorded series keeps its name in all of them.
func Files(files []*File, o Options) *Report {
	m := &migration{options: o, records: map[string]labelFlow{}, served: map[string]struct{}{}}
	m.report = &Report{}
	parsed := make([][]document, len(files))
	for i, f := range files {
		var err error
		if parsed[i], err = parseDocuments(f.Data); err != nil {
			m.report.Errors = append(m.report.Errors, fmt.Sprintf("%s: %v", f.Name, err))
		}
	}
	unreadable := m.report.Errors
	m.recording = true
	for i, f := range files {
		m.documents(f.Name, parsed[i])
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

// migration is the translation of files.
type migration struct {
	options Options
	report  *Report
	file    string
	changed bool
	// recording is set in the first pass, which finds the user's recorded series and changes nothing.
	recording bool
	records   map[string]labelFlow
	served    map[string]struct{} // names of metrics of HPAs that rules of prometheus-adapter keep
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
	switch text(n, "kind") {
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

// source is where a query was found.
type source struct {
	place      string
	isGrafana  bool
	labelNames []string // of dcgm-exporter, which legends and templates read from the result
}

// translate replaces a query by its translation. It reports whether the query reads dcgm-exporter's series and has
// one.
func (m *migration) translate(s source, n *yaml.Node) (labelFlow, bool) {
	out, flow, ok := m.translation(s, n.Value)
	if ok {
		m.set(n, out)
	}
	return flow, ok
}

func (m *migration) set(n *yaml.Node, value string) {
	if !m.recording && n.Value != value {
		n.Value, m.changed = value, true
	}
}

func (m *migration) translation(s source, query string) (string, labelFlow, bool) {
	if !m.isRelevant(query) {
		m.report.Others++
		return "", labelFlow{}, false
	}
	hidden, e, err := parseQuery(query)
	if err != nil {
		m.add(s, query, "", "not valid PromQL: "+err.Error())
		return "", labelFlow{}, false
	}
	t := m.translator(hidden, s.isGrafana)
	out, flow := t.translate(e, s.labelNames)
	if !flow.ofDCGM && len(t.reasons) == 0 {
		m.report.Others++
		return "", labelFlow{}, false
	}
	if _, err := promQL.ParseExpr(out.String()); err != nil && len(t.reasons) == 0 {
		t.fail(fmt.Sprintf("the translation is not valid PromQL: %v", err))
	}
	result := hidden.restore(out.String())
	m.finish(s, query, result, t, hidden)
	return result, flow, len(t.reasons) == 0
}

// finish adds a query to the report.
func (m *migration) finish(s source, query, result string, t *translator, hidden *macros) {
	if len(t.reasons) > 0 {
		for i := range t.reasons {
			t.reasons[i] = hidden.restore(t.reasons[i])
		}
		m.add(s, query, "", t.reasons...)
		return
	}
	m.report.Notes = union(m.report.Notes, t.notes)
	m.add(s, query, result)
}

// rephrase changes the last queries of the report, which were translated as parts of other texts.
func (m *migration) rephrase(first int, text string, translation func(string) string) {
	for i := range m.report.Queries[first:] {
		q := &m.report.Queries[first+i]
		q.Text = text
		if q.Translation != "" {
			q.Translation = translation(q.Translation)
		}
	}
}

func (m *migration) add(s source, query, translation string, reasons ...string) {
	m.report.Queries = append(m.report.Queries, Query{m.file, s.place, query, translation, reasons})
}

var exporterJobPattern = regexp.MustCompile(`(?i)"[^"]*dcgm[^"]*"`)

// isRelevant reports whether a query may read series of dcgm-exporter, or series recorded from them.
func (m *migration) isRelevant(query string) bool {
	if namePattern.MatchString(query) || exporterJobPattern.MatchString(query) {
		return true
	}
	for name := range m.records {
		if strings.Contains(query, name) {
			return true
		}
	}
	return false
}

func (m *migration) translator(hidden *macros, isGrafana bool) *translator {
	t := &translator{records: m.records, mig: m.options.MIG, window: "5m"}
	if isGrafana {
		t.window = hidden.add("$__rate_interval", durationPlaceholder)
	}
	return t
}

var promQL = parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true})

// parseQuery parses a query with variables of Grafana.
func parseQuery(query string) (*macros, parser.Expr, error) {
	var first error
	for _, otherwise := range []string{numberPlaceholder, identifierPlaceholder} {
		hidden := &macros{}
		e, err := promQL.ParseExpr(hidden.hide(query, otherwise))
		if err == nil {
			return hidden, e, nil
		}
		if first == nil {
			line, _, _ := strings.Cut(err.Error(), "\n")
			first = fmt.Errorf("%s", hidden.restore(line))
		}
	}
	return nil, nil, first
}
