package exporter

import (
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
)

// gzipWriters are kept from scrape to scrape: one weighs 800 kB. They compress at
// their fastest: of a scrape's cost more than a quarter was promhttp's compression
// at its usual level, and the answer is a few kilobytes either way.
type gzipWriters struct{ pool sync.Pool }

// serve has next answer, compressed where the client takes that.
func (g *gzipWriters) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	if !takesGzip(r.Header.Values("Accept-Encoding")) {
		next.ServeHTTP(w, r)
		return
	}
	z, ok := g.pool.Get().(*gzip.Writer)
	if !ok {
		z, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for a level that there is not
	}
	z.Reset(w)
	w.Header().Set("Content-Encoding", "gzip")
	next.ServeHTTP(compressed{w, z}, r)
	z.Close() //nolint:errcheck // whoever asked has gone
	g.pool.Put(z)
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

// compressed is a ResponseWriter that compresses what is written.
type compressed struct {
	http.ResponseWriter
	gzip *gzip.Writer
}

// Write is io.Writer's.
func (c compressed) Write(b []byte) (int, error) { return c.gzip.Write(b) }
