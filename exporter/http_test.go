package exporter

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/prometheus/client_golang/prometheus"
)

// slowWriter is a client that blocks in its first write.
type slowWriter struct {
	http.ResponseWriter
	onWrite func()
	resume  <-chan struct{}
}

func (s slowWriter) Write(b []byte) (int, error) {
	s.onWrite()
	<-s.resume
	return s.ResponseWriter.Write(b)
}

// TestSlowReaders checks that slow readers of JSON and of the page are limited separately, and block neither other readers nor scrapes and
// probes.
func TestSlowReaders(t *testing.T) {
	data := []string{api.DevicesPath, api.IncidentsPath, api.AllocationsPath}
	for _, c := range []struct{ slow, busy, served []string }{
		{data, data, []string{"/", "/metrics", "/healthz", "/readyz"}},
		{[]string{"/"}, []string{"/"}, append([]string{"/metrics", "/healthz", "/readyz"}, data...)},
	} {
		h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
		assertStatus(t, h, http.StatusOK, c.busy...)
		resume := occupy(h, c.slow)
		assertStatus(t, h, http.StatusServiceUnavailable, c.busy...)
		assertStatus(t, h, http.StatusOK, c.served...)
		resume()
		assertStatus(t, h, http.StatusOK, c.busy...)
	}
}

// occupy starts as many requests as allowed, which block until resume is called.
func occupy(h http.Handler, paths []string) (resume func()) {
	var served, finished sync.WaitGroup
	resumed := make(chan struct{})
	served.Add(maxConcurrentRequests)
	for i := range maxConcurrentRequests {
		finished.Go(func() {
			w := slowWriter{httptest.NewRecorder(), sync.OnceFunc(served.Done), resumed}
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, paths[i%len(paths)], http.NoBody))
		})
	}
	served.Wait()
	return func() {
		close(resumed)
		finished.Wait()
	}
}

func assertStatus(t *testing.T, h http.Handler, status int, paths ...string) {
	t.Helper()
	for _, path := range paths {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != status || status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: got %d, %v, want %d", path, w.Code, w.Header(), status)
		}
		var response api.ErrorResponse
		if status == http.StatusOK || !strings.HasPrefix(path, api.Root) {
			continue
		}
		if err := json.Unmarshal(w.Body.Bytes(), &response); err != nil || response.Error != errBusy.Error() {
			t.Errorf("%s: got error %v, body %q", path, err, w.Body)
		}
	}
}

// TestSecurityHeaders checks the headers of all responses except scrapes, errors included.
func TestSecurityHeaders(t *testing.T) {
	s := HandlerOptions{
		TelemetryPath: "/metrics", Pprof: true, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Alive: noFailures, Ready: noFailures,
	}
	all, probes := New(newScrapeFixture(1).sources(), Options{}).Handler(s), s.Probes()
	for _, c := range []struct {
		of     http.Handler
		method string
		path   string
		status int
	}{
		{all, http.MethodGet, "/", http.StatusOK},
		{all, http.MethodGet, "//healthz", http.StatusTemporaryRedirect}, // with an HTML body
		{all, http.MethodGet, "/static/nothing", http.StatusNotFound},
		{all, http.MethodGet, "/healthz", http.StatusOK},
		{all, http.MethodGet, api.DevicesPath, http.StatusOK},
		{all, http.MethodGet, api.Root + "nothing", http.StatusNotFound},
		{all, http.MethodGet, "/nothing", http.StatusNotFound},
		{all, http.MethodPost, "/readyz", http.StatusMethodNotAllowed},
		{all, http.MethodGet, "/debug/pprof/", http.StatusOK},
		{probes, http.MethodGet, "/healthz", http.StatusOK},
		{probes, http.MethodHead, "/readyz", http.StatusOK},
		{probes, http.MethodPost, "/readyz", http.StatusMethodNotAllowed},
		{probes, http.MethodGet, "/", http.StatusNotFound},
		{probes, http.MethodGet, "/metrics", http.StatusNotFound},
		{probes, http.MethodGet, api.DevicesPath, http.StatusNotFound},
		{probes, http.MethodGet, "/debug/pprof/", http.StatusNotFound},
		{probes, http.MethodGet, "/healthz/", http.StatusNotFound},
	} {
		w := httptest.NewRecorder()
		c.of.ServeHTTP(w, httptest.NewRequest(c.method, c.path, http.NoBody))
		if w.Code != c.status {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, w.Code, c.status)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if got := w.Header()[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s %s: %s: got %q", c.method, c.path, name, got)
			}
		}
		if policy := w.Header()["Content-Security-Policy"]; len(policy) != 1 || !strings.HasPrefix(policy[0], "default-src 'none'; ") ||
			!strings.HasSuffix(policy[0], "base-uri 'none'; form-action 'none'; frame-ancestors 'none'") {
			t.Errorf("%s %s: got policy %q", c.method, c.path, policy)
		}
	}
}
