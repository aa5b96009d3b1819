package app_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// Patterns of elements that differ between runs: times, and the lines of the last half hour.
var (
	timeElements = regexp.MustCompile(`<time [^>]*>[^<]*</time>`)
	sparklines   = regexp.MustCompile(`(?s)<svg class="past" .*?</svg>`)
)

// getPage returns the status page without values that differ between runs.
func (w *testApp) getPage() string {
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
	return text
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
			if next := w.getPage(); next != page {
				page, lastChange = next, time.Now()
			}
		}
		require.NoError(w.t, os.WriteFile(file, []byte(page), 0o644))
	}
	got, want := w.getPage(), testfile.Read(w.t, file)
	for end := time.Now().Add(waitTimeout); got != want && time.Now().Before(end); <-poll.C {
		got = w.getPage()
	}
	if got != want {
		w.t.Errorf("the page of %s differs from %s; if intended, run make golden:\n%s", state, file, diffLines(want, got))
	}
}
