package app_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

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
