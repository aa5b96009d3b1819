// Package openmetrics checks podgauge's metrics, rules and dashboards with Prometheus' parsers and engine. The separate module keeps
// Prometheus out of podgauge's go.sum.
package openmetrics

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

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
	address := program.FreeAddress(t)
	podgauge := exec.Command(binary, append(allMetricFlags, "--web.listen-address="+address, "--log.level=error")...)
	podgauge.Stderr = os.Stderr
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	require.NoError(t, podgauge.Start())
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
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	client := http.Client{Timeout: 30 * time.Second}
	program.WaitUntil(t, "a scrape has "+want, func() bool {
		response, err := client.Do(request)
		if err != nil {
			return false // podgauge is starting
		}
		defer response.Body.Close()
		contentType = response.Header.Get("Content-Type")
		body, err = io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(body), want)
	})
	return body, contentType
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
