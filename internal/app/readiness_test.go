package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestProbes checks liveness, which depends on neither driver nor kubelet, and readiness of a process that was ready.
func TestProbes(t *testing.T) {
	t.Parallel()
	w := newTestApp(t, 2)
	w.waitRegistered()
	w.waitReady()
	for _, path := range []string{"/debug/pprof/", "/nothing"} {
		if code, _ := w.getPath(path); code != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, code)
		}
	}
	w.machine.HangAll()
	w.stopKubelet()
	w.waitLine("podgauge_kubelet_up", " 0")
	w.waitLine(`nvidia_gpu_stalled{container="",gpu="0"`, " 1")
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := w.getPath(path); code != http.StatusOK {
			t.Errorf("%s without driver and kubelet: got %d %q", path, code, text)
		}
	}
	w.machine.ReleaseHangs()
	w.startKubelet()
}

// TestNewProcessIsNotReadyWithoutKnownGPUs checks that a new process is ready only with the GPUs of the state folder,
// and of --expected-gpus.
func TestNewProcessIsNotReadyWithoutKnownGPUs(t *testing.T) {
	second := func(m *sim.Machine) string { return string(m.GPUs()[1]) }
	remove := func(gpus ...int) func(m *sim.Machine) {
		return func(m *sim.Machine) {
			ids := m.AllocatableIDs()
			for _, gpu := range gpus {
				m.RemoveGPU(ids[gpu])
			}
		}
	}
	noDriver := func(m *sim.Machine) { m.SetDriverError(errors.New("no libnvidia-ml.so.1")) }
	for name, c := range map[string]struct {
		args        []string
		retire      bool                 // the second GPU, in the first process
		change      func(m *sim.Machine) // between the processes
		renamed     bool                 // the second GPU had another UUID in the first process
		check, want string               // of /readyz; empty: ready
	}{
		"no change":             {},
		"unhealthy GPU":         {change: func(m *sim.Machine) { m.Fail(m.AllocatableIDs()[1], "lost") }},
		"driver without GPUs":   {change: remove(0, 1), check: "devices", want: "2 known GPUs missing: GPU 0 ("},
		"a GPU is missing":      {change: remove(1), check: "devices", want: "SECOND"},
		"no driver":             {change: noDriver, check: "driver", want: "no libnvidia-ml.so.1"},
		"another GPU instead":   {renamed: true},
		"expected GPUs missing": {args: []string{"--expected-gpus=3"}, check: "devices", want: "1 of 3 expected GPUs"},
		"an excluded GPU":       {args: []string{"--exclude-devices=SECOND"}, change: remove(1)},
		"a retired GPU":         {retire: true, change: remove(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, machine := program.ShortDir(t), newMachine(sim.H100, sim.H100)
			for i := range c.args {
				c.args[i] = strings.ReplaceAll(c.args[i], "SECOND", second(machine))
			}
			t.Run("first process", func(t *testing.T) {
				w := startWithSocketIn(t, dir, testSetup{machine: machine})
				w.waitRegistered()
				w.waitReady()
				if c.retire {
					w.device(dir, cli.ExitOK, "is retired", "", "retire", "1", "--reason=slow")
				}
			})
			if c.change != nil {
				c.change(machine)
			}
			if file := filepath.Join(dir, state.FileName); c.renamed {
				content := strings.ReplaceAll(testfile.Read(t, file), second(machine), "GPU-fedc")
				require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
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
	t.Parallel()
	machine := newMachine()
	machine.SetDriverError(errors.New("no libnvidia-ml.so.1"))
	newTestAppWith(t, testSetup{machine: machine}).waitReady()
}

// TestNotReadyWithoutRegistration checks that a rejected registration makes a new process not ready, and a ready
// process only after --not-ready-after.
func TestNotReadyWithoutRegistration(t *testing.T) {
	t.Parallel()
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

// TestForget checks that a forgotten GPU is no longer known, also after a restart, and that only unlisted GPUs can be
// forgotten.
func TestForget(t *testing.T) {
	t.Parallel()
	dir, machine := program.ShortDir(t), newMachine(sim.H100, sim.H100)
	ids := machine.AllocatableIDs()
	t.Run("first process", func(t *testing.T) {
		w := startWithSocketIn(t, dir, testSetup{machine: machine})
		w.waitRegistered()
		w.device(dir, cli.ExitError, "", "the driver lists the GPU", "forget", "1")
	})
	machine.RemoveGPU(ids[1])
	t.Run("without the GPU", func(t *testing.T) {
		w := startWithSocketIn(t, dir, testSetup{machine: machine})
		w.waitNotReady("devices", string(ids[1]))
		w.device(dir, cli.ExitError, "", string(ids[1]), "forget", "GPU-none")
		w.device(dir, cli.ExitOK, fmt.Sprintf("GPU 1 (%s) is forgotten\n", ids[1]), "", "forget", string(ids[1]))
		w.waitReady()
		w.waitScrape("no health of the GPU", func(text string) bool {
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "nvidia_gpu_healthy{") && strings.Contains(line, string(ids[1])) {
					return false
				}
			}
			return true
		})
	})
	startWithSocketIn(t, dir, testSetup{machine: machine}).waitReady()
}
