package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

// runningWatcher is a Watcher in a bubble.
type runningWatcher struct {
	*Watcher
	t        *testing.T
	settings pubsub.Value[Settings]
	reload   chan os.Signal
	log      testlog.Buffer
}

// watch runs a test with a Watcher that reads the file config of a folder.
func watch(t *testing.T, dir string, env map[string]string, test func(w *runningWatcher), args ...string) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := newTestBuilder(t, env, append(args, "--config-file="+filepath.Join(dir, "config"))...)
		first, err := b.Load()
		require.NoError(t, err)
		w := &runningWatcher{t: t, reload: make(chan os.Signal)}
		w.Watcher = NewWatcher(b, first, WatcherOptions{Settings: &w.settings, Reload: w.reload, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
		defer background.Run(t, w.Run)()
		test(w)
	})
}

// polls waits until the watcher has read the file n times.
func (w *runningWatcher) polls(n int) {
	time.Sleep(time.Duration(n) * time.Second)
	synctest.Wait()
}

// check checks the published MIG strategy, and the log lines since the last check.
func (w *runningWatcher) check(what, mig string, logged ...string) {
	w.t.Helper()
	if s, _ := w.settings.Get(); s.MIGStrategy != mig {
		w.t.Errorf("%s: got MIG strategy %s, want %s", what, s.MIGStrategy, mig)
	}
	lines := strings.FieldsFunc(w.log.Take(), func(r rune) bool { return r == '\n' })
	ok := len(lines) == len(logged)
	for i := 0; ok && i < len(lines); i++ {
		ok = strings.Contains(lines[i], logged[i])
	}
	if !ok {
		w.t.Errorf("%s: got log %q, want %q", what, lines, logged)
	}
}

// mountConfigMap mounts or replaces a ConfigMap as the kubelet does. Names and texts of the files alternate.
func mountConfigMap(t testing.TB, dir string, files ...string) {
	t.Helper()
	data, err := os.MkdirTemp(dir, "..2026_")
	require.NoError(t, err)
	for i := 0; i < len(files); i += 2 {
		os.WriteFile(filepath.Join(data, files[i]), []byte(files[i+1]), 0o644)
		os.Symlink("..data/"+files[i], filepath.Join(dir, files[i])) // fails if the link exists
	}
	require.NoError(t, os.Symlink(filepath.Base(data), filepath.Join(dir, "..tmp")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
}

func migConfig(mig string) string { return "version: v1\nflags: {migStrategy: " + mig + "}\n" }

func TestWatchFollowsAConfigMap(t *testing.T) {
	dir := t.TempDir()
	mountConfigMap(t, dir, "config", migConfig("single"))
	watch(t, dir, nil, func(w *runningWatcher) {
		w.polls(1)
		w.check("without a change", MIGSingle)
		var changed <-chan struct{}
		for _, step := range []struct {
			text, mig   string
			logged      []string
			unknownKeys int
		}{
			{migConfig("mixed"), MIGMixed, []string{"config changed"}, 0},
			{"# a comment\n" + migConfig("mixed"), MIGMixed, nil, 0},
			{migConfig("mixed") + "newer: 1\n", MIGMixed, []string{
				`level=WARN msg="unknown config key ignored" key=newer file=` + dir + `/config line=3 hint="valid keys are flags, imex,`,
			}, 1},
			{migConfig("odd"), MIGMixed, []string{"config rejected, keeping the previous settings"}, 1},
			{migConfig("strange"), MIGMixed, []string{`strange\": expected none`}, 1},
			{"", MIGMixed, []string{"no such file"}, 1},
			{migConfig("mixed"), MIGMixed, nil, 0},
		} {
			if step.text == "" {
				mountConfigMap(t, dir)
			} else {
				mountConfigMap(t, dir, "config", step.text)
			}
			w.polls(3)
			w.check(step.text, step.mig, step.logged...)
			expect.Equal(t, w.UnknownKeys(), step.unknownKeys, step.text, "unknown keys")
			if changed == nil {
				_, changed = w.settings.Get()
			}
		}
		if pubsub.IsClosed(changed) {
			t.Error("got a publication without a change")
		}
	})
}

// TestWatchRejectsAnotherDriverRoot checks that a new driver root is rejected. NVML remains loaded from the old root; CDI
// specs would differ.
func TestWatchRejectsAnotherDriverRoot(t *testing.T) {
	root := func(mig, root string) string {
		return "version: v1\nflags:\n  migStrategy: " + mig + "\n  nvidiaDriverRoot: " + root + "\n"
	}
	dir := writeFiles(t, "config", root("none", "/run/nvidia/driver"))
	watch(t, dir, nil, func(w *runningWatcher) {
		for _, c := range []struct{ text, mig, wantLog string }{
			{
				root("mixed", "/opt/driver"), MIGNone,
				`changed from [\"/run/nvidia/driver\" \"/driver-root\"] to [\"/opt/driver\" \"/driver-root\"]: restart podgauge`,
			},
			{"version: v1\n", MIGNone, `to [\"/\" \"/driver-root\"]`},
			{
				root("mixed", "/run/nvidia/driver") + "  plugin: {containerDriverRoot: /mnt}\n", MIGNone,
				`to [\"/run/nvidia/driver\" \"/mnt\"]`,
			},
			{root("mixed", "/run/nvidia/driver"), MIGMixed, "config changed"},
		} {
			os.WriteFile(filepath.Join(dir, "config"), []byte(c.text), 0o644)
			w.polls(3)
			w.check(c.text, c.mig, c.wantLog)
			if s, _ := w.settings.Get(); s.DriverRoot != "/run/nvidia/driver" || s.DevRoot != "/run/nvidia/driver" {
				t.Errorf("%s: got driver root %s and dev root %s, want the first ones", c.text, s.DriverRoot, s.DevRoot)
			}
		}
	})
}

// TestWatchDebounces checks that a change is applied when two polls read it, or at once on request.
func TestWatchDebounces(t *testing.T) {
	dir := writeFiles(t, "config", migConfig("none"))
	watch(t, dir, nil, func(w *runningWatcher) {
		write := func(text string) { os.WriteFile(filepath.Join(dir, "config"), []byte(text), 0o644) }
		reload := func() {
			w.reload <- syscall.SIGHUP
			synctest.Wait()
		}
		write("version: v1\nfl") // an incomplete write
		w.polls(1)
		write(migConfig("mixed"))
		w.polls(1)
		w.check("written in place", MIGNone)
		w.polls(1)
		w.check("write finished", MIGMixed, "config changed")

		os.Remove(filepath.Join(dir, "config")) // NVIDIA's config-manager replaces a link by removing it first
		w.polls(1)
		write(migConfig("single"))
		w.polls(2)
		w.check("replaced", MIGSingle, "config changed")

		write(migConfig("none"))
		reload()
		w.check("reload", MIGNone, "config changed")
		reload()
		w.check("reload without a change", MIGNone)

		write("flags: odd\n")
		reload()
		w.polls(1)
		reload()
		w.check("two reloads of an invalid file", MIGNone, "rejected", "rejected")
	})
}

// TestWatchFollowsALabel checks that the watcher follows the label in a file, to a config of a file or of a ConfigMap.
func TestWatchFollowsALabel(t *testing.T) {
	file := writeFiles(t, "config", "version: v1\nconfigs: {default: {}, a: {flags: {migStrategy: single}}, b: {flags: {migStrategy: mixed}}}")
	folder := t.TempDir()
	os.Mkdir(filepath.Join(folder, "config"), 0o755)
	mountConfigMap(t, filepath.Join(folder, "config"), "default", migConfig("none"), "a", migConfig("single"), "b", migConfig("mixed"))
	for _, dir := range []string{file, folder} {
		label := filepath.Join(dir, "label")
		watch(t, dir, map[string]string{"CONFIG_NAME_FILE": label}, func(w *runningWatcher) {
			w.check("no label yet", MIGNone)
			for _, c := range []struct{ label, mig, logged string }{
				{"a\n", MIGSingle, "config=a"},
				{"b", MIGMixed, "config=b"},
				{"c", MIGMixed, "valid names are a, b, default"}, // an unknown name is skipped
				{"", MIGNone, "config=default"},
			} {
				os.WriteFile(label, []byte(c.label), 0o644)
				w.polls(2)
				w.check("label "+c.label, c.mig, c.logged)
			}
		})
	}
}

// TestWatchKeepsFlags checks that flags and variables override a new file, and that the policy of an Xid follows the file.
func TestWatchKeepsFlags(t *testing.T) {
	dir := writeFiles(t, "config", migConfig("none"))
	env := map[string]string{"GDS_ENABLED": "true", "DP_DISABLE_HEALTHCHECKS": "48"}
	watch(t, dir, env, func(w *runningWatcher) {
		os.WriteFile(filepath.Join(dir, "config"), []byte("version: v1\nflags: {migStrategy: mixed, gdsEnabled: false, mofedEnabled: true, "+
			"useNodeFeatureAPI: true}\npodgauge: {xids: {31: unhealthy}}\n"), 0o644)
		w.polls(2)
		w.check("changed", MIGSingle, "config changed", "useNodeFeatureAPI")
		s, _ := w.settings.Get()
		if !s.GDS || !s.MOFED || s.Health.Policy(31).Policy != device.PolicyUnhealthy || s.Health.Policy(48).Policy != device.PolicyWarn {
			t.Errorf("got %+v, want GDS, MOFED, and the policies of the Xids", s)
		}
	}, "--mig-strategy=single")
}
