package config

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
)

// testWatcher is a Watcher that the test polls.
type testWatcher struct {
	*Watcher
	t        *testing.T
	settings pubsub.Value[Settings]
	log      *lockedBuffer
}

func newTestWatcher(t *testing.T, reload <-chan os.Signal, env map[string]string, args ...string) *testWatcher {
	t.Helper()
	b := newTestBuilder(t, env, args...)
	first, err := b.Load()
	if err != nil {
		t.Fatal(err)
	}
	w := &testWatcher{t: t, log: &lockedBuffer{}}
	w.Watcher = NewWatcher(b, first, WatcherOptions{Settings: &w.settings, Reload: reload, Log: slog.New(slog.NewTextHandler(w.log, nil))})
	return w
}

func (w *testWatcher) pollTimes(n int) {
	for range n {
		w.poll(false)
	}
}

// check checks the published MIG strategy, and the log lines since the last
// check.
func (w *testWatcher) check(what, mig string, logged ...string) {
	w.t.Helper()
	if s, _ := w.settings.Get(); s.MIGStrategy != mig {
		w.t.Errorf("%s: got MIG strategy %s, want %s", what, s.MIGStrategy, mig)
	}
	got := w.log.take()
	if len(got) != len(logged) {
		w.t.Errorf("%s: got log %q, want %q", what, got, logged)
		return
	}
	for i := range got {
		if !strings.Contains(got[i], logged[i]) {
			w.t.Errorf("%s: got log %q, want %q", what, got[i], logged[i])
		}
	}
}

// lockedBuffer is a log buffer.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSuffix(l.b.String(), "\n")
	l.b.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func migConfig(mig string) string { return "version: v1\nflags: {migStrategy: " + mig + "}\n" }

func TestWatchFollowsAConfigMap(t *testing.T) {
	dir := newConfigMap(t, "config", migConfig("single"))
	w := newTestWatcher(t, nil, nil, "--config-file="+filepath.Join(dir, "config"))
	w.pollTimes(1)
	w.check("without a change", MIGSingle)

	_, changed := w.settings.Get()
	updateConfigMap(t, dir, "config", migConfig("mixed"))
	w.pollTimes(2)
	<-changed
	w.check("changed", MIGMixed, "config changed")

	_, changed = w.settings.Get()
	updateConfigMap(t, dir, "config", "# a comment\n"+migConfig("mixed"))
	w.pollTimes(2)
	w.check("changed comment", MIGMixed)

	updateConfigMap(t, dir, "config", migConfig("mixed")+"newer: 1\n")
	w.pollTimes(2)
	w.check("a key of a newer version", MIGMixed, "unknown config key ignored")
	if n := w.UnknownKeys(); n != 1 {
		t.Errorf("got %d unknown keys, want 1", n)
	}

	updateConfigMap(t, dir, "config", migConfig("odd"))
	w.pollTimes(3)
	w.check("invalid", MIGMixed, "config rejected, keeping the previous settings")
	updateConfigMap(t, dir, "config", migConfig("strange"))
	w.pollTimes(3)
	w.check("another invalid file", MIGMixed, `strange\": expected none`)
	updateConfigMap(t, dir)
	w.pollTimes(3)
	w.check("file removed", MIGMixed, "no such file")
	updateConfigMap(t, dir, "config", migConfig("mixed"))
	w.pollTimes(3)
	w.check("valid file again", MIGMixed)
	if n := w.UnknownKeys(); n != 0 {
		t.Errorf("got %d unknown keys, want 0", n)
	}
	select {
	case <-changed:
		t.Error("got a publication without a change")
	default:
	}
}

// TestWatchRejectsAnotherDriverRoot checks that a new driver root is rejected.
// NVML remains loaded from the old root; CDI specs would differ.
func TestWatchRejectsAnotherDriverRoot(t *testing.T) {
	root := func(mig, root string) string {
		return "version: v1\nflags:\n  migStrategy: " + mig + "\n  nvidiaDriverRoot: " + root + "\n"
	}
	dir := newConfigMap(t, "config", root("none", "/run/nvidia/driver"))
	file := filepath.Join(dir, "config")
	w := newTestWatcher(t, nil, nil, "--config-file="+file)
	for _, c := range []struct{ what, text, mig, wantLog string }{
		{
			"moved", root("mixed", "/opt/driver"), MIGNone,
			`changed from [\"/run/nvidia/driver\" \"/driver-root\"] to [\"/opt/driver\" \"/driver-root\"]: restart ` +
				`podgauge`,
		},
		{"removed", "version: v1\n", MIGNone, `to [\"/\" \"/driver-root\"]`},
		{
			"container root moved", root("mixed", "/run/nvidia/driver") + "  plugin: {containerDriverRoot: /mnt}\n",
			MIGNone, `to [\"/run/nvidia/driver\" \"/mnt\"]`,
		},
		{"root as before", root("mixed", "/run/nvidia/driver"), MIGMixed, "config changed"},
	} {
		updateConfigMap(t, dir, "config", c.text)
		w.pollTimes(3)
		w.check(c.what, c.mig, c.wantLog)
		if s, _ := w.settings.Get(); s.DriverRoot != "/run/nvidia/driver" || s.DevRoot != "/run/nvidia/driver" {
			t.Errorf("%s: got driver root %s and dev root %s, want the first ones", c.what, s.DriverRoot, s.DevRoot)
		}
	}
}

// TestWatchDebounces checks that a change is applied when two polls read it, or
// at once on request. The test makes each poll.
func TestWatchDebounces(t *testing.T) {
	file := writeTemp(t, "config", migConfig("none"))
	w := newTestWatcher(t, nil, nil, "--config-file="+file)
	write := func(text string) { os.WriteFile(file, []byte(text), 0o644) }

	write("version: v1\nfl") // an incomplete write
	w.poll(false)
	write(migConfig("mixed"))
	w.poll(false)
	w.check("written in place", MIGNone)
	w.poll(false)
	w.check("write finished", MIGMixed, "config changed")

	os.Remove(file) // NVIDIA's config-manager replaces a link by removing it first
	w.poll(false)
	write(migConfig("single"))
	w.poll(false)
	w.poll(false)
	w.check("replaced", MIGSingle, "config changed")

	write("version: v1\nfl") // temporarily
	w.poll(false)
	write(migConfig("single"))
	w.poll(false)
	w.poll(false)
	w.check("valid file again", MIGSingle)

	write(migConfig("none"))
	w.poll(true)
	w.check("reload", MIGNone, "config changed")
	w.poll(true)
	w.check("reload without a change", MIGNone)

	write("flags: odd\n")
	w.poll(true)
	w.poll(false)
	w.poll(true)
	w.check("two reloads of an invalid file", MIGNone, "rejected", "rejected")
}

// TestWatchRun checks that Run follows the file, and that a reload signal reads
// the file at once.
func TestWatchRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		file, reload := writeTemp(t, "config", migConfig("none")), make(chan os.Signal)
		w := newTestWatcher(t, reload, nil, "--config-file="+file)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }() // ends with stop
		os.WriteFile(file, []byte(migConfig("mixed")), 0o644)
		reload <- syscall.SIGHUP
		synctest.Wait()
		w.check("reload", MIGMixed, "config changed")
		os.WriteFile(file, []byte(migConfig("single")), 0o644)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		w.check("poll", MIGSingle, "config changed")
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWatchFollowsALabel checks that the watcher follows the label in a file.
func TestWatchFollowsALabel(t *testing.T) {
	dir := writeDir(t, "default", migConfig("none"), "a", migConfig("single"), "b", migConfig("mixed"))
	file := writeTemp(t, "config", "version: v1\nconfigs: {default: {}, a: {flags: {migStrategy: single}}, b: "+
		"{flags: {migStrategy: mixed}}}")
	for _, configs := range []string{dir, file} {
		label := filepath.Join(t.TempDir(), "label")
		w := newTestWatcher(t, nil, map[string]string{"CONFIG_FILE": configs, "CONFIG_NAME_FILE": label})
		w.check("no label yet", MIGNone)
		for _, c := range []struct{ label, mig, logged string }{
			{"a\n", MIGSingle, "config=a"},
			{"b", MIGMixed, "config=b"},
			{"c", MIGMixed, "valid names are a, b, default"}, // an unknown name is skipped
			{"", MIGNone, "config=default"},
		} {
			os.WriteFile(label, []byte(c.label), 0o644)
			w.pollTimes(2)
			w.check("label "+c.label, c.mig, c.logged)
		}
	}
}

// TestWatchKeepsFlags checks that flags and variables override a new file.
func TestWatchKeepsFlags(t *testing.T) {
	file := writeTemp(t, "config", migConfig("none"))
	w := newTestWatcher(t, nil, map[string]string{"GDS_ENABLED": "true"}, "--config-file="+file,
		"--mig-strategy=single")
	os.WriteFile(file, []byte("version: v1\nflags: {migStrategy: mixed, gdsEnabled: false, mofedEnabled: true, "+
		"useNodeFeatureAPI: true}\n"), 0o644)
	w.pollTimes(2)
	w.check("changed", MIGSingle, "config changed", "useNodeFeatureAPI")
	if s, _ := w.settings.Get(); !s.GDS || !s.MOFED {
		t.Errorf("got %+v, want GDS and MOFED from the flags", s)
	}
}

// TestWatchWithoutAFile checks that polls without a file do nothing.
func TestWatchWithoutAFile(t *testing.T) {
	w := newTestWatcher(t, nil, nil)
	w.pollTimes(3)
	w.poll(true)
	w.check("no file", MIGNone)
}

// TestWatchPolicies checks that the policy of an Xid follows the file.
func TestWatchPolicies(t *testing.T) {
	path := writeTemp(t, "config.yaml", "version: v1\npodgauge: {xids: {31: warn}}\n")
	w := newTestWatcher(t, nil, map[string]string{"DP_DISABLE_HEALTHCHECKS": "48"}, "--config-file="+path)
	for _, step := range []struct {
		file   string
		logged string
		want   device.Policy
	}{
		{"version: v1\npodgauge: {xids: {31: unhealthy}}\n", "config changed", device.PolicyUnhealthy},
		{
			"version: v1\npodgauge: {xids: {31: Unhealthy}}\n", `expected ignore, warn or unhealthy`,
			device.PolicyUnhealthy,
		},
		{"version: v1\npodgauge: {xids: {31: ignore}}\n", "config changed", device.PolicyIgnore},
		{"version: v1\n", "config changed", device.PolicyDefault},
	} {
		if err := os.WriteFile(path, []byte(step.file), 0o600); err != nil {
			t.Fatal(err)
		}
		w.pollTimes(2)
		w.check(step.file, MIGNone, step.logged)
		s, _ := w.settings.Get()
		if got, listed := s.Health.Policy(31), s.Health.Policy(48); got != step.want || listed != device.PolicyWarn {
			t.Errorf("%s: got %v, want %v; and %v for the variable's Xid", step.file, got, step.want, listed)
		}
	}
}
