package cdi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGoldenSpec compares a whole spec, so that the diff shows the changes of
// an nvcdi update.
func TestGoldenSpec(t *testing.T) {
	t.Setenv("XDG_DATA_DIRS", "") // another search path of nvcdi
	s := newFixture(t, 2, nil)
	for _, name := range []string{
		"usr/lib64/vdpau/libvdpau_nvidia.so." + testDriverVersion, "etc/vulkan/icd.d/nvidia_icd.json",
		"usr/bin/nvidia-cuda-mps-control",
	} {
		s.touch(name)
	}
	s.makeNodes("dev/nvidia-caps/nvidia-cap31", "dev/nvidia-caps/nvidia-cap32")
	two := makeGPUs(2)
	s.Update(healthyStatuses([]device.Device{two[0], makeMIGDevice(two[1], "MIG-a", 31, 32)}))
	s.must(s.state.Err)
	spec := regexp.MustCompile(`,"gid":\d+`).ReplaceAllString(s.readSpec("gpu"), "") // the user's
	var got bytes.Buffer
	s.must(json.Indent(&got, []byte(spec), "", "  "))
	got.WriteByte('\n')
	testfile.CheckGolden(t, *update, "testdata/gpu.json", got.String())
}

// injectDevices injects devices into an empty container and returns the
// changes.
func (s *writerFixture) injectDevices(names ...string) (nodes, mounts, hooks, env []string) {
	s.Helper()
	spec := &specs.Spec{}
	unresolved, err := s.cdiCache().InjectDevices(spec, names...)
	if err != nil || len(unresolved) > 0 {
		s.Fatalf("inject devices: unresolved %q, %v", unresolved, err)
	}
	for _, d := range spec.Linux.Devices {
		nodes = append(nodes, d.Path)
	}
	for _, m := range spec.Mounts {
		mounts = append(mounts, m.Source+":"+m.Destination)
	}
	if spec.Hooks != nil {
		for _, h := range slices.Concat(spec.Hooks.CreateContainer, spec.Hooks.CreateRuntime) {
			hooks = append(hooks, strings.Join(h.Args, " "))
		}
	}
	return nodes, mounts, hooks, spec.Process.Env
}

func wantSet(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	got = slices.Sorted(slices.Values(got))
	if !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestInjection(t *testing.T) {
	// The host's paths are those of this process: the runtime reads the device nodes.
	s := newFixture(t, 3, func(o *cdi.Options) { o.TargetDriverRoot = "" })
	for _, c := range []int{31, 32, 41, 42} {
		s.makeNodes(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", c))
	}
	three := makeGPUs(3)
	s.Update(healthyStatuses([]device.Device{
		three[0], makeMIGDevice(three[1], "MIG-a", 31, 32), makeMIGDevice(three[1], "MIG-b", 41, 42), three[2],
	}))
	wantSet(t, "devices", s.cdiCache().ListDevices(),
		"k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/gpu=GPU-2",
		"k8s.device-plugin.nvidia.com/gpu=MIG-a", "k8s.device-plugin.nvidia.com/gpu=MIG-b")
	mount := func(path string) string { return s.driverRoot + path + ":" + path }
	for name, own := range map[string][]string{
		"GPU-0": {"/dev/nvidia0"},
		"GPU-2": {"/dev/nvidia2"},
		"MIG-a": {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap31", "/dev/nvidia-caps/nvidia-cap32"},
		"MIG-b": {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap41", "/dev/nvidia-caps/nvidia-cap42"},
	} {
		nodes, mounts, hooks, env := s.injectDevices("k8s.device-plugin.nvidia.com/gpu=" + name)
		wantSet(t, "nodes of "+name, nodes, append(own, "/dev/nvidiactl", "/dev/nvidia-uvm")...)
		wantSet(t, "mounts of "+name, mounts,
			mount("/usr/lib64/libcuda.so."+testDriverVersion),
			mount("/usr/lib64/libnvidia-ml.so."+testDriverVersion),
			mount("/usr/bin/nvidia-smi"),
			mount("/lib/firmware/nvidia/"+testDriverVersion+"/gsp_ga10x.bin"),
			mount("/run/nvidia-persistenced/socket"))
		wantSet(t, "environment of "+name, env, "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64")
		wantSet(t, "hooks of "+name, hooks,
			"nvidia-ctk hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so",
			"nvidia-ctk hook enable-cuda-compat --host-driver-version="+testDriverVersion,
			"nvidia-ctk hook update-ldcache --folder /usr/lib64",
			"nvidia-ctk hook disable-device-node-modification")
	}
	all, _, _, _ := s.injectDevices("k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/gpu=MIG-a")
	wantSet(t, "nodes of both", all, "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap31",
		"/dev/nvidia-caps/nvidia-cap32", "/dev/nvidiactl", "/dev/nvidia-uvm")
}

// TestHostPaths checks that a spec contains only paths of the host.
func TestHostPaths(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*cdi.Options)
		want   []string
		not    []string
	}{
		{
			"another driver root", func(*cdi.Options) {},
			[]string{`"hostPath":"/host/dev/nvidia0"`, `"hostPath":"/host/usr/bin/nvidia-smi"`},
			[]string{`"hostPath":"/dev/`},
		},
		{
			"roots with a trailing slash", func(o *cdi.Options) { o.DriverRoot += "/"; o.TargetDriverRoot += "/" },
			[]string{
				`"path":"/dev/nvidia0","hostPath":"/host/dev/nvidia0"`,
				`{"hostPath":"/host/usr/bin/nvidia-smi","containerPath":"/usr/bin/nvidia-smi"`,
			},
			nil,
		},
		{
			"another strategy of names", func(o *cdi.Options) { o.DeviceIDStrategy = response.Index },
			[]string{`"devices":[{"name":"0",`},
			nil,
		},
		{
			"device nodes of the host", func(o *cdi.Options) {
				nodes := newFixture(t, 1, nil)
				o.DevRoot, o.TargetDevRoot = nodes.driverRoot, "/"
				nodes.must(os.RemoveAll(filepath.Join(o.DriverRoot, "dev")))
			},
			[]string{`{"path":"/dev/nvidia0","hostPath":"/dev/nvidia0"`, `"hostPath":"/host/usr/bin/nvidia-smi"`},
			nil,
		},
		{
			"a hook path", func(o *cdi.Options) { o.HookPath = "/opt/bin/nvidia-cdi-hook" },
			[]string{`"path":"/opt/bin/nvidia-cdi-hook","args":["nvidia-cdi-hook","update-ldcache"`},
			[]string{"nvidia-ctk\""},
		},
		{
			"disabled hooks", func(o *cdi.Options) { o.DisabledHooks = []string{"enable-cuda-compat"} },
			[]string{"update-ldcache"},
			[]string{"enable-cuda-compat", "update-application-profile", "apply-cuda-memory-limits"},
		},
		{
			"no hooks", func(o *cdi.Options) { o.DisabledHooks = []string{"all"} },
			nil,
			[]string{`"hooks"`},
		},
		{
			"a feature flag", func(o *cdi.Options) { o.FeatureFlags = []string{"disable-ipc-discoverer"} },
			nil,
			[]string{"persistenced/socket"},
		},
		{
			"feature flag with an unknown result",
			func(o *cdi.Options) { o.FeatureFlags = []string{"enable-coherent-annotations"} },
			[]string{"GPU-0"},
			[]string{"annotations"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newFixture(t, 1, row.change)
			s.Update(healthyStatuses(makeGPUs(1)))
			s.must(s.state.Err)
			spec := s.readSpec("gpu")
			for _, want := range row.want {
				if !strings.Contains(spec, want) {
					t.Errorf("got spec %s, want it to contain %s", spec, want)
				}
			}
			for _, not := range append(row.not, s.driverRoot) {
				if strings.Contains(spec, not) {
					t.Errorf("got spec %s, want it not to contain %s", spec, not)
				}
			}
		})
	}
}

const (
	testDriverVersion = "570.124.06"
	testHookPath      = "/usr/bin/nvidia-ctk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writerFixture is a node with the files of a driver, and a Writer.
type writerFixture struct {
	testing.TB
	*cdi.Writer
	statuses   []device.Status
	state      cdi.SpecState // as published
	log        bytes.Buffer
	driverRoot string // in this process's mounts
	specDir    string
}

// newFixture installs a driver below a new root, with device nodes for a number
// of GPUs. The driver's files are empty: nvcdi reads only the names.
func newFixture(t testing.TB, gpus int, change func(*cdi.Options)) *writerFixture {
	t.Helper()
	s := &writerFixture{TB: t, driverRoot: t.TempDir(), specDir: filepath.Join(t.TempDir(), "cdi")}
	for _, name := range []string{
		"usr/lib64/libcuda.so." + testDriverVersion, "usr/lib64/libnvidia-ml.so." + testDriverVersion,
		"usr/bin/nvidia-smi", "lib/firmware/nvidia/" + testDriverVersion + "/gsp_ga10x.bin",
		"run/nvidia-persistenced/socket",
	} {
		s.touch(name)
	}
	s.makeNodes("dev/nvidiactl", "dev/nvidia-uvm")
	for i := range gpus {
		s.makeNodes(fmt.Sprintf("dev/nvidia%d", i))
	}
	o := cdi.Options{
		DriverRoot: s.driverRoot, DevRoot: s.driverRoot, TargetDriverRoot: "/host", HookPath: testHookPath,
	}
	if change != nil {
		change(&o)
	}
	s.newWriter(o)
	return s
}

func (s *writerFixture) newWriter(o cdi.Options) {
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	s.Writer = cdi.New(o, s.specDir, log, func(state cdi.SpecState) { s.state = state })
}

// setDevices replaces the inventory by healthy devices.
func (s *writerFixture) setDevices(devices []device.Device) {
	s.statuses = healthyStatuses(devices)
	s.Update(s.statuses)
}

// advance advances the clock and repeats Update each second, as podgauge does.
func (s *writerFixture) advance(d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second)
		s.Update(s.statuses)
	}
}

func (s *writerFixture) must(err error) {
	s.Helper()
	require.NoError(s, err)
}

func (s *writerFixture) touch(name string) {
	s.Helper()
	path := filepath.Join(s.driverRoot, name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	s.must(os.WriteFile(path, nil, 0o755))
}

// makeNodes makes character devices 0:0, the only number that needs no
// privilege (whiteout of overlay file systems).
func (s *writerFixture) makeNodes(names ...string) {
	s.Helper()
	for _, name := range names {
		path := filepath.Join(s.driverRoot, name)
		s.must(os.MkdirAll(filepath.Dir(path), 0o755))
		s.must(unix.Mknod(path, unix.S_IFCHR|0o666, 0))
		s.must(os.Chmod(path, 0o666)) // regardless of the umask
	}
}

// makeGPUs returns n GPUs.
func makeGPUs(n int) []device.Device {
	devices := make([]device.Device, n)
	for i := range devices {
		id := fmt.Sprintf("GPU-%d", i)
		devices[i] = device.Device{
			ID: device.ID(id), GPU: device.GPU(id), Index: i, Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i),
			DeviceNodes: []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm"},
			InfoLabels:  []device.Label{{Name: "driver_version", Value: testDriverVersion}},
		}
	}
	return devices
}

// makeMIGDevice returns a MIG device of a GPU, with capabilities.
func makeMIGDevice(gpu device.Device, id string, caps ...int) device.Device {
	d := gpu
	d.ID = device.ID(id)
	d.DeviceNodes = slices.Clone(gpu.DeviceNodes)
	for _, c := range caps {
		d.DeviceNodes = append(d.DeviceNodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", c))
	}
	return d
}

func healthyStatuses(devices []device.Device) []device.Status {
	statuses := make([]device.Status, len(devices))
	for i, d := range devices {
		statuses[i] = device.Status{Device: d, Healthy: true}
	}
	return statuses
}

func (s *writerFixture) specPathOf(class string) string {
	return filepath.Join(s.specDir, "k8s.device-plugin.nvidia.com-"+class+".json")
}

func (s *writerFixture) readSpec(class string) string {
	s.Helper()
	return testfile.Read(s, s.specPathOf(class))
}

// wantFiles requires files of these classes, and no other files.
func (s *writerFixture) wantFiles(what string, classes ...string) {
	s.Helper()
	entries, err := os.ReadDir(s.specDir)
	if err != nil && !os.IsNotExist(err) {
		s.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		name := strings.TrimPrefix(e.Name(), "k8s.device-plugin.nvidia.com-")
		got = append(got, strings.TrimSuffix(name, ".json"))
	}
	wantSet(s, what, got, classes...)
}

// cdiCache reads the spec directory as a container runtime does.
func (s *writerFixture) cdiCache() *cdilib.Cache {
	s.Helper()
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(s.specDir), cdilib.WithAutoRefresh(false))
	s.must(err)
	s.must(cache.Refresh())
	return cache
}

// countLogLines returns the number of log lines that have all words.
func (s *writerFixture) countLogLines(words ...string) (n int) {
	for line := range strings.Lines(s.log.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}
