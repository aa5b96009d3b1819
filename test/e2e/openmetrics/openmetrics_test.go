// Package openmetrics checks podgauge's metrics, rules and dashboards with Prometheus' parsers and engine. The separate module keeps
// Prometheus out of podgauge's go.sum.
package openmetrics

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql/parser"

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

// ownedFamilies returns the families with owner labels. Their series begin and end with pods.
func ownedFamilies(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{"nvidia_gpu_healthy": true, "nvidia_gpu_allocated": true, "nvidia_gpu_unhealthy_info": true}
	for _, f := range documentedFamilies(t) {
		all[f.name] = all[f.name] || f.isReading && (f.kind == "gauge" || f.kind == "owner-counter")
	}
	if !all["nvidia_gpu_throttle_active"] || !all["nvidia_gpu_energy_joules_total"] || all["nvidia_gpu_pcie_replays_total"] || all["nvidia_gpu_pcie_link_width"] {
		t.Fatalf("docs/reference/metrics.md: wrong families: %v", all)
	}
	return all
}

// aggregationOf has the aggregation that combines a function's values of the owners to the value of the device. A mean has none,
// because it is a sum divided by a count.
var aggregationOf = map[string]parser.ItemType{
	"rate": parser.SUM, "irate": parser.SUM, "increase": parser.SUM, "sum_over_time": parser.SUM, "count_over_time": parser.SUM,
	"max_over_time": parser.MAX, "last_over_time": parser.MAX, "min_over_time": parser.MIN, "avg_over_time": -1,
}

// unaggregatedSelectors returns the range functions of an expression that are not combined over the owners of a device first.
func unaggregatedSelectors(families map[string]bool, text string) (wrong []string) {
	expr, err := promQL.ParseExpr(text)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		selector, ok := n.(*parser.MatrixSelector)
		if !ok || !families[selector.VectorSelector.(*parser.VectorSelector).Name] {
			return nil
		}
		call := path[len(path)-1].(*parser.Call)
		for _, outer := range slices.Backward(path) {
			a, ok := outer.(*parser.AggregateExpr)
			if !ok || a.Op == parser.TOPK || a.Op == parser.BOTTOMK { // these keep each owner's series
				continue
			}
			if want, known := aggregationOf[call.Func.Name]; !a.Without && !slices.Contains(a.Grouping, "pod") && (!known || a.Op != want) {
				wrong = append(wrong, a.Op.String()+" over owners of "+call.String())
			}
			break
		}
		return nil
	})
	return wrong
}

// TestOwnersAreAggregatedFirst checks that alerts, recording rules and dashboards combine all owners of a device in a time range.
func TestOwnersAreAggregatedFirst(t *testing.T) {
	families := ownedFamilies(t)
	check := func(location, expr string) {
		for _, wrong := range unaggregatedSelectors(families, expr) {
			t.Errorf("%s: %s", location, wrong)
		}
	}
	for _, r := range alertRules(t) {
		check(r.Alert, r.Expr)
	}
	for _, r := range recordingRules(t) {
		check(r.Record, r.Expr)
	}
	for name, b := range readDashboards(t) {
		for _, q := range b.targets() {
			check(name+": "+q.title, strings.NewReplacer("$__range", "6h", "$__rate_interval", "2m", "$__interval", "1h", "$price_per_kwh", "1").Replace(q.Expr))
		}
	}
	const invalid = `max by (uuid) (rate(nvidia_gpu_throttle_seconds_total[10m])) > 0.1`
	if len(unaggregatedSelectors(families, invalid)) == 0 {
		t.Errorf("%s: got no error", invalid)
	}
}
