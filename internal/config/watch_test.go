package config

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched is a Watch that runs, and that looks when it is told to.
type watched struct {
	*Watch
	t     *testing.T
	tick  chan time.Time
	again chan struct{}
	log   *lines
}

func watching(t *testing.T, env map[string]string, args ...string) *watched {
	t.Helper()
	b := builder(t, env, args...)
	first, err := b.Load()
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, tick: make(chan time.Time), again: make(chan struct{}), log: &lines{}}
	w.Watch = NewWatch(b, first, WatchOptions{Tick: w.tick, Again: w.again, Log: slog.New(slog.NewTextHandler(w.log, nil))})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }() // ends with the test
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// ticks has it look n times. Nobody receives a tick before the last look is over,
// so one more says that it is; that one looks too, and sees nothing new.
func (w *watched) ticks(n int) {
	for range n + 1 {
		w.tick <- time.Time{}
	}
}

// expects says what is published, and what was logged since the last time.
func (w *watched) expects(what, mig string, logged ...string) {
	w.t.Helper()
	if s, _ := w.Look(); s.MIGStrategy != mig {
		w.t.Errorf("%s: MIG strategy %s, want %s", what, s.MIGStrategy, mig)
	}
	got := w.log.take()
	if len(got) != len(logged) {
		w.t.Errorf("%s: logged %q, want %q", what, got, logged)
		return
	}
	for i := range got {
		if !strings.Contains(got[i], logged[i]) {
			w.t.Errorf("%s: logged %q, want %q", what, got[i], logged[i])
		}
	}
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSuffix(l.b.String(), "\n")
	l.b.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func strategy(mig string) string { return "version: v1\nflags: {migStrategy: " + mig + "}\n" }

func TestWatchFollowsAConfigMap(t *testing.T) {
	dir := configMap(t, "config", strategy("single"))
	w := watching(t, nil, "--config-file="+filepath.Join(dir, "config"))
	w.ticks(1)
	w.expects("nothing happened", MIGSingle)

	_, changed := w.Look()
	remount(t, dir, "config", strategy("mixed"))
	w.ticks(2)
	<-changed
	w.expects("changed", MIGMixed, "config changed")

	_, changed = w.Look()
	remount(t, dir, "config", "# a comment\n"+strategy("mixed"))
	w.ticks(2)
	w.expects("changed, and means the same", MIGMixed)

	remount(t, dir, "config", strategy("mixed")+"newer: 1\n")
	w.ticks(2)
	w.expects("a key of a newer version", MIGMixed, "unknown configuration key ignored")
	if n := w.UnknownKeys(); n != 1 {
		t.Errorf("%d unknown keys", n)
	}

	remount(t, dir, "config", strategy("odd"))
	w.ticks(3)
	w.expects("invalid", MIGMixed, "config refused; the old one stands")
	remount(t, dir, "config", strategy("strange"))
	w.ticks(3)
	w.expects("invalid otherwise", MIGMixed, `strange\": want none`)
	remount(t, dir)
	w.ticks(3)
	w.expects("gone", MIGMixed, "no such file")
	remount(t, dir, "config", strategy("mixed"))
	w.ticks(3)
	w.expects("as it was", MIGMixed, "valid again")
	if n := w.UnknownKeys(); n != 0 {
		t.Errorf("%d unknown keys", n)
	}
	select {
	case <-changed:
		t.Error("published although nothing changed")
	default:
	}
}

// TestWatchRejectsAnotherDriverRoot: NVML would stay where it was, and CDI specs would be of another driver.
func TestWatchRejectsAnotherDriverRoot(t *testing.T) {
	root := func(mig, root string) string {
		return "version: v1\nflags:\n  migStrategy: " + mig + "\n  nvidiaDriverRoot: " + root + "\n"
	}
	dir := configMap(t, "config", root("none", "/run/nvidia/driver"))
	file := filepath.Join(dir, "config")
	w := watching(t, nil, "--config-file="+file)
	for _, c := range []struct{ what, text, mig, says string }{
		{"moved", root("mixed", "/opt/driver"), MIGNone, file + `:4: flags.nvidiaDriverRoot: changed from \"/run/nvidia/driver\" to \"/opt/driver\": restart podgauge for it to take effect`},
		{"removed", "version: v1\n", MIGNone, `err="flags.nvidiaDriverRoot: changed from \"/run/nvidia/driver\" to \"/\"`},
		{"moved here", root("mixed", "/run/nvidia/driver") + "  plugin: {containerDriverRoot: /mnt}\n", MIGNone, file + `:5: flags.plugin.containerDriverRoot: changed from \"/driver-root\" to \"/mnt\"`},
		{"as it was", root("mixed", "/run/nvidia/driver"), MIGMixed, "config changed"},
	} {
		remount(t, dir, "config", c.text)
		w.ticks(3)
		w.expects(c.what, c.mig, c.says)
		if s, _ := w.Look(); s.DriverRoot != "/run/nvidia/driver" || s.DevRoot != "/run/nvidia/driver" {
			t.Errorf("%s: the driver is in %s, its nodes in %s", c.what, s.DriverRoot, s.DevRoot)
		}
	}
}

// TestWatchSeesTwice: a change is taken when it was seen twice, or at once when
// that is asked for. Here each look is the test's own.
func TestWatchSeesTwice(t *testing.T) {
	file := inFile(t, "config", strategy("none"))
	b := builder(t, nil, "--config-file="+file)
	first, err := b.Load()
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, log: &lines{}}
	w.Watch = NewWatch(b, first, WatchOptions{Log: slog.New(slog.NewTextHandler(w.log, nil))})
	w.source = Source{File: file}
	write := func(text string) { os.WriteFile(file, []byte(text), 0o644) }

	write("version: v1\nfl") // half of it is there
	w.look(false)
	write(strategy("mixed"))
	w.look(false)
	w.expects("written in place", MIGNone)
	w.look(false)
	w.expects("and finished", MIGMixed, "config changed")

	os.Remove(file) // NVIDIA's config-manager removes a link to make it anew
	w.look(false)
	write(strategy("single"))
	w.look(false)
	w.look(false)
	w.expects("replaced", MIGSingle, "config changed")

	write("version: v1\nfl") // for a moment
	w.look(false)
	write(strategy("single"))
	w.look(false)
	w.look(false)
	w.expects("as it was", MIGSingle)

	write(strategy("none"))
	w.look(true)
	w.expects("at once", MIGNone, "config changed")
	w.look(true)
	w.expects("at once, nothing changed", MIGNone)

	write("flags: odd\n")
	w.look(true)
	w.look(false)
	w.look(true)
	w.expects("invalid, and asked twice", MIGNone, "refused", "refused")
}

// TestWatchAnswersSIGHUP, or whatever else asks for a look.
func TestWatchAnswersSIGHUP(t *testing.T) {
	file := inFile(t, "config", strategy("none"))
	w := watching(t, nil, "--config-file="+file)
	_, changed := w.Look()
	os.WriteFile(file, []byte(strategy("mixed")), 0o644)
	w.again <- struct{}{}
	<-changed
	w.ticks(0)
	w.expects("at once", MIGMixed, "config changed")
}

// TestWatchFollowsALabel, through a file in which its writer puts it.
func TestWatchFollowsALabel(t *testing.T) {
	dir := folder(t, "default", strategy("none"), "a", strategy("single"), "b", strategy("mixed"))
	label := filepath.Join(t.TempDir(), "label")
	w := watching(t, map[string]string{"CONFIG_FILE": dir, "CONFIG_NAME_FILE": label})
	w.expects("no label yet", MIGNone)
	for _, c := range []struct{ label, mig, logged string }{
		{"a\n", MIGSingle, "config=a"},
		{"b", MIGMixed, "config=b"},
		{"c", MIGMixed, "there are a, b, default"}, // an unknown one is skipped
		{"", MIGNone, "config=default"},
	} {
		os.WriteFile(label, []byte(c.label), 0o644)
		w.ticks(2)
		w.expects("label "+c.label, c.mig, c.logged)
	}
}

// TestWatchKeepsFlags: what was given as a flag or a variable beats a new file.
func TestWatchKeepsFlags(t *testing.T) {
	file := inFile(t, "config", strategy("none"))
	w := watching(t, map[string]string{"GDS_ENABLED": "true"}, "--config-file="+file, "--mig-strategy=single")
	os.WriteFile(file, []byte("version: v1\nflags: {migStrategy: mixed, gdsEnabled: false, mofedEnabled: true, useNodeFeatureAPI: true}\n"), 0o644)
	w.ticks(2)
	w.expects("changed", MIGSingle, "config changed", "useNodeFeatureAPI")
	if s, _ := w.Look(); !s.GDS || !s.MOFED {
		t.Errorf("%+v", s)
	}
}

// TestWatchWithoutAFile has nothing to do, also on its own clock.
func TestWatchWithoutAFile(t *testing.T) {
	b := builder(t, nil)
	first, err := b.Load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := NewWatch(b, first, WatchOptions{Log: slog.Default()}).Run(ctx); err != nil {
		t.Error(err)
	}
	w := watching(t, nil)
	w.ticks(3)
	w.again <- struct{}{}
	w.ticks(0)
	w.expects("no file", MIGNone)
}

// TestWatchPolicies: what becomes of an Xid follows the file.
func TestWatchPolicies(t *testing.T) {
	path := inFile(t, "config.yaml", "version: v1\npodgauge: {xids: {31: warn}}\n")
	w := watching(t, map[string]string{"DP_DISABLE_HEALTHCHECKS": "48"}, "--config-file="+path)
	for _, step := range []struct {
		file   string
		logged string
		want   Policy
	}{
		{"version: v1\npodgauge: {xids: {31: unhealthy}}\n", "config changed", Unhealthy},
		{"version: v1\npodgauge: {xids: {31: Unhealthy}}\n", `want ignore, warn or unhealthy`, Unhealthy},
		{"version: v1\npodgauge: {xids: {31: ignore}}\n", "config changed", Ignore},
		{"version: v1\n", "config changed", Default},
	} {
		if err := os.WriteFile(path, []byte(step.file), 0o600); err != nil {
			t.Fatal(err)
		}
		w.ticks(2)
		w.expects(step.file, MIGNone, step.logged)
		s, _ := w.Look()
		if got, listed := s.Health.Policy(31), s.Health.Policy(48); got != step.want || listed != Warn {
			t.Errorf("%s: %v, want %v; and %v of the variable's", step.file, got, step.want, listed)
		}
	}
}
