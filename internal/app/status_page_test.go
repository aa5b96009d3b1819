package app

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Patterns of elements that differ between runs: times, and the lines of the last half hour.
var (
	timeElements = regexp.MustCompile(`<time [^>]*>[^<]*</time>`)
	sparklines   = regexp.MustCompile(`(?s)<svg class="past" .*?</svg>`)
)

// getPage returns the status page without values that differ between runs.
func (w *testApp) getPage() []byte {
	w.t.Helper()
	code, text := w.getPath("/")
	if code != http.StatusOK {
		w.t.Fatalf("/: got %d %s", code, text)
	}
	text = timeElements.ReplaceAllString(text, "<time></time>")
	text = sparklines.ReplaceAllString(text, `<svg class="past"/>`)
	if w.kubelet != nil {
		text = strings.ReplaceAll(text, w.kubelet.Dir(), "/kubelet")
	}
	return []byte(text)
}

// checkPage waits until the page equals the golden file of a state.
func (w *testApp) checkPage(state string) {
	w.t.Helper()
	file := filepath.Join("testdata", state+".html")
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	if *update {
		page := w.getPage()
		for lastChange, end := time.Now(), time.Now().Add(waitTimeout); time.Since(lastChange) < 3*time.Second && time.Now().Before(end); <-poll.C {
			if next := w.getPage(); !bytes.Equal(next, page) {
				page, lastChange = next, time.Now()
			}
		}
		if err := os.WriteFile(file, page, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	got := w.getPage()
	for end := time.Now().Add(waitTimeout); !bytes.Equal(got, want) && time.Now().Before(end); <-poll.C {
		got = w.getPage()
	}
	if !bytes.Equal(got, want) {
		w.t.Errorf("the page of %s differs from %s; if intended, run make golden:\n%s", state, file, diffLines(string(want), string(got)))
	}
}

// TestPageAtRoot checks that the page is absent if metrics are at /, and that other paths do not change.
func TestPageAtRoot(t *testing.T) {
	w := newTestApp(t, 1, "--web.telemetry-path=/")
	if code, text := w.getPath("/"); code != http.StatusOK || !strings.Contains(text, "\npodgauge_nvml_up ") {
		t.Errorf("/: got %d %.200s", code, text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/api/v1/devices": 200, "/metrics": 404, "/static/": 404} {
		if code, _ := w.getPath(path); code != want {
			t.Errorf("%s: got %d, want %d", path, code, want)
		}
	}
}
