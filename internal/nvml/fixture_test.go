package nvml_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
	"go.uber.org/goleak"
)

// A process can load only one NVML. Most tests share the stand-in that TestMain
// builds, each with its own scenario and Backend. Tests with another library,
// or none, run in a process of their own.

const (
	// testTimeout is longer than any expected event takes.
	testTimeout = 20 * time.Second
	// childEnv marks a process that runs the body of one test. Its value is the
	// directory of that test.
	childEnv = "PODGAUGE_NVML_CHILD"
)

// testDir has the scenario and the call log of the tests that share a process,
// and the driver root "whole" with a stand-in of all functions that the packages
// may call.
var testDir string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if testDir = os.Getenv(childEnv); testDir == "" {
		dir, err := os.MkdirTemp("", "podgauge-nvml-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		testDir = dir
		unlisted, err := nvmltest.Functions()
		if err != nil {
			panic(err)
		}
		unlisted = slices.DeleteFunc(unlisted, isListed)
		if err := buildLibrary(filepath.Join(dir, "whole", "usr", "lib64"), unlisted...); err != nil {
			panic(err)
		}
		os.Setenv(nvmltest.EnvScenario, filepath.Join(dir, "scenario"))
		os.Setenv(nvmltest.EnvCalls, filepath.Join(dir, "calls"))
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// isListed reports whether the functions and their older versions that the
// packages look up include a function. A call of any other one ends the process:
// also the text of a return code.
func isListed(name string) bool {
	for _, f := range slices.Concat(lib.Functions, metric.Symbols()) {
		if f == name || slices.Contains(lib.OlderVersions[f], name) {
			return true
		}
	}
	return false
}

func buildLibrary(dir string, without ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, err := nvmltest.Build(dir, without...)
	return err
}

// fixture is a Backend with the simulated machine behind it.
type fixture struct {
	testing.TB
	*nvml.Backend
	machine *nvmltest.Scenario
	devices []device.Device // of the newest listing
	// leakedSamples is the number of GPM samples of earlier backends: all tests
	// share one library, and some end in a hang.
	leakedSamples uint64
}

// newFixture writes the lines of a scenario, without a call.
func newFixture(t testing.TB, o nvml.Options, lines ...string) *fixture {
	t.Helper()
	if o.DriverRoots == nil {
		o.DriverRoots = []string{filepath.Join(testDir, "whole")}
	}
	if o.SysRoot == "" {
		o.SysRoot = t.TempDir()
	}
	s := &fixture{TB: t, Backend: nvml.New(o), machine: nvmltest.NewScenario(filepath.Join(testDir, "scenario"))}
	if s.libraryLoaded() {
		s.leakedSamples = s.calls().GPMSamples()
	}
	s.clear("")
	s.set(lines...)
	t.Cleanup(func() {
		s.clear("")
		s.Close()
	})
	return s
}

// newListedFixture writes the lines of a scenario and lists the GPUs.
func newListedFixture(t testing.TB, lines ...string) *fixture {
	t.Helper()
	s := newFixture(t, nvml.Options{}, lines...)
	s.list(-1)
	return s
}

func (s *fixture) set(lines ...string) { s.Helper(); s.must(s.machine.Set(lines...)) }

func (s *fixture) clear(words string) { s.Helper(); s.must(s.machine.Clear(words)) }

func (s *fixture) sendEvent(gpu int, what string) { s.Helper(); s.must(s.machine.Event(gpu, what)) }

func (s *fixture) must(err error) {
	s.Helper()
	require.NoError(s, err)
}

// list requires no error, and n devices unless n is negative.
func (s *fixture) list(n int) []device.Device {
	s.Helper()
	devices, err := s.tryList()
	s.must(err)
	if n >= 0 && len(devices) != n {
		s.Fatalf("got %d devices, want %d", len(devices), n)
	}
	return devices
}

func (s *fixture) tryList() ([]device.Device, error) {
	devices, err := s.Devices(s.Context())
	if devices != nil {
		s.devices = devices
	}
	return devices, err
}

// id returns the GPU with an index of the scenario.
func (s *fixture) id(i int) device.GPU {
	s.Helper()
	at := slices.IndexFunc(s.devices, func(d device.Device) bool { return d.WholeGPU() && d.Index == i })
	if at < 0 {
		s.Fatalf("GPU %d is not listed", i)
	}
	return s.devices[at].GPU
}

// instanceValues reads a GPU, requires no error, and returns the values of all
// its devices by the name of their series. Means over a short window are
// rounded.
func (s *fixture) instanceValues(i int) map[device.ID]map[string]float64 {
	s.Helper()
	samples, err := s.Read(s.id(i))
	s.must(err)
	values := map[device.ID]map[string]float64{}
	for _, sample := range samples {
		if values[sample.Device] == nil {
			values[sample.Device] = map[string]float64{}
		}
		name := seriesName(s.Metrics()[sample.Metric])
		if _, twice := values[sample.Device][name]; twice {
			s.Errorf("%s: got two values of %s", sample.Device, name)
		}
		if strings.Contains(name, "_ratio") {
			sample.Value = math.Round(sample.Value*1e6) / 1e6
		}
		values[sample.Device][name] = sample.Value
	}
	return values
}

// values returns the values of a GPU itself.
func (s *fixture) values(i int) map[string]float64 {
	s.Helper()
	return s.instanceValues(i)[device.ID(s.id(i))]
}

// wantValue reads a GPU and requires a value of a series; -1: none.
func (s *fixture) wantValue(what string, i int, name string, want float64) {
	s.Helper()
	expect.Equal(s, s.valueOf(i, name), want, what, name)
}

func (s *fixture) valueOf(i int, name string) float64 {
	s.Helper()
	if v, ok := s.values(i)[name]; ok {
		return v
	}
	return -1
}

func seriesName(m device.Metric) string {
	var labels []string
	for _, l := range m.Labels {
		labels = append(labels, fmt.Sprintf("%s=%q", l.Name, l.Value))
	}
	if labels == nil {
		return m.Name
	}
	return m.Name + "{" + strings.Join(labels, ",") + "}"
}

func (s *fixture) libraryLoaded() bool {
	_, err := os.Stat(filepath.Join(testDir, "calls"))
	return err == nil
}

func (s *fixture) calls() nvmltest.CallCounts {
	s.Helper()
	calls, err := nvmltest.ReadCalls(filepath.Join(testDir, "calls"))
	s.must(err)
	return calls
}

// eventually waits until a condition holds.
func (s *fixture) eventually(what string, condition func() bool) {
	s.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("timeout: %s", what)
		}
	}
}

// inChild runs the body in a process of its own, in a new directory that
// prepare may fill. The dynamic linker searches the directory's ld.
func inChild(t *testing.T, prepare func(dir string) error, body func(t *testing.T, dir string)) {
	t.Helper()
	if dir := os.Getenv(childEnv); dir != "" {
		body(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, prepare(dir))
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), childEnv+"="+dir, "LD_LIBRARY_PATH="+filepath.Join(dir, "ld"),
		nvmltest.EnvScenario+"="+filepath.Join(dir, "scenario"), nvmltest.EnvCalls+"="+filepath.Join(dir, "calls"),
		"GORACE=atexit_sleep_ms=0") // otherwise the race detector delays each exit by a second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("child process: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// withLibrary is inChild with a stand-in without some functions in the driver
// root of the fixture.
func withLibrary(t *testing.T, without, lines []string, body func(s *fixture)) {
	prepare := func(dir string) error { return buildLibrary(filepath.Join(dir, "lib64"), without...) }
	if len(without) == 0 {
		prepare = func(dir string) error { return installLibrary(filepath.Join(dir, "lib64")) }
	}
	inChild(t, prepare, func(t *testing.T, dir string) {
		body(newFixture(t, nvml.Options{DriverRoots: []string{dir}}, lines...))
	})
}

// installLibrary copies the stand-in of TestMain.
func installLibrary(dir string) error {
	content, err := os.ReadFile(filepath.Join(testDir, "whole", "usr", "lib64", lib.Soname))
	if err != nil {
		return err
	}
	return installFile(content, dir)
}

// installFile writes a library, or a part of it.
func installFile(content []byte, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, lib.Soname), content, 0o600)
}
