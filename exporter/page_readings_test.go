package exporter_test

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/test/bubble"
)

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
