// Package openmetrics checks podgauge's metrics, rules and dashboards with Prometheus' parsers and engine. The separate module keeps
// Prometheus out of podgauge's go.sum.
package openmetrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

const waitTimeout = 30 * time.Second

// allMetricFlags enable all metrics.
var allMetricFlags = []string{"--metrics.set=full", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*"}

// TestOpenMetrics parses a scrape of the binary on a simulated node with all metrics.
func TestOpenMetrics(t *testing.T) {
	binary := os.Getenv("PODGAUGE_BIN")
	if binary == "" {
		binary = "../../../bin/podgauge-sim"
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("no binary: run make build (%v)", err)
	}
	url := startPodgauge(t, binary)
	scrape(t, url, "podgauge_resource_device_info{")
	body, contentType := scrape(t, url, `label_app_kubernetes_io_name="`)
	if !strings.HasPrefix(contentType, "application/openmetrics-text") {
		t.Fatalf("content type: got %s, want OpenMetrics", contentType)
	}
	families, series := parse(t, body)
	if families < 150 || series < 2500 {
		t.Errorf("got %d families and %d series of a node with 8 GPUs, want at least 150 and 2500:\n%s", families, series, body)
	}
	for _, family := range []string{"nvidia_gpu_nvlink_link_errors_total{", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER{", "podgauge_resource_device_info{"} {
		if !strings.Contains(string(body), "\n"+family) {
			t.Errorf("no series %s…}", family)
		}
	}
}

// startPodgauge starts podgauge and returns the URL of its metrics.
func startPodgauge(t *testing.T, binary string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	podgauge := exec.Command(binary, append(allMetricFlags, "--web.listen-address="+address, "--log.level=error")...)
	podgauge.Stderr = os.Stderr
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := podgauge.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(podgauge.Process.Signal(syscall.SIGTERM), podgauge.Wait()); err != nil {
			t.Errorf("stop podgauge: %v", err)
		}
	})
	return "http://" + address + "/metrics"
}

// scrape scrapes until the response contains a text.
func scrape(t *testing.T, url, want string) (body []byte, contentType string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for ; ; <-poll.C {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		response, err := http.DefaultClient.Do(r)
		if ctx.Err() != nil {
			t.Fatalf("timeout after %s: no scrape has %s", waitTimeout, want)
		}
		if err != nil {
			continue // podgauge is starting
		}
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && strings.Contains(string(body), want) {
			return body, response.Header.Get("Content-Type")
		}
	}
}

// parse returns the numbers of families and series. It fails the test for invalid OpenMetrics, such as a missing end.
func parse(t *testing.T, body []byte) (families, series int) {
	t.Helper()
	p := textparse.NewOpenMetricsParser(body, labels.NewSymbolTable())
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return families, series
		case err != nil:
			t.Fatalf("after %d series: %v\n%s", series, err, body)
		case entry == textparse.EntryType:
			families++
		case entry == textparse.EntrySeries:
			series++
		}
	}
}
