package exporter

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"

	"github.com/podgauge/podgauge/test/bubble"
)

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "identity": false, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.5": true,
		"deflate, gzip;q=1.0, *;q=0.5": true, "br,GZIP": true, "x-gzip": false, "gzipped": false, "gzip;q=10": true,
	} {
		if got := acceptsGzip([]string{header}); got != want {
			t.Errorf("Accept-Encoding %q: got %v, want %v", header, got, want)
		}
	}
}

func TestScrapeIsCompressed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		h := newHandler(New(d.sources(), Options{}))
		plain := scrape(t, h)
		for range 2 { // the second reuses a compressor
			r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			r.Header.Set("Accept-Encoding", "gzip")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			z, err := gzip.NewReader(w.Body)
			if err != nil || w.Header().Get("Content-Encoding") != "gzip" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
				t.Fatalf("got error %v, header %v", err, w.Header())
			}
			text, err := io.ReadAll(z)
			if err != nil || string(text) != plain {
				t.Errorf("got error %v and a body of %d bytes, want %d", err, len(text), len(plain))
			}
		}
	})
}

// writeObserver calls onWrite before each write to the client.
type writeObserver struct {
	*httptest.ResponseRecorder
	onWrite func()
}

func (r *writeObserver) Write(b []byte) (int, error) {
	r.onWrite()
	return r.ResponseRecorder.Write(b)
}

// TestSlowClientBlocksNothing checks that no lock is held while a body is sent.
func TestSlowClientBlocksNothing(t *testing.T) {
	for _, encoding := range []string{"gzip", "identity"} {
		bubble.Test(t, func(t *testing.T) {
			e := New(newScrapeFixture(2).sources(), Options{})
			h := newHandler(e)
			r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			r.Header.Set("Accept-Encoding", encoding)
			writes := 0
			h.ServeHTTP(&writeObserver{httptest.NewRecorder(), func() {
				writes++
				for name, mu := range map[string]*sync.Mutex{"exporter": &e.mu, "encoder": &e.encoder.mu} {
					if !mu.TryLock() {
						t.Fatalf("%s: %s is locked while the client reads", encoding, name)
					}
					mu.Unlock()
				}
			}}, r)
			if writes == 0 {
				t.Errorf("%s: got an empty body", encoding)
			}
		})
	}
}

// TestScrapeAfterLaterCollection checks that a scrape gets the newest rendering, even if a later collection has replaced its own.
func TestScrapeAfterLaterCollection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		e := New(d.sources(), Options{})
		e.waitForCollection(t.Context(), e.isReusable)
		d.watts = 312
		d.expireCollection()
		e.waitForCollection(t.Context(), e.isReusable)
		b, err := e.encoder.body(representation{format: expfmt.TypeTextPlain}, fixedGatherer(nil))
		if err != nil || !strings.Contains(string(b), "} 312\n") {
			t.Errorf("got error %v, body %s", err, b)
		}
	})
}
