package exporter

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestReadersShareBody checks that scrapes of one collection are encoded once per representation.
func TestReadersShareBody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var gathered atomic.Int32
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "x", Help: "X."}, func() float64 { return float64(gathered.Add(1)) }))
		h := New(newScrapeFixture(2).sources(), Options{}).Handler(HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: slog.New(slog.DiscardHandler)})
		representations := [][2]string{
			{"text/plain", ""},
			{"text/plain", "gzip"},
			{"application/openmetrics-text;version=1.0.0", "gzip"},
			{"application/openmetrics-text;version=0.0.1", "gzip"},
			{"application/openmetrics-text;version=0.0.1", ""},
		}
		for collections := range 2 {
			var scrapes sync.WaitGroup
			for range 10 {
				for _, as := range representations {
					scrapes.Go(func() { scrape(t, h, "Accept", as[0], "Accept-Encoding", as[1]) })
				}
			}
			scrapes.Wait()
			if got, want := int(gathered.Load()), 4*(collections+1); got != want { // both versions of OpenMetrics share a body
				t.Errorf("got %d encoded bodies in %d collections, want %d", got, collections+1, want)
			}
			time.Sleep(maxCollectionAge)
		}
	})
}

// TestHeadersOfSharedBodies checks the type and the length of each response.
func TestHeadersOfSharedBodies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
		for _, accept := range []string{"application/openmetrics-text;version=1.0.0", "application/openmetrics-text;version=0.0.1", "text/plain"} {
			for _, encoding := range []string{"", "gzip"} {
				r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
				r.Header.Set("Accept", accept)
				r.Header.Set("Accept-Encoding", encoding)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				kind := strings.ReplaceAll(w.Header().Get("Content-Type"), " ", "")
				if !strings.HasPrefix(kind, accept) || w.Header().Get("Content-Encoding") != encoding || w.Header().Get("Vary") != "Accept, Accept-Encoding" {
					t.Errorf("%s, %q: got %v", accept, encoding, w.Header())
				}
				if w.Result().ContentLength != int64(w.Body.Len()) {
					t.Errorf("%s, %q: got Content-Length %d, body of %d bytes", accept, encoding, w.Result().ContentLength, w.Body.Len())
				}
			}
		}
	})
}

// TestHalfClosedConnection checks that a client that closes its sending half, as nc -N does, gets the whole collection.
func TestHalfClosedConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	h := newHandler(New(newScrapeFixture(2).sources(), Options{}))
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done() // net/http has read the end of the request
		h.ServeHTTP(w, r)
	})
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	response, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(response), "\nnvidia_gpu_info{") {
		t.Errorf("got error %v, %d bytes:\n%.500s", err, len(response), response)
	}
}

// stalledWriter is a client that reads nothing, on a connection with a deadline.
type stalledWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (s *stalledWriter) Write([]byte) (int, error) {
	time.Sleep(time.Until(s.deadline))
	return 0, os.ErrDeadlineExceeded
}

// SetWriteDeadline implements the method of a network connection.
func (s *stalledWriter) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

// TestStalledReader checks that a client that reads nothing is disconnected after ten seconds, and delays no other scrape.
func TestStalledReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
		began := time.Now()
		var stalled sync.WaitGroup
		for range 100 {
			stalled.Go(func() {
				h.ServeHTTP(&stalledWriter{ResponseRecorder: httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
			})
		}
		synctest.Wait()
		scrape(t, h)
		if got := time.Since(began); got != 0 {
			t.Errorf("another scrape: got a response after %s", got)
		}
		stalled.Wait()
		if got := time.Since(began); got != scrapeWriteTimeout {
			t.Errorf("got disconnected after %s, want %s", got, scrapeWriteTimeout)
		}
	})
}
