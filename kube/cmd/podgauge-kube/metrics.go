package main

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the metrics of the process.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "podgauge_kube_requests_total",
			Help: "Requests to the API server, by status code of the response; code=\"error\" if there was no response.",
		}, []string{"code"}),
	}
	m.registry.MustRegister(m.requests, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// addNodes adds the numbers of nodes.
func (m *metrics) addNodes(count func() (followed, unreachable int)) {
	nodes := func(state string, number func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "podgauge_kube_nodes", ConstLabels: prometheus.Labels{"state": state},
			Help: "Nodes with a pod of podgauge. followed: podgauge's state is current; unreachable: it is not.",
		}, func() float64 { return float64(number()) })
	}
	m.registry.MustRegister(
		nodes("followed", func() int { followed, _ := count(); return followed }),
		nodes("unreachable", func() int { _, unreachable := count(); return unreachable }),
	)
}

// addEvents adds the number of dropped events.
func (m *metrics) addEvents(dropped func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "podgauge_kube_events_dropped_total",
		Help: "Events that became too old before the API server had them.",
	}, func() float64 { return float64(dropped()) }))
}

// addLeader adds whether the process is the leader.
func (m *metrics) addLeader(leading func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_kube_leader", Help: "1 if this replica follows the nodes and reports.",
	}, func() float64 {
		if leading() {
			return 1
		}
		return 0
	}))
}

// handler serves metrics and probes.
func (m *metrics) handler(healthy, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	for path, check := range map[string]func() error{"/healthz": healthy, "/readyz": ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		})
	}
	return mux
}

// roundTripper is a function that is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// countRequests counts the requests of a transport.
func (m *metrics) countRequests(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		code := "error"
		if err == nil {
			code = strconv.Itoa(response.StatusCode)
		}
		m.requests.WithLabelValues(code).Inc()
		return response, err
	})
}
