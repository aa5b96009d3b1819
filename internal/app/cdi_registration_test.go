package app

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeDriverRoot is a folder with the files of a simulated driver that CDI specs list.
type fakeDriverRoot struct {
	t    *testing.T
	root string
}

func newFakeDriverRoot(t *testing.T, gpus int) fakeDriverRoot {
	t.Helper()
	f := fakeDriverRoot{t, t.TempDir()}
	nodes := []string{"nvidiactl", "nvidia-uvm", "nvidia-fs0", "nvidia0", "nvidia1", "nvidia2", "nvidia3"}[:3+gpus]
	for _, name := range nodes {
		path := filepath.Join(f.root, "dev", name)
		f.must(os.MkdirAll(filepath.Dir(path), 0o755))
		f.must(unix.Mknod(path, unix.S_IFCHR|0o666, 0)) // device number 0:0 needs no privileges
	}
	f.must(os.MkdirAll(f.libraries(), 0o755))
	for _, name := range []string{"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"} {
		f.must(os.WriteFile(filepath.Join(f.libraries(), name), nil, 0o755))
	}
	return f
}

func (f fakeDriverRoot) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeDriverRoot) libraries() string { return filepath.Join(f.root, "usr", "lib64") }

// hide removes the libraries, so that no specs can be generated, until show is called.
func (f fakeDriverRoot) hide() (show func()) {
	f.t.Helper()
	f.must(os.Rename(f.libraries(), f.libraries()+".hidden"))
	return func() { f.must(os.Rename(f.libraries()+".hidden", f.libraries())) }
}

func (f fakeDriverRoot) args(more ...string) []string {
	return append(more, "--driver-root=/host", "--driver-root-ctr-path="+f.root)
}

// allocateResponses returns the responses of Allocate that the kubelet has stored.
func (w *testApp) allocateResponses() (all []*api.ContainerAllocateResponse) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "device-plugins", "kubelet_internal_checkpoint"))
	if err != nil {
		w.t.Fatal(err)
	}
	var stored struct {
		Data struct{ PodDeviceEntries []struct{ AllocResp []byte } }
	}
	if err := json.Unmarshal(text, &stored); err != nil {
		w.t.Fatal(err)
	}
	for _, entry := range stored.Data.PodDeviceEntries {
		resp := &api.ContainerAllocateResponse{}
		if err := proto.Unmarshal(entry.AllocResp, resp); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, resp)
	}
	return all
}

func cdiVendorClasses(a *api.ContainerAllocateResponse) (names []string) {
	for _, d := range a.CdiDevices {
		vendorClass, _, _ := strings.Cut(d.Name, "=")
		names = append(names, vendorClass)
	}
	return names
}

// specClasses returns the classes of the CDI specs in the test's folder.
func specClasses(t *testing.T, dir string) (classes []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "cdi", "k8s.device-plugin.nvidia.com-*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		class := strings.TrimPrefix(filepath.Base(name), "k8s.device-plugin.nvidia.com-")
		classes = append(classes, strings.TrimSuffix(class, ".json"))
	}
	return classes
}

// TestRegistrationWaitsForCDISpecs checks that Allocate responds with all CDI names: the kubelet keeps the first response.
func TestRegistrationWaitsForCDISpecs(t *testing.T) {
	t.Parallel()
	driver := newFakeDriverRoot(t, 1)
	show := driver.hide()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, driver.args("--device-list-strategy=cdi-cri", "--gds-enabled")...)
	w.waitLine("nvidia_gpu_healthy{", " 1")
	w.waitScrape("CDI specs are missing", func(text string) bool { return strings.Contains(text, `podgauge_cdi_spec_up{class="gpu"} 0`) })
	if text := w.scrape("text/plain"); strings.Contains(text, "podgauge_registrations_total") {
		t.Error("a resource is registered before its CDI specs are written")
	}
	const wantErr = "plugin: registration waits for the CDI spec of the GPUs: gpu: "
	waitUntil(t, "/readyz has the writer's error", func() bool {
		code, text := w.getPath("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, wantErr)
	})
	show()
	w.waitRegistered()
	waitUntil(t, "/readyz returns ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine(`podgauge_cdi_spec_up{class="gpu"}`, " 1")
	want := []string{"k8s.device-plugin.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gds"}
	if all := w.allocateResponses(); len(all) != 1 || !slices.Equal(cdiVendorClasses(all[0]), want) {
		t.Errorf("stored responses: got %v, want %q", all, want)
	}
}

// TestStrategiesBesideCDI checks that failing specs block nothing if another strategy serves containers.
func TestStrategiesBesideCDI(t *testing.T) {
	t.Parallel()
	driver := newFakeDriverRoot(t, 1)
	show := driver.hide()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, driver.args("--device-list-strategy=envvar,cdi-cri", "--metrics.set=none", "--metrics.include=podgauge_cdi_*")...)
	w.waitRegistered()
	w.runPod(gpuPod("research", "train", 1))
	if all := w.allocateResponses(); len(all) != 1 || len(all[0].CdiDevices) > 0 || all[0].Envs["NVIDIA_VISIBLE_DEVICES"] != string(w.machine.AllocatableIDs()[0]) {
		t.Errorf("stored responses: got %v", all)
	}
	w.checkScrape("cdi_spec_missing", "podgauge_cdi_spec_up{", " 0")
	show()
	w.waitLine("podgauge_cdi_spec_up{", " 1")
}

// TestSpecsOutliveTheProcess checks that specs remain after the end, as containers may restart, and that the next process removes unneeded ones.
func TestSpecsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	driver, dir := newFakeDriverRoot(t, 1), shortDir(t)
	for _, process := range []struct {
		args []string
		want []string
	}{
		{args: []string{"--device-list-strategy=cdi-cri", "--gds-enabled"}, want: []string{"gds", "gpu"}},
		{args: []string{"--device-list-strategy=cdi-annotations"}, want: []string{"gpu"}},
		{args: []string{"--device-list-strategy=envvar"}, want: nil},
	} {
		t.Run(strings.Join(process.args, " "), func(t *testing.T) {
			w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4), dir: dir}, driver.args(process.args...)...)
			w.waitRegistered()
			waitUntil(t, "the specs are written", func() bool { return slices.Equal(specClasses(t, dir), process.want) })
		})
		if got := specClasses(t, dir); !slices.Equal(got, process.want) {
			t.Errorf("specs after %q: got %q, want %q", process.args, got, process.want)
		}
	}
}

// TestNewSettingsWaitForCDISpecs checks that containers start with the old settings until the specs of the new settings are written.
func TestNewSettingsWaitForCDISpecs(t *testing.T) {
	driver := newFakeDriverRoot(t, 1)
	show := driver.hide()
	file := configFile{t, filepath.Join(t.TempDir(), "config.yaml")}
	file.write("version: v1\n")
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, driver.args("--config-file="+file.path)...)
	w.waitRegistered()
	file.write("version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n")
	w.reload <- syscall.SIGHUP
	w.waitLine("podgauge_cdi_spec_up{", " 0")
	w.runPod(gpuPod("research", "before", 1))
	if all := w.allocateResponses(); len(all) != 1 || len(all[0].CdiDevices) > 0 || len(all[0].Envs) != 1 {
		t.Errorf("before the specs are written: got stored responses %v", all)
	}
	w.deletePod(gpuPod("research", "before", 1))
	show()
	w.waitLine("podgauge_cdi_spec_up{", " 1")
	waitUntil(t, "the new settings apply", func() bool {
		w.runPod(gpuPod("research", "after", 1))
		all := w.allocateResponses()
		w.deletePod(gpuPod("research", "after", 1))
		return len(all) == 1 && len(all[0].CdiDevices) == 1 && len(all[0].Envs) == 0
	})
	file.write("version: v1\n")
	w.reload <- syscall.SIGHUP
	w.waitScrape("no CDI specs", func(text string) bool { return !strings.Contains(text, "podgauge_cdi_spec_up") })
	w.runPod(gpuPod("research", "last", 1))
	if all := w.allocateResponses(); len(all) != 1 || len(all[0].CdiDevices) > 0 || len(all[0].Envs) != 1 {
		t.Errorf("after the return to the first settings: got stored responses %v", all)
	}
}
