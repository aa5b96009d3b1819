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

// Own are this process's metrics about itself. Whoever wires the parts has their
// traces feed it, so that no part needs to know Prometheus.
type Own struct {
	registrations *prometheus.CounterVec
	streams       *prometheus.GaugeVec
	listed        *prometheus.GaugeVec
	pluginCalls   *prometheus.HistogramVec
	pluginErrors  *prometheus.CounterVec
	refusals      *prometheus.CounterVec
	kubeletCalls  *prometheus.HistogramVec
	kubeletErrors *prometheus.CounterVec
	registry      *prometheus.Registry
}

// NewOwn registers them, with those of the Go runtime and the process: where these are not
// chosen they are not even collected, which costs more than a scrape of eight GPUs.
func NewOwn(registry *prometheus.Registry, version string, simulated bool, choice Choice) *Own {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: callBuckets}, labels)
	}
	o := &Own{
		registry:      registry,
		registrations: counter("podgauge_registrations_total", "Registrations with the kubelet, by outcome.", "resource", "result"),
		streams:       gauge("podgauge_plugin_streams", "ListAndWatch streams of the kubelet; 1 if the resource is registered.", "resource"),
		listed:        gauge("podgauge_plugin_devices", "Devices in the list that the kubelet was last sent.", "resource", "health"),
		pluginCalls:   histogram("podgauge_plugin_request_duration_seconds", "How long it took to answer the kubelet.", "method"),
		pluginErrors:  counter("podgauge_plugin_request_errors_total", "Answers to the kubelet that were errors.", "method"),
		refusals:      counter("podgauge_plugin_refusals_total", "Containers that were not given the devices they asked for, by the first thing that was wrong.", "resource", "reason"),
		kubeletCalls:  histogram("podgauge_pod_resources_request_duration_seconds", "How long the kubelet took to answer.", "method"),
		kubeletErrors: counter("podgauge_pod_resources_request_errors_total", "Questions that the kubelet did not answer.", "method"),
	}
	build := gauge("podgauge_build_info", "What this process was built from; always 1.", "version", "goversion")
	build.WithLabelValues(version, goVersion()).Set(1)
	simulation := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "podgauge_simulated", Help: "Whether the devices, and what else --simulate says, are made up.",
	})
	simulation.Set(number(simulated))
	registry.MustRegister(o.registrations, o.streams, o.listed, o.pluginCalls, o.pluginErrors, o.refusals, o.kubeletCalls, o.kubeletErrors,
		build, simulation)
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if choice.takesOf(c) {
			registry.MustRegister(c)
		}
	}
	return o
}

func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "unknown"
}

// Offers makes the series of a resource before anything has happened to it: a
// counter that begins with its first event hides that event from increase().
func (o *Own) Offers(resource string) {
	o.registrations.WithLabelValues(resource, "success")
	o.registrations.WithLabelValues(resource, "error")
	o.streams.WithLabelValues(resource)
	for _, method := range []string{"Allocate", "GetPreferredAllocation"} {
		o.pluginCalls.WithLabelValues(method)
		o.pluginErrors.WithLabelValues(method)
	}
}

// Refuses makes the series of the reasons for which a container of a resource may
// be refused.
func (o *Own) Refuses(resource string, reasons ...string) {
	for _, why := range reasons {
		o.refusals.WithLabelValues(resource, why)
	}
}

// Refused counts a container that was not given what it asked for.
func (o *Own) Refused(resource, why string) { o.refusals.WithLabelValues(resource, why).Inc() }

// Registered counts a registration.
func (o *Own) Registered(resource string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	o.registrations.WithLabelValues(resource, result).Inc()
}

// Streaming notes how many streams are live.
func (o *Own) Streaming(resource string, streams int) {
	o.streams.WithLabelValues(resource).Set(float64(streams))
}

// Released removes the series of a resource that is no longer registered because there is
// nothing to register.
func (o *Own) Released(resource string) {
	o.streams.DeleteLabelValues(resource)
	o.listed.DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// Listed notes what the kubelet was told.
func (o *Own) Listed(resource string, devices, healthy int) {
	o.listed.WithLabelValues(resource, "healthy").Set(float64(healthy))
	o.listed.WithLabelValues(resource, "unhealthy").Set(float64(devices - healthy))
}

// Answered notes an answer to the kubelet.
func (o *Own) Answered(method string, took time.Duration, err error) {
	observe(o.pluginCalls, o.pluginErrors, method, took, err)
}

// Asked notes a question to the kubelet.
func (o *Own) Asked(method string, took time.Duration, err error) {
	observe(o.kubeletCalls, o.kubeletErrors, method, took, err)
}

func observe(calls *prometheus.HistogramVec, errors *prometheus.CounterVec, method string, took time.Duration, err error) {
	calls.WithLabelValues(method).Observe(took.Seconds())
	failed := errors.WithLabelValues(method)
	if err != nil {
		failed.Inc()
	}
}

// Heard exports whether the driver's events are heard.
func (o *Own) Heard(heard func() bool) {
	o.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_events_up",
		Help: "Whether the driver's events, Xid errors among them, are heard: 0 while waiting for them fails or does not return.",
	}, func() float64 { return number(heard()) }))
}

// UnknownConfigKeys exports how many keys of the configuration file have no effect.
func (o *Own) UnknownConfigKeys(count func() int) {
	o.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podgauge_config_unknown_keys",
		Help: "Keys of the configuration file that this version does not know and ignores; the log names each.",
	}, func() float64 { return float64(count()) }))
}

// CDISpecs exports by class whether the CDI spec is written.
func (o *Own) CDISpecs(written func() map[string]float64) {
	o.registry.MustRegister(byName{
		prometheus.NewDesc("podgauge_cdi_spec_up",
			"1 if the CDI spec of this class is written; 0 if that of the GPUs is missing and a device list strategy needs it.", []string{"class"}, nil),
		written,
	})
}

// Unsupported exports the families that the driver is too old for.
func (o *Own) Unsupported(families func() []string) {
	o.registry.MustRegister(byName{
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

// byName collects a gauge with one label from a func.
type byName struct {
	desc   *prometheus.Desc
	values func() map[string]float64
}

// Describe is prometheus.Collector's.
func (b byName) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }

// Collect is prometheus.Collector's.
func (b byName) Collect(ch chan<- prometheus.Metric) {
	for name, value := range b.values() {
		ch <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, value, name)
	}
}
