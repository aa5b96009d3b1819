package exporter

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// callBuckets fit calls on a unix socket: most take less than a millisecond;
// hanging calls end at a deadline of some seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// SelfMetrics are the metrics of podgauge itself. They implement
// plugin.EndpointHooks: only this package knows Prometheus.
type SelfMetrics struct {
	registry                  *prometheus.Registry
	registrations, rejections *prometheus.CounterVec
	pluginCalls, kubeletCalls callMetrics
}

// NewSelfMetrics registers podgauge's own metrics.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool) *SelfMetrics {
	m := &SelfMetrics{registry: registry}
	m.registrations = m.counter("podgauge_registrations_total")
	m.rejections = m.counter("podgauge_plugin_rejections_total")
	m.pluginCalls = m.calls("podgauge_plugin_request")
	m.kubeletCalls = m.calls("podgauge_pod_resources_request")
	build := map[string]float64{version + "," + runtime.Version(): 1}
	m.Export("podgauge_build_info", func() map[string]float64 { return build })
	m.ExportOne("podgauge_simulated", func() float64 { return boolValue(simulated) })
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// selfFamily returns a row of SelfFamilies.
func selfFamily(name string) Family {
	return SelfFamilies[slices.IndexFunc(SelfFamilies[:], func(f Family) bool { return f.Name == name })]
}

func (m *SelfMetrics) counter(name string) *prometheus.CounterVec {
	f := selfFamily(name)
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: f.Help}, f.Labels)
}

func (m *SelfMetrics) calls(prefix string) callMetrics {
	f := selfFamily(prefix + "_duration_seconds")
	opts := prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: callBuckets}
	durations := promauto.With(m.registry).NewHistogramVec(opts, f.Labels)
	return callMetrics{durations, m.counter(prefix + "_errors_total")}
}

// OnResourceAdded makes the series of a resource, and of the reasons to reject a
// container, before the first event: increase() misses the first event of a new
// counter.
func (m *SelfMetrics) OnResourceAdded(resource string) {
	m.registrations.WithLabelValues(resource, "success")
	m.registrations.WithLabelValues(resource, "error")
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.pluginCalls.duration.WithLabelValues(method)
		m.pluginCalls.errors.WithLabelValues(method)
	}
	for _, reason := range plugin.RejectReasons() {
		m.rejections.WithLabelValues(resource, string(reason))
	}
}

// OnRejected counts a container whose request was rejected.
func (m *SelfMetrics) OnRejected(resource string, _ []device.AdvertisedID, reason plugin.RejectReason, _ error) {
	m.rejections.WithLabelValues(resource, string(reason)).Inc()
}

// OnRegistered counts a registration.
func (m *SelfMetrics) OnRegistered(resource string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.registrations.WithLabelValues(resource, result).Inc()
}

// OnCallServed records a request of the kubelet.
func (m *SelfMetrics) OnCallServed(method string, elapsed time.Duration, err error) {
	m.pluginCalls.observe(method, elapsed, err)
}

// ObserveKubeletCall records a request to the kubelet.
func (m *SelfMetrics) ObserveKubeletCall(method string, elapsed time.Duration, err error) {
	m.kubeletCalls.observe(method, elapsed, err)
}

// callMetrics are the metrics of calls, by method.
type callMetrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

func (c callMetrics) observe(method string, elapsed time.Duration, err error) {
	c.duration.WithLabelValues(method).Observe(elapsed.Seconds())
	errorCount := c.errors.WithLabelValues(method)
	if err != nil {
		errorCount.Inc()
	}
}

// ExportResources exports the published state of the plugin's resources.
func (m *SelfMetrics) ExportResources(published *pubsub.Value[[]plugin.Resource]) {
	type values = map[string]float64
	export := func(name string, add func(values, plugin.Resource)) {
		m.Export(name, func() values {
			all := values{}
			for _, r := range published.Newest() {
				add(all, r)
			}
			return all
		})
	}
	export("podgauge_plugin_streams", func(v values, r plugin.Resource) { v[r.Name] = boolValue(r.Registered) })
	export("podgauge_plugin_waiting", func(v values, r plugin.Resource) { v[r.Name] = boolValue(r.Waiting) })
	export("podgauge_plugin_devices", func(v values, r plugin.Resource) {
		if r.Devices > 0 {
			v[r.Name+",healthy"], v[r.Name+",unhealthy"] = float64(r.Healthy), float64(r.Devices-r.Healthy)
		}
	})
}

// ExportOne exports a metric without labels. Each scrape calls value.
func (m *SelfMetrics) ExportOne(name string, value func() float64) {
	m.Export(name, func() map[string]float64 { return map[string]float64{"": value()} })
}

// Export exports a metric of families.go by the values of its labels, joined by
// commas. Each scrape calls values.
func (m *SelfMetrics) Export(name string, values func() map[string]float64) {
	f := selfFamily(name)
	kind := prometheus.GaugeValue
	if f.Type == dto.MetricType_COUNTER {
		kind = prometheus.CounterValue
	}
	desc := prometheus.NewDesc(name, f.Help, f.Labels, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for labels, value := range values() {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, strings.SplitN(labels, ",", len(f.Labels))...)
		}
	}))
}
