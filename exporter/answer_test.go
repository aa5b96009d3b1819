package exporter

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
)

func TestTakesGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "identity": false, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.5": true,
		"deflate, gzip;q=1.0, *;q=0.5": true, "br,GZIP": true, "x-gzip": false, "gzipped": false, "gzip;q=10": true,
	} {
		if got := takesGzip([]string{header}); got != want {
			t.Errorf("Accept-Encoding %q: %v, want %v", header, got, want)
		}
	}
}

func TestScrapeIsCompressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(2)
		h := serve(New(d.sources(), Options{}))
		plain := scrape(t, h)
		for range 2 { // the second with the first one's writer
			r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			r.Header.Set("Accept-Encoding", "gzip")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			z, err := gzip.NewReader(w.Body)
			if err != nil || w.Header().Get("Content-Encoding") != "gzip" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
				t.Fatalf("%v, header %v", err, w.Header())
			}
			text, err := io.ReadAll(z)
			if err != nil || string(text) != plain {
				t.Errorf("%v, and %d bytes instead of %d", err, len(text), len(plain))
			}
		}
	})
}
