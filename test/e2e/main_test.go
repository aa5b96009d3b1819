// Package e2e tests podgauge on a real node, with unmodified kubelet, containerd and Prometheus.
//
// Each test function starts a node with startNode, waits for conditions with await, and cleans up.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// libraryDir is the folder of the stand-in for the NVML library.
var libraryDir string

func TestMain(m *testing.M) {
	status, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		status = 1
	}
	os.Exit(status)
}

func runTests(m *testing.M) (status int, err error) {
	// Fail if the machine cannot run the tests: skipped tests look like passed tests.
	if err := node.CheckRequirements(node.Options{}); err != nil {
		return 0, err
	}
	logf := func(format string, values ...any) { fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", values...) }
	run, err := node.LockRun(context.Background(), logf)
	if err != nil {
		return 0, err
	}
	defer run.Close()
	if libraryDir, err = os.MkdirTemp("", "podgauge-e2e-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(libraryDir)
	if _, err := nvmltest.Build(libraryDir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// servePlugin runs a plugin with these devices until end is called, or until the end of the test. The endpoint is the file name of the socket.
func servePlugin(t *testing.T, n *node.RealNode, endpoint, resource string, devices ...*pluginapi.Device) (end func()) {
	t.Helper()
	p := deviceplugin.Start(t, filepath.Dir(n.DevicePluginSocket()), endpoint, deviceplugin.Behavior{}, devices...)
	must(t, p.Register(t.Context(), resource))
	return p.Stop
}

// printMeasurement logs a measurement for docs/contributing/e2e.md.
func printMeasurement(t *testing.T, name, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", name, value)
}

// measureDurations logs durations with their limit. The test fails if a duration is longer than the limit times node.Tolerance.
func measureDurations(t *testing.T, name string, limit time.Duration, durations ...time.Duration) {
	t.Helper()
	slices.Sort(durations)
	longest := durations[len(durations)-1]
	value := formatSeconds(longest)
	if len(durations) > 1 {
		value = fmt.Sprintf("p50 %s, max %s (n=%d)", formatSeconds(durations[len(durations)/2]), formatSeconds(longest), len(durations))
	}
	value += "; limit " + formatSeconds(limit)
	if longest > limit {
		value += ": EXCEEDED"
	}
	printMeasurement(t, name, value)
	if longest > limit*node.Tolerance() {
		t.Errorf("%s: got %s, want at most %s", name, formatSeconds(longest), formatSeconds(limit*node.Tolerance()))
	}
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.4f s", d.Seconds()) }

const prometheusPort = 9090

// startPrometheus starts a server that scrapes podgauge twice a second. As with service discovery, the target's labels name podgauge's own
// pod; honor_labels prefers the scraped labels.
func startPrometheus(t *testing.T, n *node.RealNode) *node.PrometheusServer {
	t.Helper()
	target := map[string]any{
		"targets": []string{fmt.Sprintf("127.0.0.1:%d", defaultPort)},
		"labels":  map[string]string{"namespace": "podgauge", "pod": "podgauge", "container": "podgauge"},
	}
	job := map[string]any{
		"job_name": "podgauge", "honor_labels": true, "static_configs": []any{target},
		"scrape_interval": "500ms", "scrape_timeout": "500ms", // a timeout longer than the interval is rejected
	}
	config, err := json.Marshal(map[string]any{"scrape_configs": []any{job}}) // JSON is YAML
	must(t, err)
	file := n.Path("conf", "prometheus.yml")
	must(t, os.WriteFile(file, config, 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err = n.Start(ctx, "prometheus", []string{
		"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + n.Path("prometheus"),
		fmt.Sprintf("--web.listen-address=0.0.0.0:%d", prometheusPort),
		"--scrape.discovery-reload-interval=100ms", // otherwise the first scrape may be delayed by 5 s
	}, func(ctx context.Context) error { return node.GetJSON(ctx, n.URL(prometheusPort)+"/-/ready", nil) })
	must(t, err)
	server, err := node.ConnectPrometheus(n.URL(prometheusPort))
	must(t, err)
	return server
}

// waitTimeout limits waits for conditions that usually take a second or two. measureDurations checks the actual limits.
var waitTimeout = max(30*time.Second, node.Tolerance()*8*time.Second)

// must ends the test after an error.
func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

// await calls try until it returns nil, at most for waitTimeout, and returns the time that this took.
func await(t *testing.T, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(t, waitTimeout, condition, try)
}

// awaitWithin is await with another timeout.
func awaitWithin(t *testing.T, timeout time.Duration, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, node.Until(ctx, condition, try))
	return time.Since(begin)
}

// waitUntil waits until a time.
func waitUntil(t *testing.T, end time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(end)):
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
}
