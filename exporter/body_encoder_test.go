package exporter

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "identity": false, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.5": true,
		"deflate, gzip;q=1.0, *;q=0.5": true, "br,GZIP": true, "x-gzip": false, "gzipped": false, "gzip;q=10": true,
	} {
		if got := acceptsGzip([]string{header}); got != want {
			t.Errorf("Accept-Encoding %q: %v, want %v", header, got, want)
		}
	}
}

func TestScrapeIsCompressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		h := newHandler(New(d.sources(), Options{}))
		plain := scrape(t, h)
		for range 2 { // the second with a used compressor
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
				t.Errorf("%v; body of %d bytes, want %d", err, len(text), len(plain))
			}
		}
	})
}

// TestErrorIsCompressed checks the status and the headers of a compressed error.
func TestErrorIsCompressed(t *testing.T) {
	var e bodyEncoder
	server := httptest.NewServer(e.compress(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "render page: failed", http.StatusInternalServerError)
	})))
	defer server.Close()
	for _, encoding := range []string{"gzip", "identity"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", encoding)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body := io.Reader(answer.Body)
		if encoding == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		if err != nil || string(text) != "render page: failed\n" || answer.StatusCode != http.StatusInternalServerError {
			t.Errorf("%s: status %d, %q, %v", encoding, answer.StatusCode, text, err)
		}
		if got := answer.Header.Get("Content-Encoding"); (got == "gzip") != (encoding == "gzip") || answer.ContentLength <= 0 {
			t.Errorf("%s: encoding %q, length %d", encoding, got, answer.ContentLength)
		}
	}
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

// TestSlowClientReleasesCollection checks that the collection is released before the first byte is sent: slow clients must not cause more
// renderings.
func TestSlowClientReleasesCollection(t *testing.T) {
	for _, encoding := range []string{"gzip", "identity"} {
		synctest.Test(t, func(t *testing.T) {
			e := New(newScrapeFixture(2).sources(), Options{})
			h := newHandler(e)
			r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			r.Header.Set("Accept-Encoding", encoding)
			reads := 0
			h.ServeHTTP(&writeObserver{httptest.NewRecorder(), func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				if reads++; e.newest.users != 1 {
					t.Errorf("%s: collection has %d users while the client reads, want 1", encoding, e.newest.users)
				}
			}}, r)
			if reads == 0 {
				t.Errorf("%s: empty body", encoding)
			}
		})
	}
}

// TestSpareRenderings checks that one of several unused renderings is kept.
func TestSpareRenderings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(newScrapeFixture(1).sources(), Options{})
		var used []*scrapeCollection
		for range 5 {
			used = append(used, e.waitForCollection(t.Context(), e.isReusable))
			time.Sleep(maxCollectionAge)
		}
		for _, f := range used {
			e.release(f)
		}
		if n := len(e.free); n != maxFreeRendered {
			t.Errorf("%d renderings are kept, want %d", n, maxFreeRendered)
		}
	})
}
