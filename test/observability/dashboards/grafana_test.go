package dashboards

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// Grafana's expansion of variables in queries (packages/grafana-prometheus/src: datasource.ts, escaping.ts).

// scrapeInterval is the interval of Prometheus and its data source in Grafana.
const scrapeInterval = 5 * time.Second

// maxPoints is the width of a panel, and its maximum number of points.
const maxPoints = 800

// panelRange is the time range of a panel.
type panelRange struct {
	begin, end time.Time
	scrapes    time.Duration // interval; zero: scrapeInterval
}

func (s panelRange) scrapeInterval() time.Duration { return cmp.Or(s.scrapes, scrapeInterval) }

// interval returns $__interval, the step of a query over the range.
func (s panelRange) interval() time.Duration {
	return max(s.end.Sub(s.begin)/maxPoints, s.scrapeInterval())
}

// rateInterval returns $__rate_interval: a window with two samples for each step, even if a scrape is missed.
func (s panelRange) rateInterval() time.Duration {
	return max(s.interval()+s.scrapeInterval(), 4*s.scrapeInterval())
}

// variableValues has the values of a dashboard's variables, as written in a query.
type variableValues map[string]string

var variablePattern = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::[^}]*)?\}`)

// expandVariables returns a query with expanded variables, and an error for unknown variables.
func (s panelRange) expandVariables(expr string, values variableValues) (string, error) {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }
	builtin := map[string]string{
		"__interval": seconds(s.interval()), "__rate_interval": seconds(s.rateInterval()), "__range": seconds(s.end.Sub(s.begin)),
	}
	var err error
	filled := variablePattern.ReplaceAllStringFunc(expr, func(found string) string {
		parts := variablePattern.FindStringSubmatch(found)
		name := parts[1] + parts[2]
		if value, ok := values[name]; ok {
			return value
		}
		if value, ok := builtin[name]; ok {
			return value
		}
		err = fmt.Errorf("unknown variable %s", name)
		return found
	})
	return filled, err
}

var regexpSpecial = regexp.MustCompile(`[$^*{}\[\]'+?.()|\\]`)

// quoteRegexp returns a value, escaped for a quoted regular expression of a matcher.
func quoteRegexp(value string) string {
	return regexpSpecial.ReplaceAllStringFunc(value, func(char string) string {
		if char == `\` {
			return `\\\\`
		}
		return `\\` + char
	})
}

// allValue returns the value for "All".
func (v boardVariable) allValue(values []string) string {
	if v.AllValue != "" {
		return v.AllValue
	}
	return alternatives(values)
}

// alternatives returns the value for several selected values.
func alternatives(values []string) string {
	escaped := make([]string, len(values))
	for i, value := range values {
		escaped[i] = quoteRegexp(value)
	}
	if len(escaped) == 1 {
		return escaped[0]
	}
	return "(" + strings.Join(escaped, "|") + ")"
}

var labelValues = regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`)

// labelValuesQuery returns the series and label of a variable's query.
func (v boardVariable) labelValuesQuery() (series, label string, err error) {
	var query struct{ Query string }
	if err := json.Unmarshal(v.Query, &query); err != nil {
		return "", "", err
	}
	parts := labelValues.FindStringSubmatch(query.Query)
	if parts == nil {
		return "", "", fmt.Errorf("%s is not label_values", query.Query)
	}
	return parts[1], parts[2], nil
}

// TestExpandVariables checks that variables are expanded as in Grafana.
func TestExpandVariables(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, c := range []struct {
		within    time.Duration
		expr      string
		values    variableValues
		want, err string
	}{
		{time.Minute, `rate(a{node=~"$node"}[$__rate_interval])`, variableValues{"node": ".*"}, `rate(a{node=~".*"}[20s])`, ""},
		{6 * time.Hour, `rate(a[$__rate_interval])[$__range:$__interval]`, nil, `rate(a[32s])[21600s:27s]`, ""},
		{time.Minute, `a{pod=~"${pod:regex}"}`, variableValues{"pod": alternatives([]string{"a.b-0", `c\d`})}, `a{pod=~"(a\\.b-0|c\\\\d)"}`, ""},
		{time.Minute, `a{pod=~"$pods"}`, variableValues{"pod": "a"}, `a{pod=~"$pods"}`, "unknown variable pods"},
	} {
		got, err := panelRange{begin: begin, end: begin.Add(c.within)}.expandVariables(c.expr, c.values)
		if got != c.want || fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
			t.Errorf("%s: got %s, %v; want %s, %s", c.expr, got, err, c.want, c.err)
		}
	}
}

// tableQuery has the results of a table's queries at a time, in the format that schema/tables.mjs reads. Grafana renders the table.
type tableQuery struct {
	Location        string          `json:"where"`
	Transformations json.RawMessage `json:"transformations"`
	Results         []queryResult   `json:"answers"`
}

type queryResult struct {
	RefID  string         `json:"refId"`
	Series []resultSeries `json:"series"`
}

type resultSeries struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// renderedTable is a table that Grafana rendered.
type renderedTable struct {
	Location string `json:"where"`
	Fields   []struct {
		Name   string `json:"name"`
		Values []any  `json:"values"`
	} `json:"fields"`
}

// checkTables renders the tables with Grafana's transformations at several times of the run, and checks their rows and columns.
func (c *dashboardRun) checkTables(all []*dashboardFile) {
	var queries []tableQuery
	for _, b := range all {
		for _, s := range c.selections(b) {
			for _, p := range b.Panels {
				for at := c.end; p.Type == "table" && at.After(c.begin); at = at.Add(-30 * time.Second) {
					table := tableQuery{Location: b.Name + ": " + p.Title, Transformations: p.Transformations}
					for _, t := range p.Targets {
						table.Results = append(table.Results, queryResult{t.RefID, c.querySeries(t.Expr, s.all, at)})
					}
					queries = append(queries, table)
				}
			}
		}
	}
	tables := renderTables(c.T, queries)
	lines := 0
	for i, q := range queries {
		for _, wrong := range q.tableErrors(tables[i]) {
			c.Error(wrong)
		}
		if len(tables[i].Fields) > 0 {
			lines += len(tables[i].Fields[0].Values)
		}
	}
	c.Logf("%d tables with %d rows", len(queries), lines)
}

// querySeries returns the series of a query.
func (c *dashboardRun) querySeries(expr string, values variableValues, at time.Time) []resultSeries {
	c.Helper()
	filled, err := c.expandVariables(expr, values)
	require.NoError(c, err)
	found, _, _, err := c.Query(c.Context(), filled, at)
	if err != nil {
		c.Fatalf("%s: %v", filled, err)
	}
	all := []resultSeries{}
	for _, s := range found.(model.Vector) {
		labels := map[string]string{}
		for name, value := range s.Metric {
			labels[string(name)] = string(value)
		}
		if value := float64(s.Value); !math.IsNaN(value) && !math.IsInf(value, 0) {
			all = append(all, resultSeries{labels, value})
		}
	}
	return all
}

// renderTables renders tables with Grafana.
func renderTables(t *testing.T, queries []tableQuery) (tables []renderedTable) {
	t.Helper()
	text, err := json.Marshal(queries)
	require.NoError(t, err)
	node := exec.Command("node", "schema/tables.mjs")
	node.Stdin = bytes.NewReader(text)
	var stderr bytes.Buffer
	node.Stderr = &stderr
	out, err := node.Output()
	if err == nil {
		err = json.Unmarshal(out, &tables)
	}
	if err != nil || len(tables) != len(queries) {
		t.Fatalf("got %d tables, want %d: %v\n%s", len(tables), len(queries), err, tail(stderr.String(), 2000))
	}
	return tables
}

// columnTitles returns the label or query of each column title in a panel's transformations, and the hidden columns.
func (q tableQuery) columnTitles() (titles map[string]string, hidden map[string]bool) {
	var all []struct {
		Options struct {
			RenameByName  map[string]string `json:"renameByName"`
			ExcludeByName map[string]bool   `json:"excludeByName"`
		} `json:"options"`
	}
	if err := json.Unmarshal(q.Transformations, &all); err != nil {
		return nil, nil
	}
	titles, hidden = map[string]string{}, map[string]bool{}
	for _, t := range all {
		maps.Copy(hidden, t.Options.ExcludeByName)
		for source, title := range t.Options.RenameByName {
			if titles[title] == "" || source != "Value" {
				titles[title] = source
			}
		}
	}
	return titles, hidden
}

// tableErrors returns the errors of a table: columns without title, duplicate titles, missing values and duplicate rows.
func (q tableQuery) tableErrors(table renderedTable) (wrong []string) {
	addError := func(format string, args ...any) { wrong = append(wrong, q.Location+": "+fmt.Sprintf(format, args...)) }
	titles, hidden := q.columnTitles()
	values, lines := map[string]int{}, map[int]string{}
	seen := map[string]bool{}
	for _, f := range table.Fields {
		source, hasTitle := titles[f.Name]
		if !hasTitle {
			addError("column without title: %s", f.Name)
		}
		if seen[f.Name] {
			addError("duplicate column %s", f.Name)
		}
		seen[f.Name] = true
		for line, value := range f.Values {
			switch {
			case strings.HasPrefix(source, "Value") && value != nil:
				values[strings.TrimPrefix(source, "Value #")]++
			case !strings.HasPrefix(source, "Value") && value != nil:
				lines[line] += fmt.Sprintf("%s=%v ", f.Name, value)
			}
		}
	}
	for _, a := range q.Results {
		if !hidden["Value #"+a.RefID] && values[a.RefID] != len(a.Series) {
			addError("query %s: got %d values, want %d", a.RefID, values[a.RefID], len(a.Series))
		}
	}
	all := slices.Sorted(maps.Values(lines))
	for i := range all {
		if i > 0 && strings.TrimSpace(all[i-1]) == strings.TrimSpace(all[i]) {
			addError("duplicate row %s", all[i])
		}
	}
	return wrong
}
