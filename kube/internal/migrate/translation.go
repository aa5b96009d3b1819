package migrate

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// migration is the translation of files.
type migration struct {
	options Options
	report  *Report
	file    string
	changed bool
	// recording is set in the first pass, which finds the user's recorded series and changes nothing.
	recording bool
	records   map[string]labelFlow
	known     map[string]labelFlow // records of the pass before
	served    map[string]struct{}  // names of metrics of HPAs that rules of prometheus-adapter keep
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
	for name := range m.known {
		if strings.Contains(query, name) {
			return true
		}
	}
	return false
}

func (m *migration) translator(hidden *macros, isGrafana bool) *translator {
	t := &translator{records: m.known, mig: m.options.MIG, window: "5m"}
	if isGrafana {
		t.window = hidden.add("$__rate_interval", durationPlaceholder)
	}
	return t
}

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
