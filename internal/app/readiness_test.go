package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

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

// driverWithoutLibraries returns the flags of a folder with the device nodes of a simulated driver. CDI specs can be
// generated once show has added the libraries.
func driverWithoutLibraries(t *testing.T) (flags []string, show func()) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-fs0", "nvidia0"} {
		require.NoError(t, unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, 0)) // device number 0:0 needs no privileges
	}
	hidden := filepath.Join(root, "hidden")
	require.NoError(t, os.MkdirAll(hidden, 0o755))
	for _, name := range []string{"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"} {
		require.NoError(t, os.WriteFile(filepath.Join(hidden, name), nil, 0o755))
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "usr"), 0o755))
	show = func() { require.NoError(t, os.Rename(hidden, filepath.Join(root, "usr/lib64"))) }
	return []string{"--driver-root=/host", "--driver-root-ctr-path=" + root}, show
}

// allocateResponse returns the response of Allocate to the node's only pod, as the kubelet has stored it: its CDI
// classes, and the variables.
func (w *testApp) allocateResponse() (classes []string, envs map[string]string) {
	w.t.Helper()
	var stored struct {
		Data struct{ PodDeviceEntries []struct{ AllocResp []byte } }
	}
	text := testfile.Read(w.t, filepath.Join(w.dir, "device-plugins", "kubelet_internal_checkpoint"))
	if err := json.Unmarshal([]byte(text), &stored); err != nil || len(stored.Data.PodDeviceEntries) != 1 {
		w.t.Fatalf("checkpoint: %v, %s", err, text)
	}
	resp := &api.ContainerAllocateResponse{}
	require.NoError(w.t, proto.Unmarshal(stored.Data.PodDeviceEntries[0].AllocResp, resp))
	for _, d := range resp.CdiDevices {
		class, _, _ := strings.Cut(strings.TrimPrefix(d.Name, "k8s.device-plugin.nvidia.com/"), "=")
		classes = append(classes, class)
	}
	return classes, resp.Envs
}

// TestRegistrationWaitsForCDISpecs checks that Allocate responds with all CDI names: the kubelet keeps the first
// response. The specs remain after the end, as containers may restart, and the next process removes unneeded ones.
func TestRegistrationWaitsForCDISpecs(t *testing.T) {
	t.Parallel()
	flags, show := driverWithoutLibraries(t)
	dir := program.ShortDir(t)
	start := func(t *testing.T, strategy ...string) *testApp {
		return newTestAppWith(t, testSetup{machine: newMachine(sim.T4), dir: dir}, append(strategy, flags...)...)
	}
	wantSpecs := func(want ...string) {
		t.Helper()
		program.WaitUntil(t, "the specs are "+strings.Join(want, ", "), func() bool {
			files, _ := filepath.Glob(filepath.Join(dir, "cdi", "*.json"))
			for i, file := range files {
				files[i] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "k8s.device-plugin.nvidia.com-"), ".json")
			}
			return slices.Equal(files, want)
		})
	}
	t.Run("CDI", func(t *testing.T) {
		w := start(t, "--device-list-strategy=cdi-cri", "--gds-enabled")
		w.waitLine("nvidia_gpu_healthy{", " 1")
		text := w.waitLine(`podgauge_cdi_spec_up{class="gpu"}`, " 0")
		if strings.Contains(text, "podgauge_registrations_total") {
			t.Error("a resource is registered before its CDI specs are written")
		}
		w.waitNotReady("plugin", "registration waits for the CDI spec of the GPUs: gpu: ")
		show()
		w.waitRegistered()
		w.waitReady()
		w.runPod(gpuPod("research", "train", 1))
		w.waitLine(`podgauge_cdi_spec_up{class="gpu"}`, " 1")
		if classes, _ := w.allocateResponse(); !slices.Equal(classes, []string{"gpu", "gds"}) {
			t.Errorf("stored response: got %q", classes)
		}
		wantSpecs("gds", "gpu")
	})
	wantSpecs("gds", "gpu")
	t.Run("fewer specs", func(t *testing.T) {
		start(t, "--device-list-strategy=cdi-annotations").waitRegistered()
		wantSpecs("gpu")
	})
	start(t, "--device-list-strategy=envvar").waitRegistered()
	wantSpecs()
}

// TestNewSettingsWaitForCDISpecs checks that containers start with the old settings until the specs of the new settings
// are written, and that failing specs block nothing if another strategy serves containers.
func TestNewSettingsWaitForCDISpecs(t *testing.T) {
	t.Parallel()
	flags, show := driverWithoutLibraries(t)
	const byVariable, byCDI = "version: v1\n", "version: v1\nflags: {plugin: {deviceListStrategy: %s}}\n"
	config := writeConfig(t, byVariable)
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, append(flags, "--config-file="+config, "--metrics.set=none", "--metrics.include=podgauge_cdi_*")...)
	w.waitRegistered()
	wantResponse := func(want string, cdiDevices, variables int) {
		t.Helper()
		program.WaitUntil(t, "containers start "+want, func() bool {
			w.runPod(gpuPod("research", "train", 1))
			classes, envs := w.allocateResponse()
			w.deletePod(gpuPod("research", "train", 1))
			return len(classes) == cdiDevices && len(envs) == variables
		})
	}
	reload := func(text string) {
		writeFile(t, config, text)
		w.reload()
	}
	reload(strings.Replace(byCDI, "%s", "cdi-cri", 1))
	w.checkScrape("cdi_spec_missing", "podgauge_cdi_spec_up{", " 0")
	wantResponse("with the old settings", 0, 1)
	reload(strings.Replace(byCDI, "%s", "[envvar, cdi-cri]", 1))
	wantResponse("by variable, without the missing spec", 0, 1)
	if code, text := w.getPath("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: got %d %s", code, text)
	}
	show()
	w.waitLine("podgauge_cdi_spec_up{", " 1")
	wantResponse("by variable and by CDI", 1, 1)
	reload(strings.Replace(byCDI, "%s", "cdi-cri", 1))
	wantResponse("by CDI", 1, 0)
	reload(byVariable)
	w.waitScrape("no CDI specs", func(text string) bool { return !strings.Contains(text, "podgauge_cdi_spec_up") })
	wantResponse("by variable", 0, 1)
}
