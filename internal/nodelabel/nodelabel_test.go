package nodelabel_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/nodelabel"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is the maximum wait for an event that takes milliseconds.
const testTimeout = 20 * time.Second

func newWatcher(t *testing.T, s *apiserver.Server) *nodelabel.LabelWatcher {
	t.Helper()
	return &nodelabel.LabelWatcher{
		Node: &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/nodes", FieldSelector: "metadata.name=a"},
		Key:  "config", File: filepath.Join(t.TempDir(), "config-name"), Default: "standard", Log: slog.New(slog.DiscardHandler),
	}
}

func content(w *nodelabel.LabelWatcher) string {
	data, _ := os.ReadFile(w.File) // missing: empty
	return strings.TrimSpace(string(data))
}

func TestLoad(t *testing.T) {
	s := apiserver.Start(t)
	w := newWatcher(t, s)
	if err := w.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "no such node") || content(w) != "standard" {
		t.Errorf("without the node: got %v, %q", err, content(w))
	}
	s.SetNodeLabels("a", map[string]string{"other": "x"})
	if err := w.Load(t.Context()); err != nil || content(w) != "standard" {
		t.Errorf("without the label: got %v, %q", err, content(w))
	}
	s.SetNodeLabels("a", map[string]string{"config": "shared"})
	if err := w.Load(t.Context()); err != nil || content(w) != "shared" {
		t.Errorf("with the label: got %v, %q", err, content(w))
	}
	s.Stop()
	if err := w.Load(t.Context()); err == nil || content(w) != "shared" {
		t.Errorf("in an outage: got %v, %q", err, content(w))
	}
}

// TestMissingNode checks that a node unknown to the API server is logged once, after any number of requests.
func TestMissingNode(t *testing.T) {
	s := apiserver.Start(t)
	w := newWatcher(t, s)
	var log strings.Builder
	w.Log = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for end := time.Now().Add(testTimeout); len(s.Requests()) < 3 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := len(s.Requests()); n < 3 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "no such node") {
		t.Errorf("got %d requests, log: %s", n, log.String())
	}
}

func TestRun(t *testing.T) {
	s := apiserver.Start(t)
	w := newWatcher(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	wait := func(want string) {
		t.Helper()
		for end := time.Now().Add(testTimeout); content(w) != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("content: got %q, want %q", content(w), want)
			}
		}
	}
	s.SetNodeLabels("a", map[string]string{"config": "one"})
	wait("one")
	s.SetNodeLabels("a", map[string]string{"config": "two"})
	wait("two")
	s.Stop()
	s.SetNodeLabels("a", nil)
	s.Resume()
	wait("standard")
	if err := w.Alive(); err != nil {
		t.Error(err)
	}
}
