package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const prometheusPort = 9090

// scrapeTarget is a scrape target of Prometheus.
type scrapeTarget struct {
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

// runPrometheus starts a server with the targets and waits until the server is ready.
// The first scrape may be up to 5 s later, a constant of the server's target discovery.
func runPrometheus(ctx context.Context, n *node.RealNode, targets ...scrapeTarget) (*node.PrometheusServer, error) {
	config, err := json.MarshalIndent(prometheusConfig(targets), "", "  ") // JSON is YAML
	if err != nil {
		return nil, fmt.Errorf("encode Prometheus' configuration: %w", err)
	}
	file, url := n.Path("conf", "prometheus.yml"), n.URL(prometheusPort)
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	argv := []string{
		"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + n.Path("prometheus"),
		fmt.Sprintf("--web.listen-address=0.0.0.0:%d", prometheusPort),
		"--scrape.discovery-reload-interval=100ms", // otherwise the first scrape may be delayed by 5 s
	}
	if _, err := n.Start(ctx, "prometheus", argv, func(ctx context.Context) error { return node.GetJSON(ctx, url+"/-/ready", nil) }); err != nil {
		return nil, err
	}
	return node.ConnectPrometheus(url)
}

func prometheusConfig(targets []scrapeTarget) map[string]any {
	scrapes := []any{}
	for _, t := range targets {
		scrapes = append(scrapes, map[string]any{
			"job_name":        t.Job,
			"honor_labels":    t.HonorLabels,
			"metrics_path":    cmp.Or(t.Path, "/metrics"),
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
