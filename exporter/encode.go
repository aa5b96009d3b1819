package exporter

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/device"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A series' name and labels are written out once, when it is made. From then on a
// scrape costs the copying of that line and the formatting of one number; expfmt,
// which validates and escapes each label each time, took a third of a scrape. A
// test holds the two to the same bytes.

// appendText appends the page in the text format, or in OpenMetrics without its
// end: other families may follow.
func (p *page) appendText(b []byte, openMetrics bool) []byte {
	for _, f := range p.families {
		if len(f.series) == 0 {
			continue
		}
		if openMetrics {
			b = append(b, f.openMetricsHead...)
		} else {
			b = append(b, f.textHead...)
		}
		for _, s := range f.series {
			b = append(b, s.line...)
			b = appendNumber(b, s.value, openMetrics)
			b = append(b, '\n')
		}
	}
	return b
}

// gather reads the page's own text: for a format that is not text, which few ask for.
func (p *page) gather() ([]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(bytes.NewReader(p.appendText(nil, false)))
	families := slices.Collect(maps.Values(byName))
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// appendNumber writes a value as the formats have it: OpenMetrics wants a number
// without an exponent to have a point.
func appendNumber(b []byte, v float64, openMetrics bool) []byte {
	switch {
	case math.IsInf(v, +1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	case math.IsNaN(v):
		return append(b, "NaN"...)
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	if openMetrics && !bytes.ContainsAny(b[from:], "e.") {
		b = append(b, ".0"...)
	}
	return b
}

// head writes what precedes a family's series. OpenMetrics names a counter
// without its _total, knows none that has none, as dcgm-exporter's have, and escapes
// quotes in the help as well.
func (d description) head(openMetrics bool) []byte {
	name, kind, escape := d.name, "gauge", helpEscapes
	if openMetrics {
		escape = labelEscapes
	}
	if d.counter {
		kind = "counter"
		if openMetrics && strings.HasSuffix(name, "_total") {
			name = strings.TrimSuffix(name, "_total")
		} else if openMetrics {
			kind = "unknown"
		}
	}
	return []byte("# HELP " + name + " " + strings.NewReplacer(escape...).Replace(d.help) + "\n# TYPE " + name + " " + kind + "\n")
}

// line writes what precedes a series' value. What a label says may come from a
// driver or a kubelet, and what is not UTF-8 would cost the whole scrape.
func line(name string, labels []device.Label) []byte {
	escape := strings.NewReplacer(labelEscapes...)
	var b bytes.Buffer
	b.WriteString(name)
	for i, l := range labels {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(l.Name + `="` + escape.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	return b.Bytes()
}

// What has to be escaped in a help text, and in a label's value.
var (
	helpEscapes  = []string{`\`, `\\`, "\n", `\n`}
	labelEscapes = []string{`\`, `\\`, "\n", `\n`, `"`, `\"`}
)

// encode appends both the page, which may be nil, and the other families in one
// of the two formats that are text. A family that cannot be encoded is missing, and
// the error says why.
func encode(b []byte, p *page, others []*dto.MetricFamily, format expfmt.Format) ([]byte, error) {
	openMetrics := format.FormatType() == expfmt.TypeOpenMetrics
	if p != nil {
		b = p.appendText(b, openMetrics)
	}
	rest := bytes.NewBuffer(b)
	encoder := expfmt.NewEncoder(rest, format)
	var errs []error
	for _, f := range others {
		whole := rest.Len()
		if err := encoder.Encode(f); err != nil {
			rest.Truncate(whole)
			errs = append(errs, err)
		}
	}
	if openMetrics {
		rest.WriteString("# EOF\n")
	}
	return rest.Bytes(), errors.Join(errs...)
}
