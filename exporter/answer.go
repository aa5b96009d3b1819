package exporter

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// answers are made in memory and then sent, so that a client that reads slowly keeps up
// nothing but its answer. They are compressed as they are made, where the client takes that:
// of a megabyte of text some thirty kilobytes are left. One that nobody reads is kept for the
// next scrape: a sync.Pool would keep one for each processor, and those that it let go of last.
type answers struct{ spare atomic.Pointer[answer] }

// answer has a compressor, which weighs 800 kB. It compresses at its
// fastest: of a scrape's cost more than a quarter was promhttp's compression at its usual
// level, and the answer is a few kilobytes either way.
type answer struct {
	gzip *gzip.Writer
	body bytes.Buffer
}

// serve has next answer.
func (a *answers) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	if !takesGzip(r.Header.Values("Accept-Encoding")) {
		var body bytes.Buffer
		next.ServeHTTP(making{w, &body}, r)
		w.Write(body.Bytes()) //nolint:errcheck // whoever asked has gone
		return
	}
	of := a.spare.Swap(nil)
	if of == nil {
		of = &answer{}
		of.gzip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for a level that there is not
	}
	of.body.Reset()
	of.gzip.Reset(&of.body)
	w.Header().Set("Content-Encoding", "gzip")
	next.ServeHTTP(making{w, of.gzip}, r)
	of.gzip.Close()          //nolint:errcheck // memory takes everything
	w.Write(of.body.Bytes()) //nolint:errcheck // whoever asked has gone
	a.spare.Store(of)
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

// making is a ResponseWriter whose answer goes elsewhere first.
type making struct {
	http.ResponseWriter
	body io.Writer
}

// Write is io.Writer's.
func (m making) Write(b []byte) (int, error) { return m.body.Write(b) }
