package openmetrics

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// promQL parses queries and series.
var promQL = parser.NewParser(parser.Options{})

// history has series by name, from time 0, and evaluates queries and rules.
type history struct {
	series map[string][]*storedSeries
	engine *promql.Engine
}

// storedSeries is a series with its samples by time.
type storedSeries struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// floatSample is a float sample. The methods for histograms are not used.
type floatSample struct {
	chunks.Sample
	at    int64 // ms
	value float64
}

func (s floatSample) T() int64               { return s.at }
func (floatSample) ST() int64                { return 0 }
func (s floatSample) F() float64             { return s.value }
func (floatSample) Type() chunkenc.ValueType { return chunkenc.ValFloat }

func newHistory() *history {
	return &history{map[string][]*storedSeries{}, promql.NewEngine(promql.EngineOpts{
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
			added.append(time.Duration(i)*interval, v.Value)
		}
	}
}

func (h *history) newSeries(metric labels.Labels) *storedSeries {
	name := metric.Get(model.MetricNameLabel)
	added := &storedSeries{labels: metric}
	h.series[name] = append(h.series[name], added)
	return added
}

func (s *storedSeries) append(at time.Duration, value float64) {
	s.samples = append(s.samples, floatSample{at: at.Milliseconds(), value: value})
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
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
					found.all = append(found.all, storage.NewListSeries(s.labels, s.samples))
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

// evaluate evaluates rules at each interval, in order as in one group. It returns the labels of the firing alerts of each evaluation.
func (h *history) evaluate(t *testing.T, rules []rulefmt.Rule, interval, end time.Duration) (firing [][]labels.Labels) {
	t.Helper()
	evaluated := make([]evaluatedRule, len(rules))
	for i, rule := range rules {
		evaluated[i] = evaluatedRule{Rule: rule, recorded: map[string]*storedSeries{}, alerts: map[string]*activeAlert{}}
	}
	for now := time.Duration(0); now <= end; now += interval {
		var current []labels.Labels
		for i := range evaluated {
			rule := &evaluated[i]
			found := h.query(t, rule.Expr, now)
			if rule.Record != "" {
				rule.record(h, found, now)
			} else {
				current = append(current, rule.firing(found, now)...)
			}
		}
		firing = append(firing, current)
	}
	return firing
}

// evaluatedRule is a rule with its state between evaluations.
type evaluatedRule struct {
	rulefmt.Rule
	recorded map[string]*storedSeries
	alerts   map[string]*activeAlert // by labels
}

// activeAlert is a pending or firing alert.
type activeAlert struct {
	labels          labels.Labels
	since, lastTrue time.Duration
	firing          bool
}

// record stores the result of a recording rule. Series without a result end.
func (r *evaluatedRule) record(h *history, found promql.Vector, now time.Duration) {
	current := map[string]bool{}
	for _, sample := range found {
		b := labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, r.Record)
		for name, value := range r.Labels {
			b.Set(name, value)
		}
		metric := b.Labels()
		key := metric.String()
		if r.recorded[key] == nil {
			r.recorded[key] = h.newSeries(metric)
		}
		r.recorded[key].append(now, sample.F)
		current[key] = true
	}
	for key, s := range r.recorded {
		if !current[key] {
			s.append(now, math.Float64frombits(value.StaleNaN))
		}
	}
}

// firing updates the alerts with the result of the rule, and returns the labels of the firing alerts.
func (r *evaluatedRule) firing(found promql.Vector, now time.Duration) (all []labels.Labels) {
	for _, sample := range found {
		b := labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Set(model.AlertNameLabel, r.Alert)
		for name, value := range r.Labels {
			b.Set(name, value)
		}
		key := b.Labels().String()
		if r.alerts[key] == nil {
			r.alerts[key] = &activeAlert{labels: b.Labels(), since: now}
		}
		r.alerts[key].lastTrue = now
	}
	for key, alert := range r.alerts {
		isTrue := alert.lastTrue == now
		alert.firing = alert.firing || isTrue && now-alert.since >= time.Duration(r.For)
		switch {
		case !isTrue && (!alert.firing || now-alert.lastTrue > time.Duration(r.KeepFiringFor)):
			delete(r.alerts, key)
		case alert.firing:
			all = append(all, alert.labels)
		}
	}
	return all
}
