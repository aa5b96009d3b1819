package exporter

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/podgauge/podgauge/test/bubble"
)

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

// TestHeaders checks the format and compression of each response.
func TestHeaders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
		for accept, want := range map[string]string{
			"application/openmetrics-text;version=1.0.0": "application/openmetrics-text;version=1.0.0",
			"application/openmetrics-text;version=0.0.1": "application/openmetrics-text;version=0.0.1",
			"text/plain": "text/plain;version=0.0.4",
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "text/plain;version=0.0.4",
		} {
			for _, encoding := range []string{"", "gzip"} {
				r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
				r.Header.Set("Accept", accept)
				r.Header.Set("Accept-Encoding", encoding)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
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
		d := dcgmFixture(1)
		d.metrics = slices.Clone(d.metrics)
		d.metrics[powerRow].Help = "A \"help\"\nwith \\ all of it."
		h := newHandler(New(d.sources(), Options{DCGM: true}))
		text := scrape(t, h, "Accept", "application/openmetrics-text;version=1.0.0")
		for _, line := range []string{
			"# TYPE nvidia_gpu_energy_joules counter",
			"nvidia_gpu_energy_joules_total" + seriesLabels("GPU-0", "0", "", "", "") + " 0.0",
			"# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown",
			`# HELP nvidia_gpu_power_watts A \"help\"\nwith \\ all of it.`,
		} {
			assertSeries(t, text, line)
		}
		if !strings.HasSuffix(text, "\n# EOF\n") {
			t.Errorf("got no end in\n%s", text)
		}
	})
}

// TestValues checks that values are exported as they are.
func TestValues(t *testing.T) {
	for _, v := range []float64{0, 1, -1, 0.1, 1e21, 1.5e-9, 12345678, 2 << 52, math.Inf(1), math.Inf(-1), math.NaN()} {
		bubble.Test(t, func(t *testing.T) {
			d := newScrapeFixture(1)
			d.watts = v
			text := scrape(t, newHandler(New(d.sources(), Options{})))
			found := regexp.MustCompile(`(?m)^nvidia_gpu_power_watts\{.*\} (\S+)$`).FindStringSubmatch(text)
			if found == nil {
				t.Fatalf("%v: no sample in\n%s", v, text)
			}
			if got, err := strconv.ParseFloat(found[1], 64); err != nil || got != v && !(math.IsNaN(got) && math.IsNaN(v)) {
				t.Errorf("%v: got %s", v, found[1])
			}
		})
	}
}

// TestInvalidMetrics checks that a scrape has all other metrics if one is invalid, and any text of a driver or a pod.
func TestInvalidMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.statuses[0].Model = "model\xff"
		d.allocate("GPU-0=te\"am/po\nd\xff/c\\")
		registry := prometheus.NewRegistry()
		good := prometheus.NewGauge(prometheus.GaugeOpts{Name: "good", Help: "Good."})
		registry.MustRegister(good, invalidCollector{prometheus.NewDesc("bad", "Bad.", nil, nil)})
		var log bytes.Buffer
		h := New(d.sources(), Options{}).Handler(HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for _, format := range []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0} {
			text := scrape(t, h, "Accept", string(format))
			for _, series := range []string{
				`nvidia_gpu_healthy{container="c\\",gpu="0",mig_uuid="",namespace="te\"am",pod="po\nd�",uuid="GPU-0"} 1`,
				`nvidia_gpu_info{container="",gpu="0",mig_uuid="",minor="0",model="model�",`,
				"good 0",
			} {
				if !strings.Contains(text, "\n"+series) {
					t.Errorf("%s: missing %s in\n%s", format, series, text)
				}
			}
			assertAbsent(t, text, "bad")
		}
		if !strings.Contains(log.String(), "bad value") {
			t.Errorf("got log %s", log.String())
		}
	})
}

// invalidCollector fails.
type invalidCollector struct{ desc *prometheus.Desc }

func (c invalidCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }
func (c invalidCollector) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.NewInvalidMetric(c.desc, errors.New("bad value"))
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

// TestStalledReader checks that clients that read nothing are disconnected after ten seconds, and delay no other scrape
// up to the limit.
func TestStalledReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHandler(New(newScrapeFixture(1).sources(), Options{}))
		began := time.Now()
		var stalled sync.WaitGroup
		stall := func() {
			h.ServeHTTP(&stalledWriter{ResponseRecorder: httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		}
		for range maxConcurrentScrapes - 1 {
			stalled.Go(stall)
		}
		synctest.Wait()
		scrape(t, h)
		stalled.Go(stall)
		synctest.Wait()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		if got := time.Since(began); w.Code != http.StatusServiceUnavailable || got != 0 {
			t.Errorf("at the limit: got %d after %s", w.Code, got)
		}
		stalled.Wait()
		if got := time.Since(began); got != scrapeWriteTimeout {
			t.Errorf("got disconnected after %s, want %s", got, scrapeWriteTimeout)
		}
		scrape(t, h)
	})
}
