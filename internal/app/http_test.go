package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// getPath asks for a path and returns the answer's status and text.
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

// TestProbes: the process is alive regardless of driver and kubelet, and ready when each component has started or has an error.
func TestProbes(t *testing.T) {
	w := newTestApp(t, 2)
	w.waitRegistered()
	waitUntil(t, "/readyz answers ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
	if code, text := w.getPath("/"); code != http.StatusOK || !strings.Contains(text, "/metrics") {
		t.Errorf("/: %d %q", code, text)
	}
	for _, path := range []string{"/debug/pprof/", "/nothing"} {
		if code, _ := w.getPath(path); code != http.StatusNotFound {
			t.Errorf("%s: %d, want nothing there", path, code)
		}
	}
	w.machine.HangAll()
	w.stopKubelet()
	w.waitLine("podgauge_kubelet_up", " 0")
	w.waitLine(`nvidia_gpu_stalled{container="",gpu="0"`, " 1")
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := w.getPath(path); code != http.StatusOK {
			t.Errorf("%s without driver and kubelet: %d %q", path, code, text)
		}
	}
	w.machine.ReleaseHangs()
	w.startKubelet()
}

// TestPostIsRejected: nothing that is served can be changed.
func TestPostIsRejected(t *testing.T) {
	w := newTestApp(t, 1)
	resp, err := http.Post(w.url+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", resp.StatusCode)
	}
}
