package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// getPath returns the status and the text of a response.
func (w *testApp) getPath(path string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
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

// TestProbes checks liveness, which depends on neither driver nor kubelet, and readiness: each component has started or has an error.
func TestProbes(t *testing.T) {
	w := newTestApp(t, 2)
	w.waitRegistered()
	waitUntil(t, "/readyz returns ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
	if code, text := w.getPath("/"); code != http.StatusOK || !strings.Contains(text, "/metrics") {
		t.Errorf("/: got %d %q", code, text)
	}
	for _, path := range []string{"/debug/pprof/", "/nothing"} {
		if code, _ := w.getPath(path); code != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, code)
		}
	}
	w.machine.HangAll()
	w.stopKubelet()
	w.waitLine("podgauge_kubelet_up", " 0")
	w.waitLine(`nvidia_gpu_stalled{container="",gpu="0"`, " 1")
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := w.getPath(path); code != http.StatusOK {
			t.Errorf("%s without driver and kubelet: got %d %q", path, code, text)
		}
	}
	w.machine.ReleaseHangs()
	w.startKubelet()
}

// TestPostIsRejected checks that no served resource can be modified.
func TestPostIsRejected(t *testing.T) {
	w := newTestApp(t, 1)
	resp, err := http.Post(w.url+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: got %d", resp.StatusCode)
	}
}
