package exporter

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// callBuckets fit calls on a unix socket: most take less than a millisecond; hanging calls end at a deadline of some seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// selfDescs describes podgauge's own families, one row each.
var selfDescs = []struct {
	name   string
	kind   selfKind
	help   string
	labels []string
}{
	{"podgauge_registrations_total", selfCounter, "Registrations with the kubelet, by result.", []string{"resource", "result"}},
	{"podgauge_plugin_streams", selfGauge, "Number of open ListAndWatch streams of the kubelet; 1 if the resource is registered.", []string{"resource"}},
	{"podgauge_plugin_devices", selfGauge, "Number of devices in the latest device list sent to the kubelet.", []string{"resource", "health"}},
	{"podgauge_plugin_request_duration_seconds", selfHistogram, "Duration of requests from the kubelet, in seconds.", []string{"method"}},
	{"podgauge_plugin_request_errors_total", selfCounter, "Requests from the kubelet answered with an error.", []string{"method"}},
	{"podgauge_plugin_refusals_total", selfCounter, "Containers whose device request was rejected, by the first reason found.", []string{"resource", "reason"}},
	{"podgauge_pod_resources_request_duration_seconds", selfHistogram, "Duration of requests to the kubelet, in seconds.", []string{"method"}},
	{"podgauge_pod_resources_request_errors_total", selfCounter, "Requests to the kubelet that failed.", []string{"method"}},
	{"podgauge_build_info", selfGauge, "Version of podgauge and of Go; always 1.", []string{"version", "goversion"}},
	{"podgauge_simulated", selfGauge, "1 if devices are simulated.", nil},
	{"podgauge_events_up", selfComputed, "1 if driver events, including Xid errors, are received; 0 while waiting for events fails or hangs.", nil},
	{"podgauge_config_unknown_keys", selfComputed, "Number of ignored unknown keys in the configuration file; the log names each.", nil},
	{"podgauge_cdi_spec_up", selfComputed, "1 if the CDI spec of this class is written; 0 if the GPUs' spec is missing and a device list strategy needs it.", []string{"class"}},
	{"podgauge_family_unsupported", selfComputed, "Metric family that is absent because the driver's library lacks a function; always 1.", []string{"family"}},
}

type selfKind int

const (
	selfCounter selfKind = iota
	selfGauge
	selfHistogram
	selfComputed // a gauge
)

// SelfMetrics are podgauge's metrics about itself. Callers of the other packages feed it from their hooks, so that only this package
// knows Prometheus.
type SelfMetrics struct {
	registry   *prometheus.Registry
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
	computed   map[string]*prometheus.Desc
}

// NewSelfMetrics registers podgauge's own metrics, and those of the Go runtime and the process if selected: to collect the latter
// costs more than a scrape of eight GPUs.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool, filter FamilyFilter) *SelfMetrics {
	m := &SelfMetrics{
		registry: registry, counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{},
		histograms: map[string]*prometheus.HistogramVec{}, computed: map[string]*prometheus.Desc{},
	}
	for _, d := range selfDescs {
		switch opts := (prometheus.Opts{Name: d.name, Help: d.help}); d.kind {
		case selfCounter:
			m.counters[d.name] = prometheus.NewCounterVec(prometheus.CounterOpts(opts), d.labels)
			registry.MustRegister(m.counters[d.name])
		case selfGauge:
			m.gauges[d.name] = prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), d.labels)
			registry.MustRegister(m.gauges[d.name])
		case selfHistogram:
			m.histograms[d.name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: opts.Name, Help: opts.Help, Buckets: callBuckets}, d.labels)
			registry.MustRegister(m.histograms[d.name])
		case selfComputed:
			m.computed[d.name] = prometheus.NewDesc(opts.Name, opts.Help, d.labels, nil)
		}
	}
	m.gauges["podgauge_build_info"].WithLabelValues(version, goVersion()).Set(1)
	m.gauges["podgauge_simulated"].WithLabelValues().Set(boolValue(simulated))
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if filter.matchesAny(c) {
			registry.MustRegister(c)
		}
	}
	return m
}

func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "unknown"
}

// InitResource makes the series of a resource before the first event: increase() misses the first event of a new counter.
func (m *SelfMetrics) InitResource(resource string) {
	m.counters["podgauge_registrations_total"].WithLabelValues(resource, "success")
	m.counters["podgauge_registrations_total"].WithLabelValues(resource, "error")
	m.gauges["podgauge_plugin_streams"].WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.histograms["podgauge_plugin_request_duration_seconds"].WithLabelValues(method)
		m.counters["podgauge_plugin_request_errors_total"].WithLabelValues(method)
	}
}

// InitRejections makes the series of the reasons to reject a container, likewise.
func (m *SelfMetrics) InitRejections(resource string, reasons ...string) {
	for _, reason := range reasons {
		m.counters["podgauge_plugin_refusals_total"].WithLabelValues(resource, reason)
	}
}

// DeleteResource removes the series of a resource that is no longer served.
func (m *SelfMetrics) DeleteResource(resource string) {
	m.gauges["podgauge_plugin_streams"].DeleteLabelValues(resource)
	m.gauges["podgauge_plugin_devices"].DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// CountRejection counts a container whose request was rejected.
func (m *SelfMetrics) CountRejection(resource, reason string) {
	m.counters["podgauge_plugin_refusals_total"].WithLabelValues(resource, reason).Inc()
}

// CountRegistration counts a registration.
func (m *SelfMetrics) CountRegistration(resource string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.counters["podgauge_registrations_total"].WithLabelValues(resource, result).Inc()
}

// SetStreams sets the number of live streams.
func (m *SelfMetrics) SetStreams(resource string, n int) {
	m.gauges["podgauge_plugin_streams"].WithLabelValues(resource).Set(float64(n))
}

// SetDevices sets the number of devices in the latest device list.
func (m *SelfMetrics) SetDevices(resource string, devices, healthy int) {
	m.gauges["podgauge_plugin_devices"].WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.gauges["podgauge_plugin_devices"].WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
}

// ObservePluginCall records a request of the kubelet.
func (m *SelfMetrics) ObservePluginCall(method string, elapsed time.Duration, err error) {
	m.observe("podgauge_plugin_request_duration_seconds", "podgauge_plugin_request_errors_total", method, elapsed, err)
}

// ObserveKubeletCall records a request to the kubelet.
func (m *SelfMetrics) ObserveKubeletCall(method string, elapsed time.Duration, err error) {
	m.observe("podgauge_pod_resources_request_duration_seconds", "podgauge_pod_resources_request_errors_total", method, elapsed, err)
}

func (m *SelfMetrics) observe(calls, errors string, method string, elapsed time.Duration, err error) {
	m.histograms[calls].WithLabelValues(method).Observe(elapsed.Seconds())
	errorCount := m.counters[errors].WithLabelValues(method)
	if err != nil {
		errorCount.Inc()
	}
}

// ExportEventsUp exports whether events of the driver arrive.
func (m *SelfMetrics) ExportEventsUp(isUp func() bool) {
	m.export("podgauge_events_up", func() map[string]float64 { return map[string]float64{"": boolValue(isUp())} })
}

// ExportUnknownConfigKeys exports the number of unknown keys in the configuration file.
func (m *SelfMetrics) ExportUnknownConfigKeys(count func() int) {
	m.export("podgauge_config_unknown_keys", func() map[string]float64 { return map[string]float64{"": float64(count())} })
}

// ExportCDISpecs exports by class whether the CDI spec is written.
func (m *SelfMetrics) ExportCDISpecs(written func() map[string]float64) {
	m.export("podgauge_cdi_spec_up", written)
}

// ExportUnsupportedFamilies exports the families that the driver does not support.
func (m *SelfMetrics) ExportUnsupportedFamilies(families func() []string) {
	m.export("podgauge_family_unsupported", func() map[string]float64 {
		values := map[string]float64{}
		for _, family := range families() {
			values[family] = 1
		}
		return values
	})
}

func (m *SelfMetrics) export(name string, values func() map[string]float64) {
	m.registry.MustRegister(computedGauge{m.computed[name], values})
}

// computedGauge collects a gauge by the value of its label; "" without a label.
type computedGauge struct {
	desc   *prometheus.Desc
	values func() map[string]float64
}

// Describe implements prometheus.Collector.
func (g computedGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g computedGauge) Collect(ch chan<- prometheus.Metric) {
	for label, value := range g.values() {
		var labels []string
		if label != "" {
			labels = []string{label}
		}
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, labels...)
	}
}
