package exporter_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestFormats checks the format and compression of each response.
func TestFormats(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newScrapeFixture(1).handler(exporter.Options{})
		for accept, want := range map[string]string{
			"application/openmetrics-text;version=1.0.0": "application/openmetrics-text;version=1.0.0",
			"application/openmetrics-text;version=0.0.1": "application/openmetrics-text;version=0.0.1",
			"text/plain": "text/plain;version=0.0.4",
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "text/plain;version=0.0.4",
		} {
			for _, encoding := range []string{"", "gzip"} {
				w := get(h, "/metrics", "Accept", accept, "Accept-Encoding", encoding)
				var body io.Reader = w.Body
				var err error
				if encoding == "gzip" {
					body, err = gzip.NewReader(w.Body)
				}
				require.NoError(t, err)
				text, err := io.ReadAll(body)
				if err != nil || !strings.Contains(string(text), "\n"+expand("up GPU-0 -")+" 1") {
					t.Errorf("%s, %q: got error %v, %s", accept, encoding, err, text)
				}
				kind := strings.ReplaceAll(w.Header().Get("Content-Type"), " ", "")
				vary := strings.Join(w.Header()["Vary"], ", ")
				if !strings.HasPrefix(kind, want) || w.Header().Get("Content-Encoding") != encoding || vary != "Accept, Accept-Encoding" {
					t.Errorf("%s, %q: got %v", accept, encoding, w.Header())
				}
			}
		}
	})
}

// TestOpenMetrics checks that each counter of OpenMetrics ends in _total, and that help texts are escaped.
func TestOpenMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.metrics = slices.Clone(d.metrics)
		d.metrics[powerRow].Help = "A \"help\"\nwith \\ all of it."
		text := scrape(t, d.handler(exporter.Options{DCGM: dcgm.Defaults(dcgm.V48)}), "Accept", "application/openmetrics-text;version=1.0.0")
		assertSeries(t, text, "# TYPE nvidia_gpu_energy_joules counter", "energy_joules_total GPU-0 - 0.0",
			"# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown", `# HELP nvidia_gpu_power_watts A \"help\"\nwith \\ all of it.`, "# EOF")
	})
}

// TestInvalidMetrics checks that a scrape has all other metrics if one is invalid.
func TestInvalidMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := handlerOptions()
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		bad := prometheus.NewDesc("bad", "Bad.", nil, nil)
		o.Registry.MustRegister(
			prometheus.NewGauge(prometheus.GaugeOpts{Name: "good", Help: "Good."}),
			prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
				ch <- prometheus.NewInvalidMetric(bad, errors.New("bad value"))
			}))
		h := exporter.New(newScrapeFixture(1).sources(), exporter.Options{}).Handler(o)
		for format, want := range map[string]string{"text/plain": "good 0", "application/openmetrics-text;version=1.0.0": "good 0.0"} {
			assertSeries(t, scrape(t, h, "Accept", format), want, "!bad")
		}
		expect.Contains(t, log.String(), "bad value")
	})
}

// TestHalfClosedConnection checks that a client that closes its sending half, as nc -N does, gets the whole collection:
// net/http cancels the request.
func TestHalfClosedConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	newScrapeFixture(2).handler(exporter.Options{}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
	assertSeries(t, w.Body.String(), "up GPU-0 - 1", "up GPU-1 - 1")
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

// TestStalledReader checks that clients that read nothing are disconnected after ten seconds, and delay no other scrape
// up to the limit of 256.
func TestStalledReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newScrapeFixture(1).handler(exporter.Options{})
		began := time.Now()
		var stalled sync.WaitGroup
		stall := func() {
			h.ServeHTTP(&stalledWriter{ResponseRecorder: httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		}
		for range 255 {
			stalled.Go(stall)
		}
		synctest.Wait()
		scrape(t, h)
		stalled.Go(stall)
		synctest.Wait()
		if code := get(h, "/metrics").Code; code != http.StatusServiceUnavailable || time.Since(began) != 0 {
			t.Errorf("at the limit: got %d after %s", code, time.Since(began))
		}
		stalled.Wait()
		expect.Equal(t, time.Since(began), 10*time.Second)
		scrape(t, h)
	})
}
