package exporter_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
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
	data := []string{api.NodePath, api.DevicesPath, api.IncidentsPath, api.AllocationsPath}
	for _, c := range []struct{ slow, served []string }{
		{data, []string{"/", "/metrics", "/healthz", "/readyz"}},
		{[]string{"/"}, append([]string{"/metrics", "/healthz", "/readyz"}, data...)},
	} {
		h := newScrapeFixture(1).handler(exporter.Options{})
		assertStatus(t, h, http.StatusOK, c.slow...)
		resume := occupy(h, c.slow)
		assertStatus(t, h, http.StatusServiceUnavailable, c.slow...)
		assertStatus(t, h, http.StatusOK, c.served...)
		resume()
		assertStatus(t, h, http.StatusOK, c.slow...)
	}
}

// TestWatches checks that 16 streams run beside other requests, and that a further stream is rejected until one ends.
func TestWatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const limit, watch = 16, api.NodePath + "?watch"
		d := newScrapeFixture(1)
		d.node.Resources.Set([]plugin.Resource{{Name: "nvidia.com/gpu", Devices: 1, Waiting: true, Err: "timeout"}})
		h := d.handler(exporter.Options{})
		ctx, end := context.WithCancel(t.Context())
		var streams sync.WaitGroup
		responses := make([]*httptest.ResponseRecorder, limit)
		for i := range responses {
			responses[i] = httptest.NewRecorder()
			streams.Go(func() {
				h.ServeHTTP(responses[i], httptest.NewRequestWithContext(ctx, http.MethodGet, watch, http.NoBody))
			})
		}
		synctest.Wait()
		assertStatus(t, h, http.StatusServiceUnavailable, watch, api.DevicesPath+"?watch=true")
		assertStatus(t, h, http.StatusOK, api.NodePath, "/", "/metrics", "/healthz")
		d.publish(func(statuses []device.Status) { statuses[0].Reason = "xid_79" })
		time.Sleep(time.Second)
		end()
		streams.Wait()
		for _, r := range responses {
			const resource = `{"name":"nvidia.com/gpu","devices":1,"waiting":true,"error":"timeout"}`
			if body := r.Body.String(); strings.Count(body, "\n") != 2 || strings.Count(body, "xid_79") != 1 ||
				strings.Count(body, resource) != 2 {
				t.Errorf("got %s", body)
			}
		}
		// Streams of this request end at once: its context is done.
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, watch, http.NoBody))
		expect.Equal(t, w.Code, http.StatusOK, "after the end of streams")
	})
}

// occupy starts as many requests as allowed, which block until resume is called.
func occupy(h http.Handler, paths []string) (resume func()) {
	var served, finished sync.WaitGroup
	resumed := make(chan struct{})
	const limit = 8
	served.Add(limit)
	for i := range limit {
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
		w := get(h, path)
		rejected := w.Header().Get("Retry-After") == "1" && strings.Contains(w.Body.String(), "too many requests at a time")
		if w.Code != status || rejected != (status == http.StatusServiceUnavailable) {
			t.Errorf("%s: got %d, %v, want %d: %s", path, w.Code, w.Header(), status, w.Body)
		}
	}
}

// TestPaths checks methods and statuses, and the security headers of all responses except scrapes, errors included.
func TestPaths(t *testing.T) {
	o := handlerOptions()
	o.Pprof = true
	all, probes := exporter.New(newScrapeFixture(1).sources(), exporter.Options{}).Handler(o), o.Probes()
	for _, c := range []struct {
		of      http.Handler
		methods string
		path    string
		status  int
	}{
		{all, "GET HEAD", "/", http.StatusOK},
		{all, "POST PUT DELETE OPTIONS", "/", http.StatusMethodNotAllowed},
		{all, "GET", "//healthz", http.StatusTemporaryRedirect}, // with an HTML body
		{all, "GET", "/static/nothing", http.StatusNotFound},
		{all, "GET", "/static/", http.StatusNotFound},
		{all, "GET", "/healthz", http.StatusOK},
		{all, "GET HEAD", api.DevicesPath, http.StatusOK},
		{all, "GET", api.Root + "nothing", http.StatusNotFound},
		{all, "GET", "/nothing", http.StatusNotFound},
		{all, "POST", "/readyz", http.StatusMethodNotAllowed},
		{all, "GET", "/debug/pprof/", http.StatusOK},
		{probes, "GET HEAD", "/healthz", http.StatusOK},
		{probes, "GET HEAD", "/readyz", http.StatusOK},
		{probes, "POST", "/readyz", http.StatusMethodNotAllowed},
		{probes, "GET", "/", http.StatusNotFound},
		{probes, "GET", "/metrics", http.StatusNotFound},
		{probes, "GET", api.DevicesPath, http.StatusNotFound},
		{probes, "GET", "/debug/pprof/", http.StatusNotFound},
		{probes, "GET", "/healthz/", http.StatusNotFound},
	} {
		for method := range strings.FieldsSeq(c.methods) {
			w := httptest.NewRecorder()
			c.of.ServeHTTP(w, httptest.NewRequest(method, c.path, http.NoBody))
			expect.Equal(t, w.Code, c.status, method, c.path)
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
				if got := w.Header()[name]; len(got) != 1 || got[0] != want {
					t.Errorf("%s %s: %s: got %q", method, c.path, name, got)
				}
			}
			policy := strings.Join(w.Header()["Content-Security-Policy"], "; default-src")
			if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Count(policy, "default-src") != 1 ||
				!strings.HasSuffix(policy, "base-uri 'none'; form-action 'none'; frame-ancestors 'none'") {
				t.Errorf("%s %s: got policy %q", method, c.path, policy)
			}
		}
	}
}

// TestMetricsAtRoot checks that metrics at / replace the page.
func TestMetricsAtRoot(t *testing.T) {
	o := handlerOptions()
	o.TelemetryPath = "/"
	w := get(exporter.New(newScrapeFixture(1).sources(), exporter.Options{}).Handler(o), "/")
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") || !strings.Contains(w.Body.String(), "podgauge_nvml_up") {
		t.Errorf("got %v", w.Header())
	}
}

// getPage returns the status page.
func getPage(t *testing.T, h http.Handler) string {
	t.Helper()
	w := get(h, "/")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d %v: %s", w.Code, w.Header(), w.Body)
	}
	return w.Body.String()
}

// TestPageCollections checks that all viewers together cause at most one collection every two seconds, none without
// viewers, and none if a scrape made one.
func TestPageCollections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		h := d.handler(exporter.Options{})
		time.Sleep(time.Minute)
		assertReads := func(want int) {
			t.Helper()
			if d.readCalls != want {
				t.Fatalf("got %d collections, want %d", d.readCalls, want)
			}
		}
		assertReads(0)
		for i := range 100 { // ten seconds
			d.allocate([]string{"GPU-0=team/a/main", "GPU-0=team/b/main"}[i%2])
			for range 3 {
				getPage(t, h)
			}
			time.Sleep(100 * time.Millisecond)
		}
		assertReads(5)
		time.Sleep(time.Minute)
		assertReads(5)
		scrape(t, h)
		time.Sleep(2*time.Second - time.Millisecond)
		getPage(t, h)
		assertReads(6)
		scrape(t, h) // accepts a collection of up to a second
		assertReads(7)
	})
}

// TestPageShowsNewState checks that a failed device is shown within half a second, however old the readings are, and that a GPU missing
// from the newest collection has no values.
func TestPageShowsNewState(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.watts = 312
		h := d.handler(exporter.Options{})
		if page := getPage(t, h); !strings.Contains(page, "All 2 devices are healthy.") || strings.Count(page, ">312 W</span>") != 2 {
			t.Errorf("got page %s", page)
		}
		d.publish(func(s []device.Status) { s[1].Healthy, s[1].Health, s[1].Reason = false, device.Unhealthy, "xid_79" })
		time.Sleep(500 * time.Millisecond)
		if page := getPage(t, h); !strings.Contains(page, "Unhealthy: 1 of 2 devices.") || d.readCalls != 1 {
			t.Errorf("got %d collections, page %s", d.readCalls, page)
		}
		d.readErr["GPU-1"] = errors.New("lost")
		time.Sleep(2 * time.Second)
		if page := getPage(t, h); strings.Count(page, ">312 W</span>") != 1 || strings.Count(page, "No reading.") != 1 {
			t.Errorf("got page %s", page)
		}
	})
}

// TestPageHistory checks that the lines of the last half hour come from the collections of scrapes and cause none.
func TestPageHistory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.metrics = slices.Clone(testMetrics)
		d.metrics[widthRow] = device.Metric{Name: string(status.Utilization), Help: "Utilization."}
		d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: widthRow, Value: 0.5}}
		h := d.handler(exporter.Options{})
		for range 6 { // three minutes
			scrape(t, h)
			time.Sleep(30 * time.Second)
		}
		line := regexp.MustCompile(`aria-label="Utilization of the last 30 min: [^>]*>\s*<path d="M53 \d+h0(?:L\d+ \d+){6}"`)
		if page := getPage(t, h); !line.MatchString(page) || d.readCalls != 7 {
			t.Errorf("got %d collections, page %s", d.readCalls, page)
		}
	})
}
