package dashboards

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// ruleRecorder evaluates the recording rules over past times, in place of Prometheus.
type ruleRecorder struct {
	*testing.T
	begin time.Time
	api   prometheus.API
	rules []alertOrRecording

	samples []int                     // of each rule
	live    []map[string]model.Metric // series of each rule at the latest step
}

func newRecorder(t *testing.T, begin time.Time, url string) *ruleRecorder {
	t.Helper()
	client, err := api.NewClient(api.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	r := &ruleRecorder{T: t, begin: begin, api: prometheus.NewAPI(client), rules: readRules(t, recordingsFile)}
	r.samples = make([]int, len(r.rules))
	r.live = make([]map[string]model.Metric, len(r.rules))
	return r
}

// record evaluates the rules between two steps, in order, because a rule may use series of an earlier rule. It returns the number of
// samples.
func (r *ruleRecorder) record(from, to int, urls []string) (total int) {
	every := int(ruleInterval / fleetStep)
	first := (from + every - 1) / every * every
	last := (to - 1) / every * every
	if first > last {
		return 0
	}
	at := func(step int) time.Time { return r.begin.Add(time.Duration(step)*fleetStep + ruleOffset) }
	for i, rule := range r.rules {
		value, _, _, err := r.api.QueryRange(r.Context(), rule.Expr, prometheus.Range{Start: at(first), End: at(last), Step: ruleInterval})
		if err != nil {
			r.Fatalf("%s: %v", rule.Record, err)
		}
		request := &writeRequest{}
		live := map[string]model.Metric{}
		for _, s := range value.(model.Matrix) {
			s.Metric[model.MetricNameLabel] = model.LabelValue(rule.Record)
			times, values := withStaleMarkers(s.Values, at(last))
			if s.Values[len(s.Values)-1].Timestamp.Time().Equal(at(last)) {
				live[s.Metric.String()] = s.Metric
			}
			delete(r.live[i], s.Metric.String())
			request.add(labelPairs(s.Metric), times, values)
		}
		for _, ended := range r.live[i] {
			request.add(labelPairs(ended), []int64{at(first).UnixMilli()}, []float64{staleMarker})
		}
		r.live[i] = live
		if err := request.send(r.Context(), urls...); err != nil {
			r.Fatalf("%s: %v", rule.Record, err)
		}
		r.samples[i] += request.sampleCount
		total += request.sampleCount
	}
	return total
}

// withStaleMarkers adds a marker after each sample without a successor, as Prometheus does if a rule no longer has a result.
func withStaleMarkers(samples []model.SamplePair, last time.Time) (times []int64, values []float64) {
	for i, s := range samples {
		times, values = append(times, int64(s.Timestamp)), append(values, float64(s.Value))
		next := s.Timestamp.Add(ruleInterval)
		if i+1 < len(samples) && samples[i+1].Timestamp != next || i+1 == len(samples) && s.Timestamp.Time().Before(last) {
			times, values = append(times, int64(next)), append(values, staleMarker)
		}
	}
	return times, values
}

func labelPairs(m model.Metric) (pairs []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, string(name), string(m[name]))
	}
	return pairs
}

// measureRules evaluates all rules three times at the end and counts the fastest evaluation, as rules are evaluated repeatedly.
func (c *fleetRun) measureRules(e *fleetEngine) {
	for _, group := range []struct{ name, file string }{{"recording rules", recordingsFile}, {"alerts", rulesFile}} {
		rules, sum, slowest, slowestSeconds := readRules(c.T, group.file), 0.0, "", 0.0
		for _, r := range rules {
			seconds := maxPanelSeconds * 1000.0
			for range 3 {
				seconds = min(seconds, e.query(c.T, fleetQuery{c.panelRange, group.name, r.Expr, true}).seconds)
			}
			c.Logf("%s: %5.2f s: %s%s", e.name, seconds, r.Record, r.Alert)
			if sum += seconds; seconds > slowestSeconds {
				slowestSeconds, slowest = seconds, r.Record+r.Alert
			}
		}
		c.add(e, fmt.Sprintf("%d %s: evaluation of all; slowest", len(rules), group.name), fmt.Sprintf("%.1f s; %.2f s (`%s`)", sum, slowestSeconds, slowest))
	}
}
