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

// representation is a format and compression of a scrape.
type representation struct {
	format expfmt.FormatType
	gzip   bool
}

// formats are Prometheus' formats by preference. A body depends on the type only: what podgauge exports is the same in all versions
// of OpenMetrics, and no name needs escaping.
var formats = []expfmt.Format{expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtProtoDelim, expfmt.FmtText}

// bodyEncoder makes response bodies, one at a time: a compressor takes 800 kB, and encoding Protobuf some megabytes. Text is
// compressed piece by piece: a megabyte of text becomes about 30 kB.
type bodyEncoder struct {
	mu sync.Mutex
	// All below are guarded by mu.
	compressor *gzip.Writer // BestSpeed: the default level took a quarter of a scrape, for a few kilobytes less
	text       *bufio.Writer
	sizes      map[representation]int // of the latest bodies, to allocate the next ones
}

// encode returns the output of write. The caller holds mu.
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
	e.text.Flush() //nolint:errcheck // a buffer in memory
	if repr.gzip {
		e.compressor.Close() //nolint:errcheck // likewise
	}
	e.sizes[repr] = body.Len() + body.Len()/16
	return body.Bytes(), err
}

// compress returns a handler that compresses next's response if the client accepts gzip. The response is buffered: a slow client
// blocks neither the compressor nor next.
func (e *bodyEncoder) compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		buf := bufferedResponse{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(&buf, r)
		data := buf.body.Bytes()
		if acceptsGzip(r.Header.Values("Accept-Encoding")) {
			w.Header().Set("Content-Encoding", "gzip")
			e.mu.Lock()
			data, _ = e.encode(representation{gzip: true}, func(w *bufio.Writer) error { _, err := w.Write(data); return err }) // a buffer in memory
			e.mu.Unlock()
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(buf.status)
		w.Write(data) //nolint:errcheck // the client has gone
	})
}

// acceptsGzip parses an Accept-Encoding header (RFC 9110): a list of codings with weights; a weight of 0 excludes a coding.
func acceptsGzip(accepted []string) bool {
	for coding := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(coding, " ", "")), ";")
		if name == "gzip" {
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

// bufferedResponse is a ResponseWriter that records the status and the body. The headers are sent later, with the body's encoding and
// length.
type bufferedResponse struct {
	http.ResponseWriter
	body   bytes.Buffer
	status int
}

// WriteHeader implements http.ResponseWriter.
func (b *bufferedResponse) WriteHeader(status int) { b.status = status }

// Write implements io.Writer.
func (b *bufferedResponse) Write(data []byte) (int, error) { return b.body.Write(data) }
