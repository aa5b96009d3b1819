package exporter

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// representation is a format and compression of a scrape.
type representation struct {
	format expfmt.FormatType
	gzip   bool
}

// formats are Prometheus' text formats by preference. A body depends on the type only: podgauge exports the same text
// in all versions of OpenMetrics, and no name needs escaping.
var formats = []expfmt.Format{expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtText}

// bodyEncoder renders collections, and makes the response bodies of the newest one, one at a time: rendered metrics take megabytes,
// and a compressor 800 kB. Text is compressed piece by piece: a megabyte of text becomes about 30 kB.
type bodyEncoder struct {
	mu sync.Mutex
	// All below are guarded by mu.
	rendered   *renderedMetrics          // nil: bodies have podgauge's own metrics only
	bodies     map[representation][]byte // of the rendered collection
	compressor *gzip.Writer              // BestSpeed: the default level took a quarter of a scrape, for a few kilobytes less
	text       *bufio.Writer
	sizes      map[representation]int // of the latest bodies, to allocate the next ones
}

func newBodyEncoder(rendered *renderedMetrics) bodyEncoder {
	compressor, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for an unknown level
	return bodyEncoder{
		rendered: rendered, bodies: map[representation][]byte{}, compressor: compressor,
		text: bufio.NewWriterSize(nil, textBufferBytes), sizes: map[representation]int{},
	}
}

// render replaces the rendered collection.
func (e *bodyEncoder) render(s *nodeSnapshot, a *attribution) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.bodies)
	e.rendered.render(s, a)
}

// body returns the body of the rendered collection. The first scrape of a representation makes the body, and all later scrapes share
// the body.
func (e *bodyEncoder) body(repr representation, self prometheus.Gatherer) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var st *seriesStore
	if e.rendered != nil {
		if shared := e.bodies[repr]; shared != nil {
			return shared, nil
		}
		st = &e.rendered.seriesStore
	}
	data := bytes.NewBuffer(make([]byte, 0, e.sizes[repr]))
	e.text.Reset(data)
	if repr.gzip {
		e.compressor.Reset(data)
		e.text.Reset(e.compressor)
	}
	err := encode(e.text, st, self, repr.format)
	if repr.gzip {
		e.compressor.Close() //nolint:errcheck // a buffer in memory
	}
	e.sizes[repr] = data.Len() + data.Len()/16
	if e.rendered != nil {
		e.bodies[repr] = data.Bytes()
	}
	return data.Bytes(), err
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
