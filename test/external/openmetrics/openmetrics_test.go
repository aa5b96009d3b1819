// Package openmetrics has Prometheus' own parser read what podgauge writes. It is
// a module of its own, so that Prometheus stays out of podgauge's go.sum.
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

// allMetricFlags is what is shown only when it is asked for.
var allMetricFlags = []string{"--metrics.set=full", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*"}

// TestOpenMetrics runs the binary on a simulated node, with everything on, and parses a
// scrape.
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
		t.Fatalf("asked for OpenMetrics, got %s", contentType)
	}
	families, series := parse(t, body)
	if families < 150 || series < 2500 {
		t.Errorf("%d families and %d series of a node with 8 GPUs:\n%s", families, series, body)
	}
	for _, family := range []string{"nvidia_gpu_nvlink_link_errors_total{", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER{", "podgauge_resource_device_info{"} {
		if !strings.Contains(string(body), "\n"+family) {
			t.Errorf("there is no %s…}", family)
		}
	}
}

// startPodgauge runs podgauge and returns its metrics' address.
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
			t.Errorf("podgauge ended: %v", err)
		}
	})
	return "http://" + address + "/metrics"
}

// scrape asks until the answer has what is wanted.
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
		answer, err := http.DefaultClient.Do(r)
		if ctx.Err() != nil {
			t.Fatalf("no scrape had %s within %s", want, waitTimeout)
		}
		if err != nil {
			continue // it has only just started
		}
		body, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		if err == nil && strings.Contains(string(body), want) {
			return body, answer.Header.Get("Content-Type")
		}
	}
}

// parse counts families and series. The parser stops at what is not OpenMetrics,
// the missing end included.
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
