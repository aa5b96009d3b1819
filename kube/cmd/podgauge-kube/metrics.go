package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the metrics of the process.
type metrics struct {
	*prometheus.Registry
	requests *prometheus.CounterVec
}

func newMetrics() metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics{r, promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "podgauge_kube_requests_total",
		Help: "Requests to the API server by status code; error: without a response.",
	}, []string{"code"})}
}

// countRequests counts the requests of a transport.
func (m metrics) countRequests(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		switch {
		case err == nil:
			m.requests.WithLabelValues(strconv.Itoa(response.StatusCode)).Inc()
		case !errors.Is(err, context.Canceled):
			m.requests.WithLabelValues("error").Inc()
		}
		return response, err
	})
}

// addNodes adds the number of nodes in a state.
func (m metrics) addNodes(state string, count func() int) {
	promauto.With(m).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_kube_nodes", ConstLabels: prometheus.Labels{"state": state},
		Help: "Nodes with a pod of podgauge. followed: podgauge's state is current; unreachable: it is not.",
	}, func() float64 { return float64(count()) })
}

// addEvents adds the number of dropped events.
func (m metrics) addEvents(dropped func() uint64) {
	promauto.With(m).NewCounterFunc(prometheus.CounterOpts{
		Name: "podgauge_kube_events_dropped_total",
		Help: "Events that became too old before the API server had them.",
	}, func() float64 { return float64(dropped()) })
}

// newLeaderGauge returns the gauge of the leader, and adds it.
func (m metrics) newLeaderGauge() prometheus.Gauge {
	return promauto.With(m).NewGauge(prometheus.GaugeOpts{
		Name: "podgauge_kube_leader", Help: "1 if this replica follows the nodes and reports.",
	})
}

// handler serves metrics and probes.
func (m metrics) handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {}) // a lost lease ends the process
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}
