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

// How Grafana fills in what a query leaves open (packages/grafana-prometheus/src: datasource.ts,
// escaping.ts).

// scrapeInterval is Prometheus' here, and what its datasource in Grafana would be told.
const scrapeInterval = 5 * time.Second

// maxPoints is how wide a panel is drawn: it asks for no more points than that.
const maxPoints = 800

// panelRange is what a reader looks at: a range of time.
type panelRange struct {
	begin, end time.Time
	scrapes    time.Duration // time between two; zero: scrapeInterval
	minStep    time.Duration // of the panel
}

func (s panelRange) scrapeInterval() time.Duration { return cmp.Or(s.scrapes, scrapeInterval) }

// interval is $__interval, and the step of a query over the range.
func (s panelRange) interval() time.Duration {
	return max(s.end.Sub(s.begin)/maxPoints, s.scrapeInterval(), s.minStep)
}

// rateInterval is $__rate_interval: a window in which each step has two samples, even where a
// scrape is missed.
func (s panelRange) rateInterval() time.Duration {
	return max(s.interval()+s.scrapeInterval(), 4*s.scrapeInterval())
}

// variableValues are the values of a dashboard's variables, as they stand in a query.
type variableValues map[string]string

var variablePattern = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::[^}]*)?\}`)

// expandVariables puts variables into a query, and tells which of them are not known.
func (s panelRange) expandVariables(expr string, values variableValues) (string, error) {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }
	own := map[string]string{
		"__interval": seconds(s.interval()), "__rate_interval": seconds(s.rateInterval()), "__range": seconds(s.end.Sub(s.begin)),
	}
	var err error
	filled := variablePattern.ReplaceAllStringFunc(expr, func(found string) string {
		parts := variablePattern.FindStringSubmatch(found)
		name := parts[1] + parts[2]
		if value, ok := values[name]; ok {
			return value
		}
		if value, ok := own[name]; ok {
			return value
		}
		err = fmt.Errorf("no variable is called %s", name)
		return found
	})
	return filled, err
}

var regexpSpecial = regexp.MustCompile(`[$^*{}\[\]'+?.()|\\]`)

// quoteRegexp is a value as it stands in a matcher of a regular expression, between quotes.
func quoteRegexp(value string) string {
	return regexpSpecial.ReplaceAllStringFunc(value, func(char string) string {
		if char == `\` {
			return `\\\\`
		}
		return `\\` + char
	})
}

// allValue is what stands for "All".
func (v boardVariable) allValue(values []string) string {
	if v.AllValue != "" {
		return v.AllValue
	}
	return alternatives(values)
}

// alternatives is what stands for values that were each chosen.
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

// labelValuesQuery are the series of which a variable wants the values of a label.
func (v boardVariable) labelValuesQuery() (series, label string, err error) {
	var of struct{ Query string }
	if err := json.Unmarshal(v.Query, &of); err != nil {
		return "", "", err
	}
	parts := labelValues.FindStringSubmatch(of.Query)
	if parts == nil {
		return "", "", fmt.Errorf("%s asks for no label's values", of.Query)
	}
	return parts[1], parts[2], nil
}

// TestFill: queries are filled in as Grafana does.
func TestFill(t *testing.T) {
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
		{time.Minute, `a{pod=~"$pods"}`, variableValues{"pod": "a"}, `a{pod=~"$pods"}`, "no variable is called pods"},
	} {
		got, err := panelRange{begin: begin, end: begin.Add(c.within)}.expandVariables(c.expr, c.values)
		if got != c.want || fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
			t.Errorf("%s: %s, %v, want %s", c.expr, got, err, c.want)
		}
	}
}
