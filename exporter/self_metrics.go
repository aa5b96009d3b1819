package exporter

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// callBuckets fit calls on a unix socket: most take less than a millisecond; hanging calls end at a deadline of some seconds.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// selfFamily is one of podgauge's own families, by name.
type selfFamily string

const (
	registrations = selfFamily("podgauge_registrations_total")
	streams       = selfFamily("podgauge_plugin_streams")
	listedDevices = selfFamily("podgauge_plugin_devices")
	pluginCalls   = selfFamily("podgauge_plugin_request_duration_seconds")
	pluginErrors  = selfFamily("podgauge_plugin_request_errors_total")
	rejections    = selfFamily("podgauge_plugin_refusals_total")
	kubeletCalls  = selfFamily("podgauge_pod_resources_request_duration_seconds")
	kubeletErrors = selfFamily("podgauge_pod_resources_request_errors_total")
	buildInfo     = selfFamily("podgauge_build_info")
	isSimulated   = selfFamily("podgauge_simulated")

	// Values of the following are computed in each scrape.
	eventsUp            = selfFamily("podgauge_events_up")
	unknownConfigKeys   = selfFamily("podgauge_config_unknown_keys")
	cdiSpecUp           = selfFamily("podgauge_cdi_spec_up")
	unsupportedFamilies = selfFamily("podgauge_family_unsupported")
)

// selfDescs describes these families, one row each.
var selfDescs = []struct {
	family selfFamily
	kind   selfKind
	help   string
	labels []string
}{
	{registrations, selfCounter, "Registrations with the kubelet, by outcome.", []string{"resource", "result"}},
	{streams, selfGauge, "ListAndWatch streams of the kubelet; 1 if the resource is registered.", []string{"resource"}},
	{listedDevices, selfGauge, "Devices in the list that the kubelet was last sent.", []string{"resource", "health"}},
	{pluginCalls, selfHistogram, "How long it took to answer the kubelet.", []string{"method"}},
	{pluginErrors, selfCounter, "Answers to the kubelet that were errors.", []string{"method"}},
	{rejections, selfCounter, "Containers that were not given the devices they asked for, by the first thing that was wrong.", []string{"resource", "reason"}},
	{kubeletCalls, selfHistogram, "How long the kubelet took to answer.", []string{"method"}},
	{kubeletErrors, selfCounter, "Questions that the kubelet did not answer.", []string{"method"}},
	{buildInfo, selfGauge, "What this process was built from; always 1.", []string{"version", "goversion"}},
	{isSimulated, selfGauge, "Whether the devices, and what else --simulate says, are made up.", nil},
	{eventsUp, selfComputed, "Whether the driver's events, Xid errors among them, are heard: 0 while waiting for them fails or does not return.", nil},
	{unknownConfigKeys, selfComputed, "Keys of the configuration file that this version does not know and ignores; the log names each.", nil},
	{cdiSpecUp, selfComputed, "1 if the CDI spec of this class is written; 0 if that of the GPUs is missing and a device list strategy needs it.", []string{"class"}},
	{unsupportedFamilies, selfComputed, "A metric family that is absent because the driver's library lacks a function; always 1.", []string{"family"}},
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
	counters   map[selfFamily]*prometheus.CounterVec
	gauges     map[selfFamily]*prometheus.GaugeVec
	histograms map[selfFamily]*prometheus.HistogramVec
	computed   map[selfFamily]*prometheus.Desc
}

// NewSelfMetrics registers podgauge's own metrics, and those of the Go runtime and the process if selected: to collect the latter
// costs more than a scrape of eight GPUs.
func NewSelfMetrics(registry *prometheus.Registry, version string, simulated bool, filter FamilyFilter) *SelfMetrics {
	m := &SelfMetrics{
		registry: registry, counters: map[selfFamily]*prometheus.CounterVec{}, gauges: map[selfFamily]*prometheus.GaugeVec{},
		histograms: map[selfFamily]*prometheus.HistogramVec{}, computed: map[selfFamily]*prometheus.Desc{},
	}
	for _, d := range selfDescs {
		switch opts := (prometheus.Opts{Name: string(d.family), Help: d.help}); d.kind {
		case selfCounter:
			m.counters[d.family] = prometheus.NewCounterVec(prometheus.CounterOpts(opts), d.labels)
			registry.MustRegister(m.counters[d.family])
		case selfGauge:
			m.gauges[d.family] = prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), d.labels)
			registry.MustRegister(m.gauges[d.family])
		case selfHistogram:
			m.histograms[d.family] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: opts.Name, Help: opts.Help, Buckets: callBuckets}, d.labels)
			registry.MustRegister(m.histograms[d.family])
		case selfComputed:
			m.computed[d.family] = prometheus.NewDesc(opts.Name, opts.Help, d.labels, nil)
		}
	}
	m.gauges[buildInfo].WithLabelValues(version, goVersion()).Set(1)
	m.gauges[isSimulated].WithLabelValues().Set(boolValue(simulated))
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
	m.counters[registrations].WithLabelValues(resource, "success")
	m.counters[registrations].WithLabelValues(resource, "error")
	m.gauges[streams].WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		m.histograms[pluginCalls].WithLabelValues(method)
		m.counters[pluginErrors].WithLabelValues(method)
	}
}

// InitRejections makes the series of the reasons to reject a container, likewise.
func (m *SelfMetrics) InitRejections(resource string, reasons ...string) {
	for _, reason := range reasons {
		m.counters[rejections].WithLabelValues(resource, reason)
	}
}

// DeleteResource removes the series of a resource that is no longer served.
func (m *SelfMetrics) DeleteResource(resource string) {
	m.gauges[streams].DeleteLabelValues(resource)
	m.gauges[listedDevices].DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// CountRejection counts a container whose request was rejected.
func (m *SelfMetrics) CountRejection(resource, reason string) {
	m.counters[rejections].WithLabelValues(resource, reason).Inc()
}

// CountRegistration counts a registration.
func (m *SelfMetrics) CountRegistration(resource string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.counters[registrations].WithLabelValues(resource, result).Inc()
}

// SetStreams sets the number of live streams.
func (m *SelfMetrics) SetStreams(resource string, n int) {
	m.gauges[streams].WithLabelValues(resource).Set(float64(n))
}

// SetDevices sets the number of devices in the latest device list.
func (m *SelfMetrics) SetDevices(resource string, devices, healthy int) {
	m.gauges[listedDevices].WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.gauges[listedDevices].WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
}

// ObservePluginCall records a request of the kubelet.
func (m *SelfMetrics) ObservePluginCall(method string, elapsed time.Duration, err error) {
	m.observe(pluginCalls, pluginErrors, method, elapsed, err)
}

// ObserveKubeletCall records a request to the kubelet.
func (m *SelfMetrics) ObserveKubeletCall(method string, elapsed time.Duration, err error) {
	m.observe(kubeletCalls, kubeletErrors, method, elapsed, err)
}

func (m *SelfMetrics) observe(calls, errors selfFamily, method string, elapsed time.Duration, err error) {
	m.histograms[calls].WithLabelValues(method).Observe(elapsed.Seconds())
	errorCount := m.counters[errors].WithLabelValues(method)
	if err != nil {
		errorCount.Inc()
	}
}

// ExportEventsUp exports whether events of the driver arrive.
func (m *SelfMetrics) ExportEventsUp(isUp func() bool) {
	m.export(eventsUp, func() map[string]float64 { return map[string]float64{"": boolValue(isUp())} })
}

// ExportUnknownConfigKeys exports the number of unknown keys in the configuration file.
func (m *SelfMetrics) ExportUnknownConfigKeys(count func() int) {
	m.export(unknownConfigKeys, func() map[string]float64 { return map[string]float64{"": float64(count())} })
}

// ExportCDISpecs exports by class whether the CDI spec is written.
func (m *SelfMetrics) ExportCDISpecs(written func() map[string]float64) { m.export(cdiSpecUp, written) }

// ExportUnsupportedFamilies exports the families that the driver does not support.
func (m *SelfMetrics) ExportUnsupportedFamilies(families func() []string) {
	m.export(unsupportedFamilies, func() map[string]float64 {
		values := map[string]float64{}
		for _, family := range families() {
			values[family] = 1
		}
		return values
	})
}

func (m *SelfMetrics) export(f selfFamily, values func() map[string]float64) {
	m.registry.MustRegister(computedGauge{m.computed[f], values})
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
