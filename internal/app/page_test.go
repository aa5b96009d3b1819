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

// What differs on the page from run to run: how long ago things were, and the names of what
// it is made of, which follow from their contents.
var (
	moments = regexp.MustCompile(`<time [^>]*>[^<]*</time>`)
	hashes  = regexp.MustCompile(`(static/\w+)\.[0-9a-f]{12}\.`)
)

// page is what a browser gets, without what differs from run to run.
func (w *world) page() []byte {
	w.t.Helper()
	code, text := w.status("/")
	if code != http.StatusOK {
		w.t.Fatalf("/: %d %s", code, text)
	}
	text = moments.ReplaceAllString(text, "<time></time>")
	text = hashes.ReplaceAllString(text, "$1.")
	if w.kubelet != nil {
		text = strings.ReplaceAll(text, w.kubelet.Dir(), "/kubelet")
	}
	return []byte(text)
}

// showsPage waits for a page that is the golden file of a state.
func (w *world) showsPage(state string) {
	w.t.Helper()
	file := filepath.Join("testdata", state+".html")
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	if *update {
		page := w.page()
		for same, end := time.Now(), time.Now().Add(deadline); time.Since(same) < 3*time.Second && time.Now().Before(end); <-poll.C {
			if next := w.page(); !bytes.Equal(next, page) {
				page, same = next, time.Now()
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
	got := w.page()
	for end := time.Now().Add(deadline); !bytes.Equal(got, want) && time.Now().Before(end); <-poll.C {
		got = w.page()
	}
	if !bytes.Equal(got, want) {
		w.t.Errorf("the page of %s differs from %s; if that is meant, run make golden:\n%s", state, file, difference(string(want), string(got)))
	}
}

// TestPageAtRoot: where the metrics are at /, there is no page and the rest is where it was.
func TestPageAtRoot(t *testing.T) {
	w := newWorld(t, 1, "--web.telemetry-path=/")
	if code, text := w.status("/"); code != http.StatusOK || !strings.Contains(text, "\npodgauge_nvml_up ") {
		t.Errorf("/: %d %.200s", code, text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/api/v1/devices": 200, "/metrics": 404, "/static/": 404} {
		if code, _ := w.status(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}
