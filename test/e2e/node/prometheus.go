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
	return resultAs[model.Vector](promql)(p.api.Query(ctx, promql, time.Time{}))
}

// QueryRange evaluates PromQL at every step from one time to another.
func (p *PrometheusServer) QueryRange(ctx context.Context, promql string, from, to time.Time,
	step time.Duration,
) (model.Matrix, error) {
	return resultAs[model.Matrix](promql)(p.api.QueryRange(ctx, promql,
		prometheus.Range{Start: from, End: to, Step: step}))
}

type queryReturn[T any] = func(model.Value, prometheus.Warnings, prometheus.Infos, error) (T, error)

// resultAs returns a function that requires the type of a query's result.
func resultAs[T model.Value](promql string) queryReturn[T] {
	return func(value model.Value, _ prometheus.Warnings, _ prometheus.Infos, err error) (T, error) {
		result, ok := value.(T)
		switch {
		case err != nil:
			return result, fmt.Errorf("query %s: %w", promql, err)
		case !ok:
			return result, fmt.Errorf("query %s: result is a %s, want a %s", promql, value.Type(), result.Type())
		}
		return result, nil
	}
}
