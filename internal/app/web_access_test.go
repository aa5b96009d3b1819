package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/sim"
)

// getAs requests a path with a Host header.
func (w *testApp) getAs(host, path string, header ...string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = host
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestForeignHosts checks that a page whose DNS name leads to podgauge (DNS rebinding) reads nothing, and that Prometheus, kubectl
// port-forward and the kubelet's probes get answers.
func TestForeignHosts(t *testing.T) {
	w := newTestApp(t, 1, "--web.allowed-hosts=gpu.example.com,other.example.com")
	w.waitRegistered()
	for host, status := range map[string]int{
		"127.0.0.1:9400": 200, "[fd00::1]:9400": 200, "10.0.0.7": 200, "[fd00::1]": 200, "localhost:9400": 200, "": 200,
		"node-a:9400": 200, "podgauge": 200, "podgauge.podgauge.svc:9400": 200, "10-0-0-7.podgauge.gpus.svc.cluster.local": 200,
		"podgauge.podgauge.svc.cluster.local.": 200, "ip-10-0-0-7.ec2.internal": 200, "GPU.example.com:443": 200, "other.example.com": 200,
		"podgauge.gpus:9400": 200, "gpu-1.corp": 200, "podgauge.gpus.svc.k8s.corp": 200,
		"evil.com:9400": 403, "gpu.example.com.evil.net": 403, "x.gpu.example.com": 403, "127.0.0.1.evil.com": 403, "svc.evil.com": 403,
		"podgauge.podgauge.svc.evil.com:9400": 403, "podgauge.dev:9400": 403, "evil.github.io": 403, "evil.co.uk.": 403, "EVIL.COM": 403, "dev": 200,
	} {
		for _, path := range []string{"/", "/metrics", "/api/v1/devices", "/api/v1/incidents", "/assets/none"} {
			want := status
			if path == "/assets/none" && status == 200 {
				want = 404
			}
			code, text := w.getAs(host, path)
			if code != want {
				t.Errorf("%s %s: got status %d, want %d", host, path, code, want)
			}
			if code == 403 && (!strings.Contains(text, "--web.allowed-hosts") || strings.Count(text, "\n") != 1 || strings.Contains(text, "GPU-")) {
				t.Errorf("%s %s: got %q", host, path, text)
			}
		}
		for _, probe := range []string{"/healthz", "/readyz"} {
			if code, text := w.getAs(host, probe); code == 403 {
				t.Errorf("%s %s: got status %d, %s", host, probe, code, text)
			}
		}
	}
	// The API server's proxy passes the Host of kubectl podgauge, which is the API server's. Scripts of pages cannot set Sec- headers.
	if code, _ := w.getAs("api.cluster.example.com", "/api/v1/devices", "Sec-Fetch-Site: none"); code != http.StatusOK {
		t.Errorf("kubectl podgauge: got status %d", code)
	}
	if code, _ := w.getAs("evil.com", "/api/v1/devices", "Sec-Fetch-Site: same-origin"); code != http.StatusForbidden {
		t.Errorf("script of a page: got status %d", code)
	}
}

// TestNodeNameIsAllowed checks that the node's name may have any domain.
func TestNodeNameIsAllowed(t *testing.T) {
	o, err := parseOptions(testPlatform{}, nil, func(name string) (string, bool) { return "gpu-1.example.com", name == "NODE_NAME" })
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(o.web.access.restrict(http.NotFoundHandler(), "/metrics"))
	defer server.Close()
	w := &testApp{t: t, url: server.URL}
	for host, want := range map[string]int{"gpu-1.example.com:9400": 404, "gpu-2.example.com:9400": 403} {
		if code, _ := w.getAs(host, "/"); code != want {
			t.Errorf("%s: got status %d, want %d", host, code, want)
		}
	}
}

// TestMetricsOnly checks that only metrics and probes are served on the network, and that commands on the node still work.
func TestMetricsOnly(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)}, "--web.metrics-only", "--web.enable-pprof")
	w.waitRegistered()
	waitUntil(t, "podgauge is ready", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
	for path, want := range map[string]int{
		"/metrics": 200, "/healthz": 200, "/readyz": 200,
		"/": 404, "/api/v1/devices": 404, "/api/v1/incidents": 404, "/api/v1/allocations": 404, "/debug/pprof/": 404, "/metrics/": 404, "//api/v1/devices": 404,
	} {
		if code, text := w.getPath(path); code != want || code == 404 && strings.Contains(text, "GPU") {
			t.Errorf("%s: got status %d, want %d: %.80s", path, code, want, text)
		}
	}
	for _, command := range []string{"status", "incidents"} {
		if out, errs, status := runCLI(t, command, "--state-dir="+dir); status != cli.ExitOK || errs != "" {
			t.Errorf("%s: got status %d, %s%s", command, status, out, errs)
		}
	}
}

// TestAllowedHostsFlag checks that a wrong name is rejected at start.
func TestAllowedHostsFlag(t *testing.T) {
	for _, name := range []string{"https://gpu.example.com", "gpu.example.com:9400", "*.example.com", "a b"} {
		_, errs, status := runCLI(t, "--web.allowed-hosts="+name)
		if status != cli.ExitUsage || !strings.Contains(errs, `--web.allowed-hosts "`+name+`": expected a host name`) {
			t.Errorf("%s: got status %d, %s", name, status, errs)
		}
	}
}
