package openmetrics

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// promQL parses queries and series.
var promQL = parser.NewParser(parser.Options{})

// history has series by name, from time 0, and evaluates queries and rules.
type history struct {
	series map[string][]*promql.Series
	engine *promql.Engine
}

func newHistory() *history {
	return &history{map[string][]*promql.Series{}, promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, Parser: promQL,
	})}
}

// add adds a series in promtool's notation, with a value for each interval.
func (h *history) add(t *testing.T, series, values string, interval time.Duration) {
	t.Helper()
	metric, sequence, err := promQL.ParseSeriesDesc(series + " " + values)
	require.NoError(t, err)
	added := h.newSeries(metric)
	for i, v := range sequence {
		if !v.Omitted {
			appendSample(added, time.Duration(i)*interval, v.Value)
		}
	}
}

func (h *history) newSeries(metric labels.Labels) *promql.Series {
	name := metric.Get(model.MetricNameLabel)
	added := &promql.Series{Metric: metric}
	h.series[name] = append(h.series[name], added)
	return added
}

func appendSample(s *promql.Series, at time.Duration, value float64) {
	s.Floats = append(s.Floats, promql.FPoint{T: at.Milliseconds(), F: value})
}

// Querier implements storage.Queryable. The engine selects the samples by time.
func (h *history) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := &seriesSet{next: -1}
		for name, family := range h.series {
			isOther := func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && !m.Matches(name) }
			if slices.ContainsFunc(matchers, isOther) {
				continue
			}
			for _, s := range family {
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
					found.all = append(found.all, promql.NewStorageSeries(*s))
				}
			}
		}
		return found
	}}, nil
}

// seriesSet is a storage.SeriesSet.
type seriesSet struct {
	all  []storage.Series
	next int
}

func (s *seriesSet) Next() bool                      { s.next++; return s.next < len(s.all) }
func (s *seriesSet) At() storage.Series              { return s.all[s.next] }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// query evaluates an expression.
func (h *history) query(t *testing.T, expr string, at time.Duration) promql.Vector {
	t.Helper()
	query, err := h.engine.NewInstantQuery(t.Context(), h, nil, expr, time.UnixMilli(at.Milliseconds()))
	require.NoError(t, err)
	defer query.Close()
	found, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("at %s: %v: %s", at, err, expr)
	}
	return slices.Clone(found)
}

// evaluate evaluates recording rules at each interval, in order as in one group, and then alerts. It returns the labels of the firing alerts of
// each evaluation. A rule is one query for all times, unless it reads itself or a later rule: most of the time of a query is parsing.
func (h *history) evaluate(t *testing.T, rules []rulefmt.Rule, interval, end time.Duration) (firing [][]labels.Labels) {
	t.Helper()
	evaluated := make([]evaluatedRule, len(rules))
	for i, rule := range rules {
		evaluated[i] = evaluatedRule{rule, map[labels.Labels]*promql.Series{}}
	}
	slices.SortStableFunc(evaluated, func(a, b evaluatedRule) int { return strings.Compare(a.Alert, b.Alert) }) // recordings have no name
	firing = make([][]labels.Labels, end/interval+1)
	for len(evaluated) > 0 {
		n, step := lengthOfLoop(evaluated), interval
		if n == 0 {
			n, step = 1, end+interval
		}
		for begin := time.Duration(0); begin <= end; begin += step {
			for _, rule := range evaluated[:n] {
				results := rule.results(t, h, begin, min(begin+step-interval, end), interval)
				for _, metric := range slices.SortedFunc(maps.Keys(results), labels.Compare) {
					if rule.Record != "" {
						rule.record(h, metric, results[metric], begin, interval)
					} else {
						rule.fire(metric, results[metric], interval, firing)
					}
				}
			}
		}
		evaluated = evaluated[n:]
	}
	return firing
}

// evaluatedRule is a rule with its series.
type evaluatedRule struct {
	rulefmt.Rule
	recorded map[labels.Labels]*promql.Series
}

// lengthOfLoop returns the number of rules up to the last one that the first one, or a rule between both, reads.
func lengthOfLoop(rules []evaluatedRule) (n int) {
	for i := 0; i == 0 || i < n; i++ {
		for j := i; j < len(rules); j++ {
			if rules[j].Record != "" && strings.Contains(rules[i].Expr, rules[j].Record) {
				n = max(n, j+1)
			}
		}
	}
	return n
}

// results returns the values of each series of a rule from begin to end. A missing value is stale.
func (r *evaluatedRule) results(t *testing.T, h *history, begin, end, interval time.Duration) map[labels.Labels][]float64 {
	t.Helper()
	query, err := h.engine.NewRangeQuery(t.Context(), h, nil, r.Expr, time.UnixMilli(begin.Milliseconds()), time.UnixMilli(end.Milliseconds()), interval)
	require.NoError(t, err)
	defer query.Close()
	found, err := query.Exec(t.Context()).Matrix()
	if err != nil {
		t.Fatalf("from %s: %v: %s", begin, err, r.Expr)
	}
	results := map[labels.Labels][]float64{}
	missing := slices.Repeat([]float64{math.Float64frombits(value.StaleNaN)}, int((end-begin)/interval)+1)
	for metric := range r.recorded {
		results[metric] = slices.Clone(missing)
	}
	for _, series := range found {
		b := labels.NewBuilder(series.Metric).Set(model.MetricNameLabel, r.Record)
		for name, value := range r.Labels {
			b.Set(name, value)
		}
		if r.Alert != "" {
			b.Set(model.AlertNameLabel, r.Alert)
		}
		metric := b.Labels()
		if results[metric] == nil {
			results[metric] = slices.Clone(missing)
		}
		for _, point := range series.Floats {
			results[metric][(time.Duration(point.T)*time.Millisecond-begin)/interval] = point.F
		}
	}
	return results
}

// record stores values of a series of a recording rule.
func (r *evaluatedRule) record(h *history, metric labels.Labels, values []float64, begin, interval time.Duration) {
	if r.recorded[metric] == nil {
		r.recorded[metric] = h.newSeries(metric)
	}
	for i, v := range values {
		appendSample(r.recorded[metric], begin+time.Duration(i)*interval, v)
	}
}

// fire adds an alert to the firing alerts of each evaluation in which it fires.
func (r *evaluatedRule) fire(metric labels.Labels, values []float64, interval time.Duration, firing [][]labels.Labels) {
	var since, lastTrue time.Duration
	isFiring := false
	for i, v := range values {
		now := time.Duration(i) * interval
		if !value.IsStaleNaN(v) {
			lastTrue = now
			isFiring = isFiring || now-since >= time.Duration(r.For)
		} else if !isFiring || now-lastTrue > time.Duration(r.KeepFiringFor) {
			isFiring = false
			since = now + interval
		}
		if isFiring {
			firing[i] = append(firing[i], metric)
		}
	}
}
