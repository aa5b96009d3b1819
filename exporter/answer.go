package exporter

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/common/expfmt"
)

// representation is one of the forms that a scrape may take.
type representation struct {
	format expfmt.FormatType
	gzip   bool
}

// formats are those that Prometheus asks for, by preference. A body depends on the type alone: versions of OpenMetrics
// differ in nothing that is exported, and no name needs escaping.
var formats = []expfmt.Format{expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtProtoDelim, expfmt.FmtText}

// encoder makes response bodies, one at a time: a compressor weighs 800 kB, and Protobuf takes some megabytes while it is
// made. Bodies are compressed while they are written: of a megabyte of text some thirty kilobytes are left.
type encoder struct {
	mu sync.Mutex
	// All below are guarded by mu.
	compressor *gzip.Writer // at its fastest: the usual level took a quarter of a scrape, for a few kilobytes less
	text       *bufio.Writer
	sizes      map[representation]int // of the last bodies: the next ones are allocated at once
}

// encode returns what write has written. The caller holds mu.
func (e *encoder) encode(as representation, write func(*bufio.Writer) error) ([]byte, error) {
	if e.text == nil {
		e.compressor, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for an unknown level
		e.text, e.sizes = bufio.NewWriterSize(nil, textBytes), map[representation]int{}
	}
	body := bytes.NewBuffer(make([]byte, 0, e.sizes[as]))
	e.text.Reset(body)
	if as.gzip {
		e.compressor.Reset(body)
		e.text.Reset(e.compressor)
	}
	err := write(e.text)
	e.text.Flush() //nolint:errcheck // memory takes everything
	if as.gzip {
		e.compressor.Close() //nolint:errcheck // likewise
	}
	e.sizes[as] = body.Len() + body.Len()/16
	return body.Bytes(), err
}

// scrape returns the body of a collection, which may be nil, and releases the collection. The first scrape of a
// representation makes the body, and all others share it.
func (e *Exporter) scrape(f *flight, as representation, own chosen) (*body, error) {
	e.encoder.mu.Lock()
	defer e.encoder.mu.Unlock()
	var p *page
	if f != nil {
		defer e.release(f)
		if b := f.bodies[as]; b != nil {
			return b, nil
		}
		p = f.page
	}
	data, err := e.encoder.encode(as, func(w *bufio.Writer) error { return encode(w, p, own, as.format) })
	b := &body{data: data, compressed: as.gzip}
	if f != nil {
		b.collection = f.begin
		if f.bodies == nil {
			f.bodies = map[representation]*body{}
		}
		f.bodies[as] = b
	}
	return b, err
}

// compressed returns a handler that compresses next's answer if the client accepts gzip. It buffers the answer: a client that
// reads slowly holds its own body, and neither the compressor nor what next reads.
func (e *encoder) compressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		made := buffered{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(&made, r)
		data := made.body.Bytes()
		if takesGzip(r.Header.Values("Accept-Encoding")) {
			w.Header().Set("Content-Encoding", "gzip")
			e.mu.Lock()
			data, _ = e.encode(representation{gzip: true}, func(w *bufio.Writer) error { _, err := w.Write(data); return err }) // memory takes everything
			e.mu.Unlock()
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(made.status)
		w.Write(data) //nolint:errcheck // the client has gone
	})
}

// takesGzip reads the header as RFC 9110 has it: a list of codings, each with a
// weight, of which 0 is a refusal.
func takesGzip(accepted []string) bool {
	for coding := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(coding, " ", "")), ";")
		if name == "gzip" {
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

// buffered is a ResponseWriter that records the status and the body. The headers are sent later, with the encoding and length of
// the body.
type buffered struct {
	http.ResponseWriter
	body   bytes.Buffer
	status int
}

// WriteHeader implements http.ResponseWriter.
func (b *buffered) WriteHeader(status int) { b.status = status }

// Write implements io.Writer.
func (b *buffered) Write(data []byte) (int, error) { return b.body.Write(data) }
