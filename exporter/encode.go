package exporter

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// textBufferBytes is the size of the pieces of text to compress.
const textBufferBytes = 16 << 10

// write writes the text format, or OpenMetrics without its end, since other families may follow. write copies the label text of each
// series and formats one number: expfmt, which escapes each label in each scrape, took a third of a scrape. A test compares both.
// Errors stay with w.
func (st *seriesStore) write(w *bufio.Writer, openMetrics bool) {
	for _, f := range st.families {
		if len(f.series) == 0 {
			continue
		}
		header := f.textHeader
		if openMetrics {
			header = f.openMetricsHeader
		}
		w.Write(header) //nolint:errcheck // see above; likewise below
		for _, s := range f.series {
			w.WriteString(f.Name)                                                         //nolint:errcheck
			w.Write(s.labels)                                                             //nolint:errcheck
			w.Write(append(appendValue(w.AvailableBuffer(), s.value, openMetrics), '\n')) //nolint:errcheck
		}
	}
}

// appendValue appends a value as expfmt writes it: OpenMetrics requires a point in a number without an exponent.
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

// encode writes the snapshot, which may be nil, and the process's own families. A family that cannot be gathered or encoded is
// missing, and the error gives the reason.
func encode(w *bufio.Writer, st *seriesStore, self prometheus.Gatherer, format expfmt.FormatType) error {
	families, err := self.Gather()
	errs := []error{err}
	if st != nil {
		st.write(w, format == expfmt.TypeOpenMetrics)
	}
	var buf bytes.Buffer
	encoder := expfmt.NewEncoder(&buf, expfmt.NewFormat(format))
	for _, f := range families {
		buf.Reset()
		if err := encoder.Encode(f); err != nil {
			errs = append(errs, err)
			continue
		}
		w.Write(buf.Bytes()) //nolint:errcheck // Flush returns the error
	}
	if format == expfmt.TypeOpenMetrics {
		w.WriteString("# EOF\n") //nolint:errcheck // likewise
	}
	return errors.Join(append(errs, w.Flush())...)
}
