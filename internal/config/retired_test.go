package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

const (
	retiredGPU  = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
	retiredNote = "retired: [{device: " + retiredGPU + ", reason: noisy fan"
)

func TestParseRetired(t *testing.T) {
	for file, want := range map[string]string{
		"":                                     "",
		"# none\n":                             "",
		"retired:\n":                           "",
		"retired: []\n":                        "",
		retiredNote + "}]\n":                   "",
		retiredNote + ", by: x}]\n":            "",
		retiredNote + ", date: 2026-11-20}]\n": "",
		retiredNote + ", date: \"2026-11-20T10:00:00+01:00\"}]\n": "",
		"retired: [{device: 0324018045603, reason: RMA}]\n":       "",
		"{}":                                  "",
		"retired: 5\n":                        "line 1: cannot unmarshal !!int `5` into []config.Retirement",
		"- device: x\n":                       "cannot unmarshal !!seq",
		"retired: [3]\n":                      "cannot unmarshal !!int `3` into config.Retirement",
		"retire: []\n":                        "line 1: field retire not found",
		"retired: [{devices: x}]\n":           "line 1: field devices not found",
		"retired: [{reason: x}]\n":            `entry 1: device "": expected a UUID`,
		"retired: [{device: 3, reason: x}]\n": `entry 1: device "3": expected a UUID`,
		"retired: [{device: \"0:1\", reason: x}]\n":                                        `entry 1: device "0:1": expected a UUID`,
		"retired: [{device: " + retiredGPU + "}]\n":                                        "entry 1: reason: expected one line",
		"retired: [{device: 0324018045603, reason: x}, {}]\n":                              "entry 2: device",
		"retired: [{device: 0324018045603, reason: \"a\\nb\"}]":                            "entry 1: reason: expected one line",
		"retired: [{device: 0324018045603, reason: \"" + strings.Repeat("x", 257) + "\"}]": "at most 256 bytes",
		retiredNote + ", by: \"\\x1b\"}]\n":                                                "entry 1: by: expected one line",
		retiredNote + ", date: yesterday}]\n":                                              `entry 1: date "yesterday": expected YYYY-MM-DD`,
		"retired: &a [*a]\n":                                                               "contains itself",
		"retired: []\n---\nretired: []\n":                                                  "expected one document",
		"retired: [\n":                                                                     "did not find expected",
		strings.Repeat("#", maxFileBytes+1) + "\n":                                         "more than 128 KiB",
	} {
		_, err := ParseRetired(file)
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%.80q: got error %v, want %q", file, err, want)
		}
	}
}

// FuzzParseRetired checks that an accepted file is the same after it is written, and that errors are one line.
func FuzzParseRetired(f *testing.F) {
	for _, seed := range []string{"", "retired:\n- device: 0324018045603\n  reason: RMA\n  by: x\n  date: 2026-11-20\n", "retired: [{}]", "a: &a [*a]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file string) {
		first, err := ParseRetired(file)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("got error %q", err)
			}
			return
		}
		second, err := ParseRetired(first.String())
		if err != nil || second.String() != first.String() || len(second.devices()) > len(first.Retired) {
			t.Errorf("got %v, %+v, want %+v", err, second, first)
		}
	})
}

// TestWatchRetired checks that the list follows its ConfigMap, and that an invalid file changes nothing.
func TestWatchRetired(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var retired pubsub.Value[device.Retirements]
		var log testlog.Buffer
		seen := 0 // of the log
		replace := func(content string) { mountConfigMap(t, dir, RetiredFile, content) }
		replace("retired: 5\n")
		w := NewRetiredWatcher(filepath.Join(dir, RetiredFile), &retired, log.Logger())
		defer background.Run(t, w.Run)()
		check := func(step, want, logged string) {
			t.Helper()
			time.Sleep(2100 * time.Millisecond)
			synctest.Wait()
			devices, _ := retired.Get()
			got := "unknown"
			if devices != nil {
				r, _ := devices.Of("none", strings.ToUpper(retiredGPU))
				got = r.Note
			}
			lines := log.String()[seen:]
			seen += len(lines)
			if got != want || strings.Count(lines, "\n") > 1 || !strings.Contains(lines, logged) {
				t.Errorf("%s: got %q, log %s", step, got, lines)
			}
		}
		check("invalid at start", "unknown", "level=ERROR")
		replace("retired: [{device: 0324018045603}]\n")
		check("no valid entry", "unknown", "entry 1: reason")
		replace(retiredNote + "}, {device: 3, reason: x}]\n")
		check("a valid entry", "noisy fan", "entry 2: device")
		if devices, _ := retired.Get(); len(devices) != 2 || devices[device.IncompleteList].Note != "" {
			t.Errorf("a valid entry: got %v, want the mark of an incomplete list", devices)
		}
		replace(retiredNote + "}]\n")
		check("valid", "noisy fan", "devices=1")
		replace("# a comment\n" + retiredNote + "}]\n")
		check("the same list", "noisy fan", "")
		replace(retiredNote + ", by: alice, date: 2026-11-20T10:00:00Z}, {device: " + retiredGPU + ", reason: later}]\n")
		check("changed", "noisy fan (alice, 2026-11-20)", "devices=1")
		replace("retired: 5\n")
		check("invalid", "noisy fan (alice, 2026-11-20)", "keeping the previous list")
		check("still invalid", "noisy fan (alice, 2026-11-20)", "")
		require.NoError(t, os.Remove(filepath.Join(dir, RetiredFile)))
		time.Sleep(missingPeriod - 10*time.Second)
		check("removed", "noisy fan (alice, 2026-11-20)", "")
		replace("# recreated\n" + retiredNote + "}]\n")
		check("recreated", "noisy fan", "devices=1")
		require.NoError(t, os.Remove(filepath.Join(dir, RetiredFile)))
		time.Sleep(missingPeriod - 10*time.Second)
		check("removed again", "noisy fan", "")
		time.Sleep(10 * time.Second)
		check("removed for long", "", "devices=0")
	})
}

// TestRetiredFileMissingAtStart checks that saved retirements stay for a while, and that an empty file is a list.
func TestRetiredFileMissingAtStart(t *testing.T) {
	for _, isEmpty := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			var retired pubsub.Value[device.Retirements]
			dir := t.TempDir()
			w := NewRetiredWatcher(filepath.Join(dir, RetiredFile), &retired, slog.New(slog.DiscardHandler))
			defer background.Run(t, w.Run)()
			time.Sleep(missingPeriod - time.Second)
			if devices, _ := retired.Get(); devices != nil {
				t.Errorf("missing: got %v, want an unknown list", devices)
			}
			if isEmpty {
				mountConfigMap(t, dir, RetiredFile, "")
			}
			time.Sleep(4 * time.Second)
			if devices, _ := retired.Get(); devices == nil || len(devices) > 0 {
				t.Errorf("missing for long, or empty: got %v, want an empty list", devices)
			}
		})
	}
}

// TestRetiredPage checks that the list in docs/how-to/retire.md is valid.
func TestRetiredPage(t *testing.T) {
	_, list, _ := strings.Cut(testfile.Read(t, "../../docs/how-to/retire.md"), "  retired.yaml: |\n")
	list, _, _ = strings.Cut(list, "```")
	r, err := ParseRetired(strings.ReplaceAll("\n"+list, "\n    ", "\n"))
	if err != nil || len(r.Retired) != 1 || r.Retired[0].By != "alice" || r.Retired[0].Since().IsZero() {
		t.Errorf("got %+v, %v", r, err)
	}
}
