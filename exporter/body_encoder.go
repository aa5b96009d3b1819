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

// bodyEncoder makes response bodies, one at a time: a compressor weighs 800 kB, and Protobuf takes some megabytes while it is
// made. Bodies are compressed while they are written: of a megabyte of text some thirty kilobytes are left.
type bodyEncoder struct {
	mu sync.Mutex
	// All below are guarded by mu.
	compressor *gzip.Writer // at its fastest: the usual level took a quarter of a scrape, for a few kilobytes less
	text       *bufio.Writer
	sizes      map[representation]int // of the last bodies: the next ones are allocated at once
}

// encode returns what write has written. The caller holds mu.
func (e *bodyEncoder) encode(repr representation, write func(*bufio.Writer) error) ([]byte, error) {
	if e.text == nil {
		e.compressor, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for an unknown level
		e.text, e.sizes = bufio.NewWriterSize(nil, textBufferBytes), map[representation]int{}
	}
	body := bytes.NewBuffer(make([]byte, 0, e.sizes[repr]))
	e.text.Reset(body)
	if repr.gzip {
		e.compressor.Reset(body)
		e.text.Reset(e.compressor)
	}
	err := write(e.text)
	e.text.Flush() //nolint:errcheck // memory takes everything
	if repr.gzip {
		e.compressor.Close() //nolint:errcheck // likewise
	}
	e.sizes[repr] = body.Len() + body.Len()/16
	return body.Bytes(), err
}

// encodeScrape returns the body of a collection, which may be nil, and releases the collection. The first scrape of a
// representation makes the body, and all others share it.
func (e *Exporter) encodeScrape(c *scrapeCollection, repr representation, self filteredGatherer) (*scrapeBody, error) {
	e.encoder.mu.Lock()
	defer e.encoder.mu.Unlock()
	var rm *renderedMetrics
	if c != nil {
		defer e.release(c)
		if b := c.bodies[repr]; b != nil {
			return b, nil
		}
		rm = c.rendered
	}
	data, err := e.encoder.encode(repr, func(w *bufio.Writer) error { return encode(w, rm, self, repr.format) })
	b := &scrapeBody{data: data, compressed: repr.gzip}
	if c != nil {
		b.collection = c.begin
		if c.bodies == nil {
			c.bodies = map[representation]*scrapeBody{}
		}
		c.bodies[repr] = b
	}
	return b, err
}

// compress returns a handler that compresses next's answer if the client accepts gzip. It buffers the answer: a client that
// reads slowly holds its own body, and neither the compressor nor what next reads.
func (e *bodyEncoder) compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		buf := bufferedResponse{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(&buf, r)
		data := buf.body.Bytes()
		if acceptsGzip(r.Header.Values("Accept-Encoding")) {
			w.Header().Set("Content-Encoding", "gzip")
			e.mu.Lock()
			data, _ = e.encode(representation{gzip: true}, func(w *bufio.Writer) error { _, err := w.Write(data); return err }) // memory takes everything
			e.mu.Unlock()
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(buf.status)
		w.Write(data) //nolint:errcheck // the client has gone
	})
}

// acceptsGzip reads the header as RFC 9110 has it: a list of codings, each with a
// weight, of which 0 is a refusal.
func acceptsGzip(accepted []string) bool {
	for coding := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(coding, " ", "")), ";")
		if name == "gzip" {
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

// bufferedResponse is a ResponseWriter that records the status and the body. The headers are sent later, with the encoding and length of
// the body.
type bufferedResponse struct {
	http.ResponseWriter
	body   bytes.Buffer
	status int
}

// WriteHeader implements http.ResponseWriter.
func (b *bufferedResponse) WriteHeader(status int) { b.status = status }

// Write implements io.Writer.
func (b *bufferedResponse) Write(data []byte) (int, error) { return b.body.Write(data) }
