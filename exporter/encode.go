package exporter

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A series' labels are written out once, when it is made, and once for all series of a
// device that have no others. From then on a scrape costs the copying of them and the
// formatting of one number; expfmt, which validates and escapes each label each time, took a
// third of a scrape. A test holds the two to the same bytes.

// textBufferBytes is how much text is made before it is passed on: it is compressed in pieces,
// and never there as a whole.
const textBufferBytes = 16 << 10

// write writes the page in the text format, or in OpenMetrics without its end: other
// families may follow. Errors stay with w.
func (rm *renderedMetrics) write(w *bufio.Writer, openMetrics bool) {
	for _, f := range rm.families {
		if len(f.series) == 0 {
			continue
		}
		header := f.textHeader
		if openMetrics {
			header = f.openMetricsHeader
		}
		w.Write(header) //nolint:errcheck // see above; likewise below
		for _, s := range f.series {
			w.WriteString(f.name)                                                         //nolint:errcheck
			w.Write(s.labels)                                                             //nolint:errcheck
			w.Write(append(appendValue(w.AvailableBuffer(), s.value, openMetrics), '\n')) //nolint:errcheck
		}
	}
}

// metricFamilies reads the page's own text: for a format that is not text, which few ask for.
func (rm *renderedMetrics) metricFamilies() ([]*dto.MetricFamily, error) {
	var text bytes.Buffer
	w := bufio.NewWriterSize(&text, textBufferBytes)
	rm.write(w, false)
	if err := w.Flush(); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(&text)
	families := slices.Collect(maps.Values(byName))
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// appendValue writes a value as the formats have it: OpenMetrics wants a number
// without an exponent to have a point.
func appendValue(b []byte, v float64, openMetrics bool) []byte {
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

// header writes what precedes a family's series. OpenMetrics names a counter without its
// _total, has no counter that does not end so, as dcgm-exporter's do not, and escapes quotes
// in the help as well.
func (d familyDesc) header(openMetrics bool) []byte {
	name, kind, escaper := d.name, "gauge", helpEscaper
	if openMetrics {
		escaper = labelEscaper
	}
	if d.counter {
		kind = "counter"
		if short, ok := strings.CutSuffix(name, "_total"); openMetrics && ok {
			name = short
		} else if openMetrics {
			kind = "unknown"
		}
	}
	return []byte("# HELP " + name + " " + escaper.Replace(d.help) + "\n# TYPE " + name + " " + kind + "\n")
}

// formatLabels is labels as they stand between a series' name and its value. What one says may
// come from a driver or a kubelet, and what is not UTF-8 would cost the whole scrape.
func formatLabels(labels []device.Label) []byte {
	var b bytes.Buffer
	for i, l := range labels {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(l.Name + `="` + labelEscaper.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	return bytes.Clone(b.Bytes()) // without the room that it grew by
}

// What has to be escaped in a help text, and in a label's value.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// encode writes the page, which may be nil, and the process's own families. A family that cannot be gathered or encoded is
// missing, and the error gives the reason.
func encode(w *bufio.Writer, rm *renderedMetrics, self prometheus.Gatherer, format expfmt.FormatType) error {
	families, err := self.Gather()
	errs := []error{err}
	switch {
	case rm == nil:
	case format == expfmt.TypeTextPlain, format == expfmt.TypeOpenMetrics:
		rm.write(w, format == expfmt.TypeOpenMetrics)
	default:
		parsed, err := rm.metricFamilies()
		families, errs = append(parsed, families...), append(errs, err)
	}
	var buf bytes.Buffer
	encoder := expfmt.NewEncoder(&buf, expfmt.NewFormat(format))
	for _, f := range families {
		buf.Reset()
		if err := encoder.Encode(f); err != nil {
			errs = append(errs, err)
			continue
		}
		w.Write(buf.Bytes()) //nolint:errcheck // Flush returns it
	}
	if format == expfmt.TypeOpenMetrics {
		w.WriteString("# EOF\n") //nolint:errcheck // likewise
	}
	return errors.Join(append(errs, w.Flush())...)
}
