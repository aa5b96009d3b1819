package cdi_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

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
