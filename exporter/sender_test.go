package exporter

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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

// stalledWriter is a client that reads nothing until it is disconnected.
type stalledWriter struct {
	*httptest.ResponseRecorder
	started, closed chan struct{}
}

func newStalledWriter() *stalledWriter {
	return &stalledWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
}

func (s *stalledWriter) Write(b []byte) (int, error) {
	close(s.started)
	<-s.closed
	return len(b), nil
}

// SetWriteDeadline implements the method of a network connection.
func (s *stalledWriter) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		close(s.closed)
	}
	return nil
}

func (s *stalledWriter) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// TestOldestReadersAreDisconnected checks that readers of the oldest bodies are disconnected at the limit. Readers of the newest body never are,
// even if the body is larger than the limit.
func TestOldestReadersAreDisconnected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newSender()
		begin := func(b *scrapeBody) *stalledWriter {
			w := newStalledWriter()
			go s.send(w, b)
			<-w.started
			return w
		}
		began := time.Now()
		third := func(collection int) *scrapeBody {
			return &scrapeBody{data: make([]byte, maxSendingBytes/3), collection: began.Add(time.Duration(collection) * time.Second)}
		}
		first, second, last := third(1), third(2), third(3)
		readers := []*stalledWriter{begin(first), begin(first), begin(second), begin(last)}
		cut := func() (is []bool) {
			synctest.Wait()
			for _, r := range readers {
				is = append(is, r.isClosed())
			}
			return is
		}
		if got := cut(); slices.Contains(got, true) {
			t.Errorf("below the limit: got disconnected %v", got)
		}
		readers = append(readers, begin(third(4)))
		if got, want := cut(), []bool{true, true, false, false, false}; !slices.Equal(got, want) {
			t.Errorf("with a fourth body: got disconnected %v, want %v", got, want)
		}
		readers = append(readers, begin(second)) // another reader of the same body
		if got, want := cut(), []bool{true, true, false, false, false, false}; !slices.Equal(got, want) {
			t.Errorf("with another reader: got disconnected %v, want %v", got, want)
		}
		readers = append(readers, begin(&scrapeBody{data: make([]byte, 2*maxSendingBytes), collection: began.Add(5 * time.Second)}))
		if got, want := cut(), []bool{true, true, true, true, true, true, false}; !slices.Equal(got, want) {
			t.Errorf("with a body above the limit: got disconnected %v, want %v", got, want)
		}
		readers = append(readers, begin(first)) // of an older collection
		if got, want := cut(), []bool{true, true, true, true, true, true, false, true}; !slices.Equal(got, want) {
			t.Errorf("with a late reader: got disconnected %v, want %v", got, want)
		}
		close(readers[6].closed)
		synctest.Wait()
		if len(s.readers) != 0 {
			t.Errorf("at the end: got %d bytes of %d bodies", s.totalBytes(), len(s.readers))
		}
	})
}

// TestCompressedBodiesAreKept checks that clients of different representations disconnect each other, but never the clients of the newest
// collection's compressed body.
func TestCompressedBodiesAreKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newSender()
		began := time.Now()
		begin := func(collection, bytes int, compressed bool) *stalledWriter {
			w := newStalledWriter()
			go s.send(w, &scrapeBody{data: make([]byte, bytes), compressed: compressed, collection: began.Add(time.Duration(collection) * time.Second)})
			<-w.started
			synctest.Wait()
			return w
		}
		old := begin(1, maxSendingBytes/10, true)
		small := begin(2, maxSendingBytes/10, true)
		text := begin(2, maxSendingBytes/3, false)
		if old.isClosed() || small.isClosed() || text.isClosed() {
			t.Error("a reader below the limit is disconnected")
		}
		other := begin(2, maxSendingBytes/2, false)
		if !old.isClosed() || small.isClosed() || text.isClosed() || other.isClosed() {
			t.Error("want only readers of the oldest collection disconnected")
		}
		openMetrics := begin(2, maxSendingBytes/3, false)
		if small.isClosed() || text.isClosed() || !other.isClosed() || openMetrics.isClosed() {
			t.Error("want only readers of the largest body disconnected")
		}
		large := begin(2, 2*maxSendingBytes, false)
		if small.isClosed() || !text.isClosed() || !openMetrics.isClosed() || large.isClosed() {
			t.Error("a reader of the compressed or of the newest body is disconnected")
		}
		late := begin(1, maxSendingBytes/10, true)
		if small.isClosed() || large.isClosed() || !late.isClosed() {
			t.Error("want only readers of the older collection disconnected")
		}
		close(small.closed)
		close(large.closed)
		synctest.Wait()
		if len(s.readers) != 0 {
			t.Errorf("at the end: got %d bytes of %d bodies", s.totalBytes(), len(s.readers))
		}
	})
}

// TestDisconnectedReader checks that a disconnected reader's connection ends early, and that a fast reader gets the whole body.
func TestDisconnectedReader(t *testing.T) {
	s := newSender()
	// The old body is larger than two socket buffers.
	old, fresh := &scrapeBody{data: make([]byte, 4*maxSendingBytes)}, &scrapeBody{data: make([]byte, maxSendingBytes), collection: time.Now()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			s.send(w, old)
			return
		}
		s.send(w, fresh)
	}))
	defer server.Close()
	slowly, err := server.Client().Get(server.URL + "/old") // returns after the headers
	if err != nil {
		t.Fatal(err)
	}
	defer slowly.Body.Close()
	for range 2 {
		response, err := server.Client().Get(server.URL + "/new")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if n != maxSendingBytes {
			t.Errorf("fast reader: got %d bytes, want %d: %v", n, maxSendingBytes, err)
		}
	}
	if n, err := io.Copy(io.Discard, slowly.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("slow reader: got %d bytes and error %v, want an unexpected EOF", n, err)
	}
}
