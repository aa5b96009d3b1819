// Package collector runs the mapping of docs/how-to/integrate.md to OpenTelemetry: the relabeling of Prometheus, which the Collector's receiver
// uses, and the Collector's processor. The separate module keeps the Collector out of podgauge's go.sum.
package collector

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/metricstransformprocessor"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// collectorConfig has the used parts of the page's configuration.
type collectorConfig struct {
	Receivers struct {
		Prometheus struct {
			Config struct {
				Jobs []struct {
					Relabel []*relabel.Config `yaml:"metric_relabel_configs"`
				} `yaml:"scrape_configs"`
			}
		}
	}
	Processors struct{ Metricstransform map[string]any }
}

func readConfig(t *testing.T) (config collectorConfig) {
	t.Helper()
	block := regexp.MustCompile("(?ms)^```yaml\n(receivers:.*?)^```$").FindStringSubmatch(testfile.Read(t, "../../../docs/how-to/integrate.md"))
	// The Collector expands $$ to $.
	require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(block[1], "$$", "$")), &config))
	return config
}

// receive returns the samples of a scrape after relabeling, with the types of their families.
func receive(t *testing.T, scrape string, rules []*relabel.Config) pmetric.Metrics {
	t.Helper()
	for _, r := range rules {
		require.NoError(t, r.Validate(model.UTF8Validation))
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scrape))
	require.NoError(t, err)
	received := pmetric.NewMetrics()
	metrics := received.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics()
	for _, name := range slices.Sorted(maps.Keys(families)) {
		m := pmetric.NewMetric()
		m.SetName(name)
		points := m.SetEmptyGauge().DataPoints()
		if families[name].GetType() == dto.MetricType_COUNTER {
			points = m.SetEmptySum().DataPoints()
			m.Sum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for _, sample := range families[name].GetMetric() {
			b := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, name))
			for _, l := range sample.GetLabel() {
				b.Set(l.GetName(), l.GetValue())
			}
			if !relabel.ProcessBuilder(b, rules...) {
				continue
			}
			p := points.AppendEmpty()
			p.SetDoubleValue(sample.GetGauge().GetValue() + sample.GetCounter().GetValue())
			b.Del(model.MetricNameLabel)
			b.Range(func(l labels.Label) { p.Attributes().PutStr(l.Name, l.Value) })
		}
		if points.Len() > 0 {
			m.MoveTo(metrics.AppendEmpty())
		}
	}
	return received
}

// attributeSets returns the sets of attributes by metric and type.
func attributeSets(m pmetric.MetricSlice) map[string][]string {
	all := map[string][]string{}
	for _, metric := range m.All() {
		var points pmetric.NumberDataPointSlice
		if metric.Type() == pmetric.MetricTypeSum {
			points = metric.Sum().DataPoints()
		} else {
			points = metric.Gauge().DataPoints()
		}
		name := metric.Name() + " " + metric.Type().String()
		for _, p := range points.All() {
			var set []string
			for key, value := range p.Attributes().All() {
				set = append(set, key+"="+value.AsString())
			}
			if metric.Name() == "hw.status" {
				set = append(set, fmt.Sprintf("value=%v", p.DoubleValue()))
			}
			slices.Sort(set)
			all[name] = append(all[name], strings.Join(set, " "))
		}
	}
	return all
}

// TestMapping checks the metrics of a node with a failed GPU and a MIG device.
func TestMapping(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("machine h100\n0s partition 7 3g.40gb\n1s pod team/train main=7\n2s xid 0 79\n"), 0o600))
	node, scrape := program.StartFile(t, "../../../bin/podgauge-sim", nil, "--simulate=script:"+script), ""
	program.WaitUntil(t, "the GPU has failed", func() bool {
		scrape = node.Scrape(t)
		return strings.Contains(scrape, `xid="79"`)
	})
	config := readConfig(t)
	factory, sink := metricstransformprocessor.NewFactory(), new(consumertest.MetricsSink)
	settings := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(config.Processors.Metricstransform).Unmarshal(settings))
	transform, err := factory.CreateMetrics(t.Context(), processor.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, settings, sink)
	require.NoError(t, err)
	require.NoError(t, transform.ConsumeMetrics(t.Context(), receive(t, scrape, config.Receivers.Prometheus.Config.Jobs[0].Relabel)))
	got := attributeSets(sink.AllMetrics()[0].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics())

	const (
		failed = "hw.id=GPU-0000a100-5eed-4000-8000-000000000000"
		gpu    = "hw.id=GPU-0000a101-5eed-4000-8000-000000000001"
		owner  = " k8s.container.name=main k8s.namespace.name=team k8s.pod.name=train"
	)
	want := map[string]string{
		"hw.gpu.utilization Gauge":  "hw.gpu.task=general " + gpu + " hw.type=gpu" + owner,
		"hw.gpu.memory.usage Gauge": gpu + " hw.type=gpu" + owner,
		"hw.gpu.memory.limit Gauge": gpu + " hw.type=gpu" + owner,
		"hw.gpu.io Sum":             gpu + " hw.type=gpu" + owner + " network.io.direction=transmit",
		"hw.power Gauge":            gpu + " hw.type=gpu" + owner,
		"hw.energy Sum":             gpu + " hw.type=gpu" + owner,
		"hw.temperature Gauge":      gpu + " hw.sensor_location=gpu hw.type=gpu" + owner,
		"hw.errors Sum":             "error.type=xid_79 " + failed + " hw.type=gpu",
		"hw.status Gauge":           failed + " hw.state=failed hw.type=gpu value=1",
	}
	for _, status := range []string{
		failed + " hw.state=ok hw.type=gpu value=0", failed + " hw.state=degraded hw.type=gpu value=0",
		gpu + " hw.state=ok hw.type=gpu value=1", gpu + " hw.state=failed hw.type=gpu value=0",
	} {
		if sets := got["hw.status Gauge"]; !slices.Contains(sets, status) {
			t.Errorf("hw.status has no %q, but %q", status, sets)
		}
	}
	for metric, sets := range got {
		if !slices.Contains(sets, want[metric]) {
			t.Errorf("%s has no %q, but %q", metric, want[metric], sets)
		}
		delete(want, metric)
	}
	for metric := range want {
		t.Errorf("no metric %s", metric)
	}
	isMIG := func(set string) bool {
		return strings.Contains(set, "hw.id=MIG-") && strings.Contains(set, "hw.parent=GPU-0000a107-5eed-4000-8000-000000000007")
	}
	if !slices.ContainsFunc(got["hw.gpu.memory.usage Gauge"], isMIG) {
		t.Errorf("no MIG device has a parent: %q", got["hw.gpu.memory.usage Gauge"])
	}
}
