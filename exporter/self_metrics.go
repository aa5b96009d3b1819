package exporter

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// callBuckets fit calls on a unix socket: most take less than a millisecond, and
// those that hang end at a deadline of some seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// SelfMetrics are this process's metrics about itself. Whoever wires the parts has their
// traces feed it, so that no part needs to know Prometheus.
type SelfMetrics struct {
	registrations *prometheus.CounterVec
	streams       *prometheus.GaugeVec
	devices       *prometheus.GaugeVec
	pluginCalls   *prometheus.HistogramVec
	pluginErrors  *prometheus.CounterVec
	rejections    *prometheus.CounterVec
	kubeletCalls  *prometheus.HistogramVec
	kubeletErrors *prometheus.CounterVec
	registry      *prometheus.Registry
}

// NewSelfMetrics registers them, with those of the Go runtime and the process: where these are not
// chosen they are not even collected, which costs more than a scrape of eight GPUs.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool, filter FamilyFilter) *SelfMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: callBuckets}, labels)
	}
	m := &SelfMetrics{
		registry:      registry,
		registrations: counter("podgauge_registrations_total", "Registrations with the kubelet, by outcome.", "resource", "result"),
		streams:       gauge("podgauge_plugin_streams", "ListAndWatch streams of the kubelet; 1 if the resource is registered.", "resource"),
		devices:       gauge("podgauge_plugin_devices", "Devices in the list that the kubelet was last sent.", "resource", "health"),
		pluginCalls:   histogram("podgauge_plugin_request_duration_seconds", "How long it took to answer the kubelet.", "method"),
		pluginErrors:  counter("podgauge_plugin_request_errors_total", "Answers to the kubelet that were errors.", "method"),
		rejections:    counter("podgauge_plugin_refusals_total", "Containers that were not given the devices they asked for, by the first thing that was wrong.", "resource", "reason"),
		kubeletCalls:  histogram("podgauge_pod_resources_request_duration_seconds", "How long the kubelet took to answer.", "method"),
		kubeletErrors: counter("podgauge_pod_resources_request_errors_total", "Questions that the kubelet did not answer.", "method"),
	}
	build := gauge("podgauge_build_info", "What this process was built from; always 1.", "version", "goversion")
	build.WithLabelValues(version, goVersion()).Set(1)
	simulation := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "podgauge_simulated", Help: "Whether the devices, and what else --simulate says, are made up.",
	})
	simulation.Set(boolValue(simulated))
	registry.MustRegister(m.registrations, m.streams, m.devices, m.pluginCalls, m.pluginErrors, m.rejections, m.kubeletCalls, m.kubeletErrors,
		build, simulation)
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

// InitResource makes the series of a resource before anything has happened to it: a
// counter that begins with its first event hides that event from increase().
func (m *SelfMetrics) InitResource(resource string) {
	m.registrations.WithLabelValues(resource, "success")
	m.registrations.WithLabelValues(resource, "error")
	m.streams.WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.pluginCalls.WithLabelValues(method)
		m.pluginErrors.WithLabelValues(method)
	}
}

// InitRejections makes the series of the reasons for which a container of a resource may
// be refused.
func (m *SelfMetrics) InitRejections(resource string, reasons ...string) {
	for _, reason := range reasons {
		m.rejections.WithLabelValues(resource, reason)
	}
}

// CountRejection counts a container that was not given what it asked for.
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

// SetStreams notes how many streams are live.
func (m *SelfMetrics) SetStreams(resource string, streams int) {
	m.streams.WithLabelValues(resource).Set(float64(streams))
}

// DeleteResource removes the series of a resource that is no longer registered because there is
// nothing to register.
func (m *SelfMetrics) DeleteResource(resource string) {
	m.streams.DeleteLabelValues(resource)
	m.devices.DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// SetDevices notes what the kubelet was told.
func (m *SelfMetrics) SetDevices(resource string, devices, healthy int) {
	m.devices.WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.devices.WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
}

// ObservePluginCall notes an answer to the kubelet.
func (m *SelfMetrics) ObservePluginCall(method string, elapsed time.Duration, err error) {
	observe(m.pluginCalls, m.pluginErrors, method, elapsed, err)
}

// ObserveKubeletCall notes a question to the kubelet.
func (m *SelfMetrics) ObserveKubeletCall(method string, elapsed time.Duration, err error) {
	observe(m.kubeletCalls, m.kubeletErrors, method, elapsed, err)
}

func observe(calls *prometheus.HistogramVec, errors *prometheus.CounterVec, method string, elapsed time.Duration, err error) {
	calls.WithLabelValues(method).Observe(elapsed.Seconds())
	errorCount := errors.WithLabelValues(method)
	if err != nil {
		errorCount.Inc()
	}
}

// ExportEventsUp exports whether the driver's events are heard.
func (m *SelfMetrics) ExportEventsUp(isUp func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_events_up",
		Help: "Whether the driver's events, Xid errors among them, are heard: 0 while waiting for them fails or does not return.",
	}, func() float64 { return boolValue(isUp()) }))
}

// ExportUnknownConfigKeys exports how many keys of the configuration file have no effect.
func (m *SelfMetrics) ExportUnknownConfigKeys(count func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_config_unknown_keys",
		Help: "Keys of the configuration file that this version does not know and ignores; the log names each.",
	}, func() float64 { return float64(count()) }))
}

// ExportCDISpecs exports by class whether the CDI spec is written.
func (m *SelfMetrics) ExportCDISpecs(written func() map[string]float64) {
	m.registry.MustRegister(labeledGaugeFunc{
		prometheus.NewDesc("podgauge_cdi_spec_up",
			"1 if the CDI spec of this class is written; 0 if that of the GPUs is missing and a device list strategy needs it.", []string{"class"}, nil),
		written,
	})
}

// ExportUnsupportedFamilies exports the families that the driver is too old for.
func (m *SelfMetrics) ExportUnsupportedFamilies(families func() []string) {
	m.registry.MustRegister(labeledGaugeFunc{
		prometheus.NewDesc("podgauge_family_unsupported",
			"A metric family that is absent because the driver's library lacks a function; always 1.", []string{"family"}, nil),
		func() map[string]float64 {
			values := map[string]float64{}
			for _, family := range families() {
				values[family] = 1
			}
			return values
		},
	})
}

// labeledGaugeFunc collects a gauge with one label from a func.
type labeledGaugeFunc struct {
	desc   *prometheus.Desc
	values func() map[string]float64
}

// Describe is prometheus.Collector's.
func (g labeledGaugeFunc) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect is prometheus.Collector's.
func (g labeledGaugeFunc) Collect(ch chan<- prometheus.Metric) {
	for name, value := range g.values() {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, name)
	}
}
