package exporter

import (
	"bufio"
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestTextEqualsExpfmt compares the text with expfmt's, with special characters in labels, help and values.
func TestTextEqualsExpfmt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, v := range []float64{0, 1, -1, 0.1, 1e21, 1.5e-9, 12345678, 2 << 52, math.Inf(1), math.Inf(-1), math.NaN()} {
			d := newScrapeFixture(3)
			d.metrics = append([]device.Metric{}, testMetrics...)
			d.metrics[powerRow].Help = "A \"help\"\nwith \\ all of it."
			d.watts = v
			d.statuses[0].Model = "a \"quoted\"\\\nmodel\xff"
			d.statuses[1].Healthy, d.statuses[1].Reason = false, "xid_79"
			d.statuses[1].Xids = []device.Xid{{Code: 79, Count: 3, Last: time.Now()}}
			d.allocate("GPU-0=te\"am/po\nd/c\\", "GPU-1=n/p/c")
			e := New(d.sources(), Options{})
			e.waitForCollection(t.Context(), e.isReusable)
			st := &e.encoder.rendered.seriesStore
			for _, format := range []expfmt.Format{
				expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeOpenMetrics),
			} {
				var want bytes.Buffer
				encoder := expfmt.NewEncoder(&want, format)
				families, err := metricFamilies(st)
				if err != nil || len(families) == 0 {
					t.Fatal(len(families), err)
				}
				for _, family := range families {
					if err := encoder.Encode(family); err != nil {
						t.Fatal(err)
					}
				}
				if closer, ok := encoder.(expfmt.Closer); ok {
					if err := closer.Close(); err != nil {
						t.Fatal(err)
					}
				}
				var got bytes.Buffer
				if err := encode(bufio.NewWriter(&got), st, fixedGatherer(nil), format.FormatType()); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Errorf("%s, %f: %v\ngot\n%s\nwant\n%s", format, v, err, got.Bytes(), want.Bytes())
				}
			}
		}
	})
}

// metricFamilies parses the text into families, sorted by name.
func metricFamilies(st *seriesStore) ([]*dto.MetricFamily, error) {
	var text bytes.Buffer
	if err := encode(bufio.NewWriter(&text), st, fixedGatherer(nil), expfmt.TypeTextPlain); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(&text)
	families := slices.Collect(maps.Values(byName))
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// fixedGatherer is a Gatherer of constant families.
type fixedGatherer []*dto.MetricFamily

// Gather implements prometheus.Gatherer.
func (g fixedGatherer) Gather() ([]*dto.MetricFamily, error) { return g, nil }

// TestFamilyThatCannotBeEncodedIsMissing checks that one invalid family does not affect the others.
func TestFamilyThatCannotBeEncodedIsMissing(t *testing.T) {
	family := func(name string) *dto.MetricFamily {
		return &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: new(float64)}}}}
	}
	bad := family("bad")
	bad.Metric[0].Gauge = nil
	for _, format := range []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeOpenMetrics)} {
		var written bytes.Buffer
		err := encode(bufio.NewWriter(&written), nil, fixedGatherer([]*dto.MetricFamily{family("first"), bad, family("last")}), format.FormatType())
		text := written.Bytes()
		if err == nil || !bytes.Contains(text, []byte("\nfirst 0")) || !bytes.Contains(text, []byte("\nlast 0")) || bytes.Contains(text, []byte("bad")) {
			t.Errorf("%s: got error %v and\n%s", format, err, text)
		}
	}
}

// TestHeaders checks HELP and TYPE lines. In OpenMetrics, each counter ends in _total.
func TestHeaders(t *testing.T) {
	for d, want := range map[*Family][2]string{
		{Name: "a_total", Help: `use "a"`, Type: "counter"}: {"# HELP a_total use \"a\"\n# TYPE a_total counter\n", "# HELP a use \\\"a\\\"\n# TYPE a counter\n"},
		{Name: "B", Type: "counter"}:                        {"# HELP B \n# TYPE B counter\n", "# HELP B \n# TYPE B unknown\n"},
		{Name: "c_ratio", Type: "gauge"}:                    {"# HELP c_ratio \n# TYPE c_ratio gauge\n", "# HELP c_ratio \n# TYPE c_ratio gauge\n"},
	} {
		if text, open := string(d.header(false)), string(d.header(true)); text != want[0] || open != want[1] {
			t.Errorf("%s: got %q and %q, want %q", d.Name, text, open, want)
		}
	}
}
