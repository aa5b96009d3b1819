package dashboards

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// fill returns a query of a panel with expanded variables.
func (c *fleetRun) fill(t boardTarget, location, minStep string, values variableValues) fleetQuery {
	c.Helper()
	q := fleetQuery{panelRange: c.panelRange, location: location, instant: t.Instant}
	var err error
	if minStep != "" {
		q.minStep, err = time.ParseDuration(minStep)
	}
	if err == nil {
		q.expr, err = q.expandVariables(t.Expr, values)
	}
	if err != nil {
		c.Fatalf("%s: %v", location, err)
	}
	return q
}

// firstView returns the initial values of a dashboard's variables, and the time of the slowest variable.
func (c *fleetRun) firstView(e *fleetEngine, b *dashboardFile) (values variableValues, slowest float64) {
	values = variableValues{}
	for _, v := range b.Templating.List {
		switch v.Type {
		case "query":
			series, label, err := v.labelValuesQuery()
			if err == nil {
				series, err = c.expandVariables(series, values)
			}
			if err != nil {
				c.Fatalf("%s: $%s: %v", b.Name, v.Name, err)
			}
			begun := time.Now()
			found := e.labelValues(c, label, series)
			seconds := time.Since(begun).Seconds()
			c.Logf("%s: %5.2f s, %5d values: %s: $%s: %s", e.name, seconds, len(found), b.Name, v.Name, series)
			if slowest = max(slowest, seconds); seconds > maxPanelSeconds {
				c.Errorf("%s: %s: $%s: %.1f s, want at most %d", e.name, b.Name, v.Name, seconds, maxPanelSeconds)
			}
			if len(found) == 0 {
				c.Errorf("%s: %s: $%s has no values", e.name, b.Name, v.Name)
				continue
			}
			values[v.Name] = found[0]
			if v.All {
				values[v.Name] = v.allValue(found)
			} else if v.Multi {
				values[v.Name] = alternatives(found[:1])
			}
		case "textbox":
			if err := json.Unmarshal(v.Query, new(string)); err != nil {
				c.Fatalf("%s: $%s: %v", b.Name, v.Name, err)
			}
			values[v.Name] = strings.Trim(string(v.Query), `"`)
		}
	}
	return values, slowest
}

func (e *fleetEngine) labelValues(c *fleetRun, label, series string) []string {
	c.Helper()
	form := url.Values{"match[]": {series}, "start": {formatTime(c.begin)}, "end": {formatTime(c.end)}}
	var response struct{ Data []string }
	if err := json.Unmarshal([]byte(fetch(e.url+"/api/v1/label/"+label+"/values?"+form.Encode())), &response); err != nil {
		c.Fatalf("%s: values of %s: %v", e.name, label, err)
	}
	return response.Data
}

// tolerance is the accepted relative difference between values of two engines.
const tolerance = 1e-6

// compare checks that two engines return the same series with the same values. For topk and bottomk it only compares the sums,
// because engines choose differently among equal values.
func (c *fleetRun) compare(e *fleetEngine, one, other map[string]fleetResult) {
	different := 0
	for _, location := range slices.Sorted(maps.Keys(one)) {
		a, b := one[location].series, other[location].series
		if strings.Contains(one[location].expr, "topk(") || strings.Contains(one[location].expr, "bottomk(") {
			a, b = total(a), total(b)
		}
		var wrong []string
		for _, key := range slices.Sorted(maps.Keys(a)) {
			s, ok := b[key]
			if !ok || s.samples != a[key].samples || math.Abs(s.sum-a[key].sum) > tolerance*math.Abs(a[key].sum) {
				wrong = append(wrong, fmt.Sprintf("%s: %v, %v", key, a[key], s))
			}
		}
		if len(wrong) > 0 || len(a) != len(b) {
			different++
			c.Errorf("%s: %d and %d series, %d differ: %s", location, len(a), len(b), len(wrong), tail(strings.Join(wrong, "; "), 500))
		}
	}
	c.Logf("%s: %d queries, %d of them differ from %s", e.name, len(one), different, c.engines[0].name)
}

// total returns the sum of series.
func total(series map[string]fleetSeries) map[string]fleetSeries {
	var all fleetSeries
	for _, s := range series {
		all.samples, all.sum = all.samples+s.samples, all.sum+s.sum
	}
	return map[string]fleetSeries{"all": all}
}

// fleetRow is a row of the table in docs/explanation/scale.md.
type fleetRow struct {
	name  string
	cells map[string]string // by engine
}

func (c *fleetRun) add(e *fleetEngine, name, cell string) {
	i := slices.IndexFunc(c.rows, func(r fleetRow) bool { return r.name == name })
	if i < 0 {
		i, c.rows = len(c.rows), append(c.rows, fleetRow{name, map[string]string{}})
	}
	c.rows[i].cells[e.name] = cell
}

func formatBytes(n float64) string {
	if n >= 1e9 {
		return fmt.Sprintf("%.1f GB", n/1e9)
	}
	return fmt.Sprintf("%.0f MB", n/1e6)
}

// report logs the table and, with -write, writes it to docs/explanation/scale.md.
func (c *fleetRun) report() {
	var table strings.Builder
	fmt.Fprintf(&table, "On %s, on a machine with %d processors:\n\n||", time.Now().Format(time.DateOnly), runtime.NumCPU())
	for _, e := range c.engines {
		fmt.Fprintf(&table, "%s|", e.title)
	}
	fmt.Fprintf(&table, "\n|---|%s\n", strings.Repeat("---|", len(c.engines)))
	for _, r := range c.rows {
		fmt.Fprintf(&table, "|%s|", r.name)
		for _, e := range c.engines {
			fmt.Fprintf(&table, "%s|", r.cells[e.name])
		}
		table.WriteString("\n")
	}
	c.Logf("\n%s", table.String())
	if !*writeFleet || c.Failed() || c.fleetModel == nil { // a run with reused data lacks the write statistics
		return
	}
	const page, begin, end = "../../../docs/explanation/scale.md", "<!-- fleet -->\n", "<!-- /fleet -->"
	text, err := os.ReadFile(page)
	if err != nil {
		c.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		c.Fatalf("%s lacks the markers of the table", page)
	}
	if err := os.WriteFile(page, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		c.Fatal(err)
	}
}
