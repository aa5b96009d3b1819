package exporter

import (
	"runtime"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
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
	streams, devices, waiting *prometheus.GaugeVec
	pluginCalls, kubeletCalls callMetrics
}

// NewSelfMetrics registers podgauge's own metrics.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool) *SelfMetrics {
	m := &SelfMetrics{registry: registry}
	m.registrations = m.counter("podgauge_registrations_total")
	m.rejections = m.counter("podgauge_plugin_rejections_total")
	m.streams = m.gauge("podgauge_plugin_streams")
	m.waiting = m.gauge("podgauge_plugin_waiting")
	m.devices = m.gauge("podgauge_plugin_devices")
	m.pluginCalls = m.calls("podgauge_plugin_request")
	m.kubeletCalls = m.calls("podgauge_pod_resources_request")
	m.gauge("podgauge_build_info").WithLabelValues(version, runtime.Version()).Set(1)
	m.gauge("podgauge_simulated").WithLabelValues().Set(boolValue(simulated))
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

func (m *SelfMetrics) gauge(name string) *prometheus.GaugeVec {
	f := selfFamily(name)
	return promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: f.Help}, f.Labels)
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
	m.streams.WithLabelValues(resource)
	m.waiting.WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.pluginCalls.duration.WithLabelValues(method)
		m.pluginCalls.errors.WithLabelValues(method)
	}
	for _, reason := range plugin.RejectReasons() {
		m.rejections.WithLabelValues(resource, string(reason))
	}
}

// OnResourceReleased removes the series of a resource without a server.
func (m *SelfMetrics) OnResourceReleased(resource string) {
	m.streams.DeleteLabelValues(resource)
	m.waiting.DeleteLabelValues(resource)
	m.devices.DeletePartialMatch(prometheus.Labels{"resource": resource})
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

// OnStreamCount sets the number of live streams.
func (m *SelfMetrics) OnStreamCount(resource string, n int) {
	m.streams.WithLabelValues(resource).Set(float64(n))
}

// OnOtherPlugin sets whether the first registration waits for another plugin.
func (m *SelfMetrics) OnOtherPlugin(resource string, waiting bool) {
	m.waiting.WithLabelValues(resource).Set(boolValue(waiting))
}

// OnListSent sets the number of devices in the latest device list.
func (m *SelfMetrics) OnListSent(resource string, devices, healthy int) {
	m.devices.WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.devices.WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
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

// ExportEventsUp exports whether events of the driver arrive.
func (m *SelfMetrics) ExportEventsUp(isUp func() bool) {
	m.exportOne("podgauge_events_up", func() float64 { return boolValue(isUp()) })
}

// ExportReadiness exports the readiness by check.
func (m *SelfMetrics) ExportReadiness(values func() map[string]float64) {
	m.export("podgauge_ready", values)
}

// ExportUnknownConfigKeys exports the number of unknown keys in the configuration file.
func (m *SelfMetrics) ExportUnknownConfigKeys(count func() int) {
	m.exportOne("podgauge_config_unknown_keys", func() float64 { return float64(count()) })
}

// ExportCDISpecs exports by class whether the CDI spec is written.
func (m *SelfMetrics) ExportCDISpecs(written func() map[string]float64) {
	m.export("podgauge_cdi_spec_up", written)
}

// ExportUnsupportedFamilies exports the families without support in the driver.
func (m *SelfMetrics) ExportUnsupportedFamilies(families func() []string) {
	m.export("podgauge_family_unsupported", func() map[string]float64 {
		unsupported := map[string]float64{}
		for _, family := range families() {
			unsupported[family] = 1
		}
		return unsupported
	})
}

// ExportKubernetesRequests exports the number of requests to the API server, by HTTP status code.
func (m *SelfMetrics) ExportKubernetesRequests(requests func() map[string]float64) {
	m.export("podgauge_kubernetes_requests_total", requests)
}

// ExportDroppedEvents exports the number of Kubernetes events without a report.
func (m *SelfMetrics) ExportDroppedEvents(dropped func() uint64) {
	m.exportOne("podgauge_kubernetes_events_dropped_total", func() float64 { return float64(dropped()) })
}

// exportOne exports a metric without labels. Each scrape calls value.
func (m *SelfMetrics) exportOne(name string, value func() float64) {
	m.export(name, func() map[string]float64 { return map[string]float64{"": value()} })
}

// export exports a metric by the value of its label, if it has one. Each scrape
// calls values.
func (m *SelfMetrics) export(name string, values func() map[string]float64) {
	f := selfFamily(name)
	kind := prometheus.GaugeValue
	if f.Type == dto.MetricType_COUNTER {
		kind = prometheus.CounterValue
	}
	desc := prometheus.NewDesc(name, f.Help, f.Labels, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for label, value := range values() {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, []string{label}[:len(f.Labels)]...)
		}
	}))
}
