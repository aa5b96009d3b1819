// Package collector runs the OpenTelemetry Collector with podgauge. The separate module keeps the Collector out of podgauge's go.sum.
package collector

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/metricstransformprocessor"
	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// seen has the sets of attributes by metric.
type seen struct {
	mu   sync.Mutex
	sets map[string]map[string]bool // guarded by mu
}

func (s *seen) has(metric, set string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sets[metric][set]
}

// consume is the exporter of the page's pipeline.
func (s *seen) consume(_ context.Context, batch pmetric.Metrics) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range batch.ResourceMetrics().All() {
		for _, scope := range r.ScopeMetrics().All() {
			for _, m := range scope.Metrics().All() {
				points := pmetric.NewNumberDataPointSlice()
				switch m.Type() { //nolint:exhaustive // podgauge's families in the page
				case pmetric.MetricTypeGauge:
					points = m.Gauge().DataPoints()
				case pmetric.MetricTypeSum:
					points = m.Sum().DataPoints()
				}
				for _, p := range points.All() {
					s.add(m.Name()+" "+m.Type().String(), p.Attributes())
				}
			}
		}
	}
	return nil
}

func (s *seen) add(metric string, attributes pcommon.Map) {
	if s.sets[metric] == nil {
		s.sets[metric] = map[string]bool{}
	}
	all := map[string]string{}
	for key, value := range attributes.All() {
		all[key] = value.AsString()
	}
	var set []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		set = append(set, key+"="+all[key])
	}
	s.sets[metric][strings.Join(set, " ")] = true
}

// factories returns the components of the page's configuration; metrics end in s.
func (s *seen) factories() (f otelcol.Factories, err error) {
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](prometheusreceiver.NewFactory()); err != nil {
		return f, err
	}
	if f.Processors, err = otelcol.MakeFactoryMap[processor.Factory](metricstransformprocessor.NewFactory()); err != nil {
		return f, err
	}
	f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](exporter.NewFactory(component.MustNewType("otlp_http"),
		func() component.Config { return &struct{ Endpoint string }{} },
		exporter.WithMetrics(func(context.Context, exporter.Settings, component.Config) (exporter.Metrics, error) {
			next, err := consumer.NewMetrics(s.consume)
			return struct {
				component.StartFunc
				component.ShutdownFunc
				consumer.Metrics
			}{Metrics: next}, err
		}, component.StabilityLevelDevelopment)))
	f.Telemetry = telemetry.NewFactory(func() component.Config { return struct{}{} })
	return f, err
}

// writeConfig writes the configuration of docs/how-to/integrate.md, with an address in place of the discovery of pods.
func writeConfig(t *testing.T, address string) string {
	t.Helper()
	block := regexp.MustCompile("(?ms)^```yaml\n(receivers:.*?)^```$").FindStringSubmatch(testfile.Read(t, "../../../docs/how-to/integrate.md"))
	var config struct {
		Receivers struct {
			Prometheus struct {
				Config struct {
					Jobs []map[string]any `yaml:"scrape_configs"`
				}
			}
		}
		Others map[string]any `yaml:",inline"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(block[1]), &config))
	job := config.Receivers.Prometheus.Config.Jobs[0]
	delete(job, "kubernetes_sd_configs")
	delete(job, "relabel_configs")
	job["scrape_interval"] = "1s"
	job["static_configs"] = []any{map[string]any{"targets": []string{address}}}
	text, err := yaml.Marshal(config)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// TestCollector checks the metrics that the Collector exports with the configuration of docs/how-to/integrate.md.
func TestCollector(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("machine h100\n0s partition 7 3g.40gb\n1s pod team/train main=7\n2s xid 0 79\n"), 0o600))
	node := program.StartFile(t, "../../../bin/podgauge-sim", nil, "--simulate=script:"+script)
	address := strings.TrimSuffix(strings.TrimPrefix(node.URL, "http://"), "/metrics")
	exported := &seen{sets: map[string]map[string]bool{}}
	collector, err := otelcol.NewCollector(otelcol.CollectorSettings{
		Factories:               exported.factories,
		DisableGracefulShutdown: true,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{writeConfig(t, address)}, DefaultScheme: "env",
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory(), envprovider.NewFactory()},
		}},
	})
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- collector.Run(t.Context()) }()
	t.Cleanup(func() {
		collector.Shutdown()
		require.NoError(t, <-ended)
	})

	const (
		failed = "hw.id=GPU-0000a100-5eed-4000-8000-000000000000"
		gpu    = "hw.id=GPU-0000a101-5eed-4000-8000-000000000001"
		gauge  = " Gauge"
		sum    = " Sum"
		owners = "k8s.container.name=main k8s.namespace.name=team k8s.pod.name=train"
	)
	for metric, set := range map[string]string{
		"hw.gpu.utilization" + gauge:  "hw.gpu.task=general " + gpu + " hw.type=gpu " + owners,
		"hw.gpu.memory.usage" + gauge: gpu + " hw.type=gpu " + owners,
		"hw.gpu.memory.limit" + gauge: gpu + " hw.type=gpu " + owners,
		"hw.gpu.io" + sum:             gpu + " hw.type=gpu " + owners + " network.io.direction=transmit",
		"hw.power" + gauge:            gpu + " hw.type=gpu " + owners,
		"hw.energy" + sum:             gpu + " hw.type=gpu " + owners,
		"hw.temperature" + gauge:      gpu + " hw.sensor_location=gpu hw.type=gpu " + owners,
		"hw.errors" + sum:             "error.type=xid_79 " + failed + " hw.type=gpu",
		"hw.status" + gauge:           failed + " hw.state=failed hw.type=gpu",
	} {
		program.WaitUntil(t, metric+" has "+set, func() bool { return exported.has(metric, set) })
	}
	exported.mu.Lock()
	defer exported.mu.Unlock()
	parents := 0
	for metric, sets := range exported.sets {
		if strings.HasPrefix(metric, "nvidia_gpu") {
			t.Errorf("%s is not mapped", metric)
		}
		for set := range sets {
			if strings.Contains(set, "hw.id=MIG-") && strings.Contains(set, "hw.parent=GPU-0000a107-5eed-4000-8000-000000000007") {
				parents++
			}
		}
	}
	if parents == 0 || !exported.sets["hw.errors"+sum]["error.type=ecc_uncorrected "+gpu+" hw.type=gpu"] {
		t.Errorf("no MIG device has a parent, or no error is of ECC: %v", exported.sets)
	}
}
