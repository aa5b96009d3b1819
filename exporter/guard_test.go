package exporter

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/exporter/api"
	"github.com/prometheus/client_golang/prometheus"
)

// slow is a client that does not read its answer before it is let go on.
type slow struct {
	http.ResponseWriter
	answered func()
	goOn     <-chan struct{}
}

func (s slow) Write(b []byte) (int, error) {
	s.answered()
	<-s.goOn
	return s.ResponseWriter.Write(b)
}

// TestSlowReaders: who does not read is not waited for, and there are only so many. Scrapes
// and probes are answered all the while.
func TestSlowReaders(t *testing.T) {
	h := serve(New(newNode(1).sources(), Options{}))
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return w
	}
	var answered, gone sync.WaitGroup
	goOn := make(chan struct{})
	answered.Add(mostAnswers)
	paths := []string{api.DevicesPath, "/", api.IncidentsPath, api.HoldersPath}
	for i := range mostAnswers {
		gone.Go(func() {
			w := slow{httptest.NewRecorder(), sync.OnceFunc(answered.Done), goOn}
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, paths[i%len(paths)], http.NoBody))
		})
	}
	answered.Wait()
	for _, path := range paths {
		w := ask(path)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s beyond the bound: %d, %v", path, w.Code, w.Header())
		}
		var said api.Error
		if err := json.Unmarshal(w.Body.Bytes(), &said); strings.HasPrefix(path, api.Root) && (err != nil || said.Error != errBusy.Error()) {
			t.Errorf("%s beyond the bound: %v, %q", path, err, w.Body)
		}
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		if w := ask(path); w.Code != http.StatusOK {
			t.Errorf("%s while others read slowly: %d", path, w.Code)
		}
	}
	close(goOn)
	gone.Wait()
	for _, path := range paths {
		if w := ask(path); w.Code != http.StatusOK {
			t.Errorf("%s when all have read: %d", path, w.Code)
		}
	}
}

// TestHeaders: what is no scrape has headers that browsers obey, and errors have them, too.
func TestHeaders(t *testing.T) {
	s := Server{TelemetryPath: "/metrics", Pprof: true, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	all, probes := New(newNode(1).sources(), Options{}).Handler(s), s.Probes()
	for _, c := range []struct {
		of     http.Handler
		method string
		path   string
		status int
	}{
		{all, http.MethodGet, "/", http.StatusOK},
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
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.status)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if got := w.Header()[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s %s: %s is %q", c.method, c.path, name, got)
			}
		}
	}
}
