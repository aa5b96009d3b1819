package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/bubble"
)

// waitReady waits until /readyz succeeds.
func (w *testApp) waitReady() {
	w.t.Helper()
	waitUntil(w.t, "/readyz returns ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
}

// waitNotReady waits until /readyz fails with a line for this check that contains a text.
func (w *testApp) waitNotReady(check, want string) {
	w.t.Helper()
	waitUntil(w.t, fmt.Sprintf("/readyz fails with %s: …%s…", check, want), func() (found bool) {
		code, body := w.getPath("/readyz")
		for line := range strings.Lines(body) {
			found = found || strings.HasPrefix(line, check+": ") && strings.Contains(line, want)
		}
		return found && code == http.StatusServiceUnavailable
	})
}

// TestNewProcessIsNotReadyWithoutKnownGPUs checks that a new process is ready only with the GPUs of the state folder, and of
// --expected-gpus.
func TestNewProcessIsNotReadyWithoutKnownGPUs(t *testing.T) {
	second := func(m *sim.Machine) string { return string(m.GPUs()[1]) }
	for name, c := range map[string]struct {
		args        []string
		prepare     func(w *testApp, dir string) // the first process
		change      func(m *sim.Machine)         // between the processes
		renamed     bool                         // the second GPU had another UUID in the first process
		check, want string                       // of /readyz; empty: ready
	}{
		"no change":             {change: func(*sim.Machine) {}},
		"unhealthy GPU":         {change: func(m *sim.Machine) { m.Fail(m.AllocatableIDs()[1], "lost") }},
		"driver without GPUs":   {change: func(m *sim.Machine) { m.RemoveGPU(m.AllocatableIDs()[0]); m.RemoveGPU(m.AllocatableIDs()[1]) }, check: "devices", want: "2 known GPUs missing: GPU 0 ("},
		"a GPU is missing":      {change: func(m *sim.Machine) { m.RemoveGPU(m.AllocatableIDs()[1]) }, check: "devices", want: "SECOND"},
		"no driver":             {change: func(m *sim.Machine) { m.SetDriverError(errors.New("no libnvidia-ml.so.1")) }, check: "driver", want: "no libnvidia-ml.so.1"},
		"another GPU instead":   {change: func(*sim.Machine) {}, renamed: true},
		"expected GPUs missing": {args: []string{"--expected-gpus=3"}, change: func(*sim.Machine) {}, check: "devices", want: "1 of 3 expected GPUs"},
		"an excluded GPU":       {args: []string{"--exclude-devices=SECOND"}, change: func(m *sim.Machine) { m.RemoveGPU(m.AllocatableIDs()[1]) }},
		"a retired GPU": {prepare: func(w *testApp, dir string) {
			if status, out, errs := w.device(dir, "retire", "1", "--reason=slow"); status != 0 {
				w.t.Errorf("got %d, %q, %q", status, out, errs)
			}
		}, change: func(m *sim.Machine) { m.RemoveGPU(m.AllocatableIDs()[1]) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir, machine := shortDir(t), newMachine(sim.H100, sim.H100)
			for i := range c.args {
				c.args[i] = strings.ReplaceAll(c.args[i], "SECOND", second(machine))
			}
			if !t.Run("first process", func(t *testing.T) {
				w := startWithSocketIn(t, dir, testSetup{machine: machine})
				w.waitRegistered()
				w.waitReady()
				if c.prepare != nil {
					c.prepare(w, dir)
				}
			}) {
				return
			}
			c.change(machine)
			if file := filepath.Join(dir, state.FileName); c.renamed {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				renamed := strings.ReplaceAll(string(content), second(machine), "GPU-fedc")
				if err := os.WriteFile(file, []byte(renamed), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w := startWithSocketIn(t, dir, testSetup{machine: machine}, c.args...)
			if c.check == "" {
				w.waitReady()
				w.waitLine(`podgauge_ready{check="devices"}`, " 1")
				return
			}
			w.waitNotReady(c.check, strings.ReplaceAll(c.want, "SECOND", second(machine)))
			w.waitLine(fmt.Sprintf("podgauge_ready{check=%q}", c.check), " 0")
			machine.SetDriverError(nil)
			if c.check == "driver" {
				w.waitReady()
			}
		})
	}
}

// TestNodeWithoutGPUsIsReady checks that a node that never had GPUs is ready without a driver.
func TestNodeWithoutGPUsIsReady(t *testing.T) {
	machine := newMachine()
	machine.SetDriverError(errors.New("no libnvidia-ml.so.1"))
	w, _ := startWithSocket(t, testSetup{machine: machine})
	w.waitReady()
	if text := w.scrape("text/plain"); strings.Contains(text, "podgauge_ready{") && strings.Contains(text, "} 0\npodgauge_ready") {
		t.Errorf("got a failing check:\n%s", text)
	}
}

// TestNotReadyWithoutRegistration checks that a rejected registration makes a new process not ready, and a ready process only after
// --not-ready-after.
func TestNotReadyWithoutRegistration(t *testing.T) {
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.H100), rejectRegister: errors.New("no room")}, "--not-ready-after=2s")
	w.waitNotReady("plugin", "nvidia.com/gpu: register nvidia.com/gpu: rpc error: code = Unknown desc = no room")
	w.kubelet.SetFaults(kubelet.Faults{})
	w.waitReady()
	w.kubelet.SetFaults(kubelet.Faults{RegisterErr: errors.New("no more room")})
	w.kubelet.CutStreams(gpuResource)
	w.waitLine(`podgauge_plugin_streams{`, " 0")
	if code, body := w.getPath("/readyz"); code != http.StatusOK {
		t.Errorf("right after the end of the stream: got %d %q", code, body)
	}
	w.waitNotReady("plugin", "no more room")
	if code, body := w.getPath("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: got %d %q", code, body)
	}
	w.kubelet.SetFaults(kubelet.Faults{})
	w.waitReady()
}

// TestForget checks that a forgotten GPU is no longer known, also after a restart, and that only unlisted GPUs can be forgotten.
func TestForget(t *testing.T) {
	dir, machine := shortDir(t), newMachine(sim.H100, sim.H100)
	ids := machine.AllocatableIDs()
	t.Run("first process", func(t *testing.T) {
		w := startWithSocketIn(t, dir, testSetup{machine: machine})
		w.waitRegistered()
		if status, out, errs := w.device(dir, "forget", "1"); status != 1 || out != "" || !strings.Contains(errs, "the driver lists the GPU") {
			t.Errorf("a listed GPU: got %d, %q, %q", status, out, errs)
		}
	})
	machine.RemoveGPU(ids[1])
	t.Run("without the GPU", func(t *testing.T) {
		w := startWithSocketIn(t, dir, testSetup{machine: machine})
		w.waitNotReady("devices", string(ids[1]))
		if status, out, errs := w.device(dir, "forget", "GPU-none"); status != 1 || !strings.Contains(errs, string(ids[1])) {
			t.Errorf("an unknown GPU: got %d, %q, %q", status, out, errs)
		}
		want := fmt.Sprintf("GPU 1 (%s) is forgotten\n", ids[1])
		if status, out, errs := w.device(dir, "forget", string(ids[1])); status != 0 || out != want || errs != "" {
			t.Errorf("got %d, %q, %q, want %q", status, out, errs, want)
		}
		w.waitReady()
		gpu := fmt.Sprintf(`uuid="%s"} `, ids[1])
		w.waitScrape("no health of the GPU", func(text string) bool {
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "nvidia_gpu_healthy{") && strings.Contains(line, gpu) {
					return false
				}
			}
			return true
		})
	})
	w := startWithSocketIn(t, dir, testSetup{machine: machine})
	w.waitReady()
}

// TestReadinessTimes checks that a check counts at once in a new process, and later only after a time.
func TestReadinessTimes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var err error
		var log bytes.Buffer
		r := readiness{
			checks: map[string]func() error{"devices": func() error { return err }}, timeout: 5 * time.Minute,
			log: slog.New(slog.NewTextHandler(&log, nil)), failingSince: map[string]time.Time{}, logged: map[string]bool{},
		}
		missing := errors.New("missing")
		for i, s := range []struct {
			after time.Duration
			err   error
			ready bool
			lines int // of the log
		}{
			{0, missing, false, 0},
			{notReadyLogDelay, missing, false, 1},
			{time.Hour, missing, false, 1},
			{0, nil, true, 2},
			{time.Second, missing, true, 2},
			{5*time.Minute - time.Second, missing, true, 2},
			{time.Second, missing, false, 3},
			{time.Hour, missing, false, 3},
			{time.Second, nil, true, 4},
			{time.Hour, missing, true, 4},
		} {
			time.Sleep(s.after)
			err = s.err
			got, lines := r.failures()["devices"], strings.Count(log.String(), "\n")
			if (got == nil) != s.ready || lines != s.lines {
				t.Errorf("step %d: got %v and %d log lines, want ready %t and %d lines\n%s", i, got, lines, s.ready, s.lines, log.String())
			}
		}
	})
}
