package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const prometheusPort = 9090

// startPrometheus starts a server that scrapes podgauge twice a second. As with service discovery, the target's labels name podgauge's own
// pod; honor_labels prefers the scraped labels.
func startPrometheus(t *testing.T, n *node.RealNode) *node.PrometheusServer {
	t.Helper()
	target := map[string]any{
		"targets": []string{fmt.Sprintf("127.0.0.1:%d", defaultPort)},
		"labels":  map[string]string{"namespace": "podgauge", "pod": "podgauge", "container": "podgauge"},
	}
	job := map[string]any{
		"job_name": "podgauge", "honor_labels": true, "static_configs": []any{target},
		"scrape_interval": "500ms", "scrape_timeout": "500ms", // a timeout longer than the interval is rejected
	}
	config, err := json.Marshal(map[string]any{"scrape_configs": []any{job}}) // JSON is YAML
	must(t, err)
	file := n.Path("conf", "prometheus.yml")
	must(t, os.WriteFile(file, config, 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err = n.Start(ctx, "prometheus", []string{
		"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + n.Path("prometheus"),
		fmt.Sprintf("--web.listen-address=0.0.0.0:%d", prometheusPort),
		"--scrape.discovery-reload-interval=100ms", // otherwise the first scrape may be delayed by 5 s
	}, func(ctx context.Context) error { return node.GetJSON(ctx, n.URL(prometheusPort)+"/-/ready", nil) })
	must(t, err)
	server, err := node.ConnectPrometheus(n.URL(prometheusPort))
	must(t, err)
	return server
}
