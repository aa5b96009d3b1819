package exporter

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// callBuckets fit calls on a unix socket: most take less than a millisecond; hanging calls end at a deadline of some seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// SelfMetrics are podgauge's metrics about itself. Callers of the other packages feed it from their hooks, so that only this package
// knows Prometheus.
type SelfMetrics struct {
	registry                  *prometheus.Registry
	registrations, rejections *prometheus.CounterVec
	streams, devices, waiting *prometheus.GaugeVec
	pluginCalls, kubeletCalls callMetrics
}

// NewSelfMetrics registers podgauge's own metrics.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool) *SelfMetrics {
	auto := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return auto.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	calls := func(prefix, durationHelp, errorsHelp string) callMetrics {
		opts := prometheus.HistogramOpts{Name: prefix + "_duration_seconds", Help: durationHelp, Buckets: callBuckets}
		return callMetrics{auto.NewHistogramVec(opts, []string{"method"}), counter(prefix+"_errors_total", errorsHelp, "method")}
	}
	gauge("podgauge_build_info", "Version of podgauge and of Go; always 1.", "version", "goversion").
		WithLabelValues(version, runtime.Version()).Set(1)
	gauge("podgauge_simulated", "1 if devices are simulated.").WithLabelValues().Set(boolValue(simulated))
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &SelfMetrics{
		registry:      registry,
		registrations: counter("podgauge_registrations_total", "Registrations with the kubelet, by result.", "resource", "result"),
		rejections: counter("podgauge_plugin_rejections_total", "Containers whose device request was rejected, by the first reason found.",
			"resource", "reason"),
		streams: gauge("podgauge_plugin_streams", "Number of open ListAndWatch streams of the kubelet; 1 if the resource is registered.",
			"resource"),
		waiting: gauge("podgauge_plugin_waiting",
			"1 while another device plugin serves the resource, and podgauge waits with its first registration.", "resource"),
		devices: gauge("podgauge_plugin_devices", "Number of devices in the latest device list sent to the kubelet.", "resource", "health"),
		pluginCalls: calls("podgauge_plugin_request",
			"Duration of requests from the kubelet, in seconds.", "Requests from the kubelet answered with an error."),
		kubeletCalls: calls("podgauge_pod_resources_request",
			"Duration of requests to the kubelet, in seconds.", "Requests to the kubelet that failed."),
	}
}

// InitResource makes the series of a resource, and of the reasons to reject a container, before the first event: increase() misses
// the first event of a new counter.
func (m *SelfMetrics) InitResource(resource string, rejectReasons ...string) {
	m.registrations.WithLabelValues(resource, "success")
	m.registrations.WithLabelValues(resource, "error")
	m.streams.WithLabelValues(resource)
	m.waiting.WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.pluginCalls.duration.WithLabelValues(method)
		m.pluginCalls.errors.WithLabelValues(method)
	}
	for _, reason := range rejectReasons {
		m.rejections.WithLabelValues(resource, reason)
	}
}

// DeleteResource removes the series of a resource that is no longer served.
func (m *SelfMetrics) DeleteResource(resource string) {
	m.streams.DeleteLabelValues(resource)
	m.waiting.DeleteLabelValues(resource)
	m.devices.DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// CountRejection counts a container whose request was rejected.
func (m *SelfMetrics) CountRejection(resource, reason string) {
	m.rejections.WithLabelValues(resource, reason).Inc()
}

// CountRegistration counts a registration.
func (m *SelfMetrics) CountRegistration(resource string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.registrations.WithLabelValues(resource, result).Inc()
}

// SetStreams sets the number of live streams.
func (m *SelfMetrics) SetStreams(resource string, n int) {
	m.streams.WithLabelValues(resource).Set(float64(n))
}

// SetWaiting sets whether the first registration waits for another plugin.
func (m *SelfMetrics) SetWaiting(resource string, waiting bool) {
	m.waiting.WithLabelValues(resource).Set(boolValue(waiting))
}

// SetDevices sets the number of devices in the latest device list.
func (m *SelfMetrics) SetDevices(resource string, devices, healthy int) {
	m.devices.WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.devices.WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
}

// ObservePluginCall records a request of the kubelet.
func (m *SelfMetrics) ObservePluginCall(method string, elapsed time.Duration, err error) {
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
	const help = "1 if driver events, including Xid errors, are received; 0 while waiting for events fails or hangs."
	opts := prometheus.GaugeOpts{Name: "podgauge_events_up", Help: help}
	promauto.With(m.registry).NewGaugeFunc(opts, func() float64 { return boolValue(isUp()) })
}

// ExportReadiness exports the readiness by check.
func (m *SelfMetrics) ExportReadiness(values func() map[string]float64) {
	const help = "1 if the check of /readyz passes; 0 if it makes podgauge not ready."
	m.export("podgauge_ready", help, "check", prometheus.GaugeValue, values)
}

// ExportUnknownConfigKeys exports the number of unknown keys in the configuration file.
func (m *SelfMetrics) ExportUnknownConfigKeys(count func() int) {
	const help = "Number of ignored unknown keys in the configuration file; the log names each."
	opts := prometheus.GaugeOpts{Name: "podgauge_config_unknown_keys", Help: help}
	promauto.With(m.registry).NewGaugeFunc(opts, func() float64 { return float64(count()) })
}

// ExportCDISpecs exports by class whether the CDI spec is written.
func (m *SelfMetrics) ExportCDISpecs(written func() map[string]float64) {
	const help = "1 if the CDI spec of this class is written; 0 if a device list strategy needs it and it is missing."
	m.export("podgauge_cdi_spec_up", help, "class", prometheus.GaugeValue, written)
}

// ExportUnsupportedFamilies exports the families without support in the driver.
func (m *SelfMetrics) ExportUnsupportedFamilies(families func() []string) {
	const help = "Metric family that is absent because the driver's library lacks a function; always 1."
	m.export("podgauge_family_unsupported", help, "family", prometheus.GaugeValue, func() map[string]float64 {
		unsupported := map[string]float64{}
		for _, family := range families() {
			unsupported[family] = 1
		}
		return unsupported
	})
}

// ExportKubernetesRequests exports the number of requests to the API server, by HTTP status code.
func (m *SelfMetrics) ExportKubernetesRequests(requests func() map[string]float64) {
	const help = "Requests to the Kubernetes API server, by HTTP status code; error without a response."
	m.export("podgauge_kubernetes_requests_total", help, "code", prometheus.CounterValue, requests)
}

// ExportDroppedEvents exports the number of Kubernetes events that were not reported.
func (m *SelfMetrics) ExportDroppedEvents(dropped func() uint64) {
	const help = "Kubernetes events dropped after ten minutes of rate limiting or failed requests."
	opts := prometheus.CounterOpts{Name: "podgauge_kubernetes_events_dropped_total", Help: help}
	promauto.With(m.registry).NewCounterFunc(opts, func() float64 { return float64(dropped()) })
}

// export exports a metric by the value of its label. Each scrape calls values.
func (m *SelfMetrics) export(name, help, label string, kind prometheus.ValueType, values func() map[string]float64) {
	desc := prometheus.NewDesc(name, help, []string{label}, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for labelValue, value := range values() {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, labelValue)
		}
	}))
}
