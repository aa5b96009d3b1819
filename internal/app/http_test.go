package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// status asks for a path and returns the answer's status and text.
func (w *world) status(path string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// TestProbes: a process is alive whatever the driver and the kubelet do, and
// ready when each part has got somewhere, or has said why it cannot.
func TestProbes(t *testing.T) {
	w := newWorld(t, 2)
	w.untilRegistered()
	until(t, "/readyz answers ok", func() bool { code, _ := w.status("/readyz"); return code == http.StatusOK })
	if code, text := w.status("/"); code != http.StatusOK || !strings.Contains(text, "/metrics") {
		t.Errorf("/: %d %q", code, text)
	}
	for _, path := range []string{"/debug/pprof/", "/nothing"} {
		if code, _ := w.status(path); code != http.StatusNotFound {
			t.Errorf("%s: %d, want nothing there", path, code)
		}
	}
	w.machine.Wedge()
	w.stopKubelet()
	w.until("podgauge_kubelet_up", " 0")
	w.until(`nvidia_gpu_stalled{container="",gpu="0"`, " 1")
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := w.status(path); code != http.StatusOK {
			t.Errorf("%s without driver and kubelet: %d %q", path, code, text)
		}
	}
	w.machine.Release()
	w.startKubelet()
}

// TestPostIsRefused: nothing that is served can be changed.
func TestPostIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	answer, err := http.Post(w.url+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", answer.StatusCode)
	}
}
