package node

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// PrometheusServer is a Prometheus server in the node.
type PrometheusServer struct{ api prometheus.API }

// ConnectPrometheus returns a running server.
func ConnectPrometheus(url string) (*PrometheusServer, error) {
	// The next node has the same address, and would reset a kept connection.
	client, err := api.NewClient(api.Config{Address: url, RoundTripper: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		return nil, err
	}
	return &PrometheusServer{api: prometheus.NewAPI(client)}, nil
}

// Query evaluates PromQL now. The result must be a vector, not a range such as
// up[1m].
func (p *PrometheusServer) Query(ctx context.Context, promql string) (model.Vector, error) {
	value, _, _, err := p.api.Query(ctx, promql, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", promql, err)
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("query %s: result is a %s, want a vector", promql, value.Type())
	}
	return vector, nil
}
