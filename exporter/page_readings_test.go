package exporter

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/prometheus/client_golang/prometheus"
)

// getPage returns the status page.
func getPage(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d %v: %s", w.Code, w.Header(), w.Body)
	}
	return w.Body.String()
}

// TestPageCollections checks that all viewers together cause at most one collection every two seconds, and none without viewers.
func TestPageCollections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		h := newHandler(New(d.sources(), Options{}))
		time.Sleep(time.Minute)
		if d.readCalls != 0 {
			t.Fatalf("got %d collections before the first viewer", d.readCalls)
		}
		for i := range 100 { // ten seconds
			d.allocate([]string{"GPU-0=team/a/main", "GPU-0=team/b/main"}[i%2])
			for range 3 {
				getPage(t, h)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if d.readCalls != 5 {
			t.Errorf("got %d collections in ten seconds, want 5", d.readCalls)
		}
		time.Sleep(time.Minute)
		if d.readCalls != 5 {
			t.Errorf("got %d collections after the last viewer", d.readCalls-5)
		}
	})
}

func TestPageSharesCollectionOfScrape(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := newHandler(New(d.sources(), Options{}))
		scrape(t, h)
		time.Sleep(maxPageReadingsAge - time.Millisecond)
		getPage(t, h)
		if d.readCalls != 1 {
			t.Errorf("got %d collections", d.readCalls)
		}
		scrape(t, h) // accepts a collection of up to a second
		if d.readCalls != 2 {
			t.Errorf("got %d collections with the next scrape", d.readCalls)
		}
	})
}

// TestPageShowsHealth checks that a failed device is shown after half a second, however old the readings are.
func TestPageShowsHealth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.watts = 312
		h := newHandler(New(d.sources(), Options{}))
		if page := getPage(t, h); !strings.Contains(page, "All 2 devices are healthy.") || !strings.Contains(page, ">312 W</span>") {
			t.Errorf("got page %s", page)
		}
		failed := append([]device.Status{}, d.statuses...)
		failed[1].Healthy, failed[1].Health, failed[1].Reason = false, device.Unhealthy, "xid_79"
		d.node.Devices.Set(failed)
		time.Sleep(500 * time.Millisecond)
		if page := getPage(t, h); !strings.Contains(page, "Unhealthy: 1 of 2 devices.") || d.readCalls != 1 {
			t.Errorf("got %d collections, page %s", d.readCalls, page)
		}
	})
}

// TestPageShowsNoOldReading checks that a GPU missing from the newest collection has no values.
func TestPageShowsNoOldReading(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.watts = 312
		h := newHandler(New(d.sources(), Options{}))
		getPage(t, h)
		d.readErr["GPU-1"] = errors.New("lost")
		time.Sleep(maxPageReadingsAge)
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
		h := newHandler(New(d.sources(), Options{}))
		for range 6 { // three minutes
			scrape(t, h)
			time.Sleep(30 * time.Second)
		}
		line := regexp.MustCompile(`aria-label="Utilization of the last 30 min: [^>]*>\s*<path d="([^"]*)"`)
		past := func() string {
			path := line.FindStringSubmatch(getPage(t, h))
			if path == nil {
				return ""
			}
			return path[1]
		}
		if got := past(); !regexp.MustCompile(`^M53 \d+h0(?:L\d+ \d+){6}$`).MatchString(got) || d.readCalls != 7 {
			t.Errorf("got %d collections and history %q", d.readCalls, got)
		}
		time.Sleep(10 * time.Minute)
		if d.readCalls != 7 {
			t.Errorf("got %d collections without scrapes and viewers", d.readCalls-7)
		}
		if got := past(); !regexp.MustCompile(`^M33 \d+h0(?:L\d+ \d+){6}M59 \d+h0$`).MatchString(got) {
			t.Errorf("ten minutes later: got %q", got)
		}
	})
}

// TestPageIsReadOnly checks methods, and that the page is absent if metrics are at /.
func TestPageIsReadOnly(t *testing.T) {
	h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
	at := func(h http.Handler, method, path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
		return w.Code
	}
	for method, want := range map[string]int{
		http.MethodGet: 200, http.MethodHead: 200, http.MethodPost: 405, http.MethodPut: 405, http.MethodDelete: 405, http.MethodOptions: 405,
	} {
		if got := at(h, method, "/"); got != want {
			t.Errorf("%s /: got %d, want %d", method, got, want)
		}
	}
	if got := at(h, http.MethodGet, "/static/"); got != http.StatusNotFound {
		t.Errorf("/static/: got %d", got)
	}
	e := New(newScrapeFixture(1).sources(), Options{})
	metrics := e.Handler(HandlerOptions{TelemetryPath: "/", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") || !strings.Contains(w.Body.String(), "podgauge_nvml_up") {
		t.Errorf("metrics at /: got %v", w.Header())
	}
	e.Drain()
}
