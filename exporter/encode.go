package exporter

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// A series' name and labels are written out once, when it is made. From then on a
// scrape costs the copying of that line and the formatting of one number; expfmt,
// which validates and escapes each label each time, took a third of a scrape. A
// test holds the two to the same bytes.

// appendText appends the page in the text format, or in OpenMetrics without its
// end: other families may follow.
func (p *page) appendText(b []byte, openMetrics bool) []byte {
	for _, f := range p.families {
		if len(f.lines) == 0 {
			continue
		}
		if openMetrics {
			b = append(b, f.openMetricsHead...)
		} else {
			b = append(b, f.textHead...)
		}
		for i, line := range f.lines {
			b = append(b, line...)
			b = appendNumber(b, value(f.Metric[i]), openMetrics)
			b = append(b, '\n')
		}
	}
	return b
}

func value(m *dto.Metric) float64 {
	if m.Gauge != nil {
		return m.Gauge.GetValue()
	}
	return m.Counter.GetValue()
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
// without its _total, and escapes quotes in the help as well.
func (f *family) head(openMetrics bool) []byte {
	name, help, escape := f.GetName(), f.GetHelp(), helpEscapes
	if openMetrics {
		escape = labelEscapes
		if f.GetType() == dto.MetricType_COUNTER {
			name = strings.TrimSuffix(name, "_total")
		}
	}
	return []byte("# HELP " + name + " " + strings.NewReplacer(escape...).Replace(help) +
		"\n# TYPE " + name + " " + strings.ToLower(f.GetType().String()) + "\n")
}

// line writes what precedes a series' value.
func line(name string, pairs []*dto.LabelPair) []byte {
	escape := strings.NewReplacer(labelEscapes...)
	var b bytes.Buffer
	b.WriteString(name)
	for i, p := range pairs {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(p.GetName() + `="` + escape.Replace(p.GetValue()) + `"`)
	}
	if len(pairs) > 0 {
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
