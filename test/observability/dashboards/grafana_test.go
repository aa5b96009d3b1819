package dashboards

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
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
