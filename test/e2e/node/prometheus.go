package node

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"strconv"
	"time"
)

const prometheusPort = 9090

// ScrapeTarget is a scrape target of Prometheus.
type ScrapeTarget struct {
	Job string
	// Address is host:port as seen from inside the node.
	Address string
	// Labels replace the labels of service discovery: pod, namespace and container of the exporter.
	Labels map[string]string
	// HonorLabels prefers scraped labels to Labels.
	HonorLabels bool
	// Interval is the time between two scrapes.
	Interval time.Duration
	// Path is /metrics if empty.
	Path string
}

// PrometheusServer is a Prometheus server in the node.
type PrometheusServer struct {
	*Process
	api string
}

// ConnectPrometheus returns a server that is already running, for example as a pod.
func ConnectPrometheus(url string) *PrometheusServer { return &PrometheusServer{api: url} }

// StartPrometheus starts a server with the targets and waits until the server is ready.
// The first scrape may be up to 5 s later, a constant of the server's target discovery.
func (n *RealNode) StartPrometheus(ctx context.Context, targets ...ScrapeTarget) (*PrometheusServer, error) {
	config, err := json.MarshalIndent(prometheusConfig(targets), "", "  ") // JSON is YAML
	if err != nil {
		return nil, fmt.Errorf("encode Prometheus' configuration: %w", err)
	}
	file := n.path("conf", "prometheus.yml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	p := &PrometheusServer{api: n.URL(prometheusPort)}
	p.Process, err = n.Exec("prometheus", []string{
		"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + n.path("prometheus"),
		fmt.Sprintf("--web.listen-address=0.0.0.0:%d", prometheusPort),
		"--scrape.discovery-reload-interval=100ms", // otherwise the first scrape may be delayed by 5 s
	})
	if err != nil {
		return nil, err
	}
	return p, Until(ctx, "Prometheus is ready", func(ctx context.Context) error {
		if err := p.Alive(); err != nil {
			return StopRetrying(err)
		}
		return getJSON(ctx, p.api+"/-/ready", nil)
	})
}

func prometheusConfig(targets []ScrapeTarget) map[string]any {
	scrapes := []any{}
	for _, t := range targets {
		scrapes = append(scrapes, map[string]any{
			"job_name":        t.Job,
			"honor_labels":    t.HonorLabels,
			"metrics_path":    firstNonEmpty(t.Path, "/metrics"),
			"scrape_interval": milliseconds(t.Interval),
			// Prometheus rejects timeouts longer than the interval.
			"scrape_timeout": milliseconds(min(t.Interval, 10*time.Second)),
			"static_configs": []any{map[string]any{"targets": []string{t.Address}, "labels": t.Labels}},
		})
	}
	return map[string]any{"scrape_configs": scrapes}
}

// milliseconds formats a duration for Prometheus, without fractions.
func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// PromPoint is a value at a time.
type PromPoint struct {
	Time  time.Time
	Value float64
}

// PromSample is a series' value at the time of a query.
type PromSample struct {
	Labels map[string]string // with __name__
	PromPoint
}

// PromSeries is a series of a range query.
type PromSeries struct {
	Labels map[string]string // with __name__
	Points []PromPoint
}

// Query evaluates PromQL now. The result must be a vector, not a range such as up[1m].
func (p *PrometheusServer) Query(ctx context.Context, promql string) ([]PromSample, error) {
	var found []struct {
		Metric map[string]string
		Value  pointJSON
	}
	if err := p.query(ctx, "query", "vector", url.Values{"query": {promql}}, &found); err != nil {
		return nil, err
	}
	samples := []PromSample{}
	for _, f := range found {
		samples = append(samples, PromSample{f.Metric, PromPoint(f.Value)})
	}
	return samples, nil
}

// QueryRange evaluates PromQL at every step from one time to another.
func (p *PrometheusServer) QueryRange(ctx context.Context, promql string, from, to time.Time, step time.Duration) ([]PromSeries, error) {
	var found []struct {
		Metric map[string]string
		Values []pointJSON
	}
	arguments := url.Values{
		"query": {promql}, "start": {from.Format(time.RFC3339Nano)}, "end": {to.Format(time.RFC3339Nano)}, "step": {milliseconds(step)},
	}
	if err := p.query(ctx, "query_range", "matrix", arguments, &found); err != nil {
		return nil, err
	}
	all := []PromSeries{}
	for _, f := range found {
		s := PromSeries{Labels: f.Metric}
		for _, point := range f.Values {
			s.Points = append(s.Points, PromPoint(point))
		}
		all = append(all, s)
	}
	return all, nil
}

func (p *PrometheusServer) query(ctx context.Context, endpoint, kind string, arguments url.Values, result any) error {
	var response struct {
		Data struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := getJSON(ctx, fmt.Sprintf("%s/api/v1/%s?%s", p.api, endpoint, arguments.Encode()), &response); err != nil {
		return fmt.Errorf("query %s: %w", arguments.Get("query"), err)
	}
	if response.Data.ResultType != kind {
		return fmt.Errorf("query %s: result is a %s, want a %s", arguments.Get("query"), response.Data.ResultType, kind)
	}
	if err := json.Unmarshal(response.Data.Result, result); err != nil {
		return fmt.Errorf("query %s: decode a %s: %w", arguments.Get("query"), kind, err)
	}
	return nil
}

// pointJSON is written as [seconds, "value"].
type pointJSON PromPoint

func (p *pointJSON) UnmarshalJSON(b []byte) error {
	var seconds float64
	var value string
	if err := json.Unmarshal(b, &[]any{&seconds, &value}); err != nil {
		return err
	}
	whole, fraction := math.Modf(seconds)
	p.Time = time.Unix(int64(whole), int64(fraction*1e9))
	var err error
	p.Value, err = strconv.ParseFloat(value, 64) // NaN and Inf as well
	return err
}
