package nvml

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
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

// fullLibrary is the directory of the stand-in with all functions; see
// TestMain.
var fullLibrary string

// testDir has the scenario and the call log of the tests that share a process.
var testDir string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if dir := os.Getenv(childEnv); dir != "" {
		testDir = dir
		return checkLeaks(m.Run())
	}
	dir, err := os.MkdirTemp("", "podgauge-nvml-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	testDir, fullLibrary = dir, filepath.Join(dir, "whole", "usr", "lib64")
	if err := os.MkdirAll(fullLibrary, 0o755); err != nil {
		panic(err)
	}
	if _, err := nvmltest.Build(fullLibrary); err != nil {
		panic(err)
	}
	os.Setenv(nvmltest.EnvScenario, filepath.Join(dir, "scenario"))
	os.Setenv(nvmltest.EnvCalls, filepath.Join(dir, "calls"))
	return checkLeaks(m.Run())
}

// checkLeaks makes a run fail that leaves a goroutine behind.
func checkLeaks(code int) int {
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// backendFixture is a Backend with the simulated machine behind it.
type backendFixture struct {
	testing.TB
	*Backend
	machine *nvmltest.Scenario
	// leakedSamples is the number of GPM samples of earlier backends: all tests
	// share one library, and some end in a hang.
	leakedSamples uint64
}

// newFixture writes the lines of a scenario, without a call.
func newFixture(t testing.TB, o Options, lines ...string) *backendFixture {
	t.Helper()
	if o.DriverRoots == nil {
		o.DriverRoots = []string{filepath.Join(testDir, "whole")}
	}
	if o.SysRoot == "" {
		o.SysRoot = t.TempDir()
	}
	s := &backendFixture{TB: t, Backend: New(o), machine: nvmltest.NewScenario(filepath.Join(testDir, "scenario"))}
	s.leakedSamples = s.callsOrNone().GPMSamples()
	s.clear("")
	s.set(lines...)
	t.Cleanup(func() {
		s.clear("")
		s.Close()
	})
	return s
}

// newListedFixture writes the lines of a scenario and lists the GPUs.
func newListedFixture(t testing.TB, lines ...string) *backendFixture {
	t.Helper()
	s := newFixture(t, Options{}, lines...)
	s.list(-1)
	return s
}

func (s *backendFixture) set(lines ...string) { s.Helper(); s.must(s.machine.Set(lines...)) }

func (s *backendFixture) clear(words string) { s.Helper(); s.must(s.machine.Clear(words)) }

func (s *backendFixture) sendEvent(gpu int, what string) {
	s.Helper()
	s.must(s.machine.Event(gpu, what))
}

func (s *backendFixture) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// list requires no error, and n devices unless n is negative.
func (s *backendFixture) list(n int) []device.Device {
	s.Helper()
	devices, err := s.Devices(context.Background())
	s.must(err)
	if n >= 0 && len(devices) != n {
		s.Fatalf("got %d devices, want %d", len(devices), n)
	}
	return devices
}

// id returns the GPU with an index of the scenario.
func (s *backendFixture) id(i int) device.GPU { s.Helper(); return s.gpu(i).ID }

func (s *backendFixture) gpu(i int) *gpu {
	s.Helper()
	g := s.inventory.Load().byIndex[i]
	if g == nil {
		s.Fatalf("GPU %d is not listed", i)
	}
	return g
}

// values reads a GPU, requires no error, and returns the values by the name of
// their series.
func (s *backendFixture) values(i int) map[string]float64 {
	s.Helper()
	id := s.id(i)
	samples, err := s.Read(id)
	s.must(err)
	values := map[string]float64{}
	for _, sample := range samples {
		if sample.Device != device.ID(id) {
			s.Errorf("reading of %s: got a value of %s", id, sample.Device)
		}
		values[seriesName(s.Metrics()[sample.Metric])] = sample.Value
	}
	return values
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

func (s *backendFixture) calls() nvmltest.CallCounts {
	s.Helper()
	calls, err := nvmltest.ReadCalls(filepath.Join(testDir, "calls"))
	s.must(err)
	return calls
}

// samples returns the number of GPM samples that this backend has allocated and
// not freed.
func (s *backendFixture) samples() int {
	s.Helper()
	return int(s.calls().GPMSamples()) - int(s.leakedSamples)
}

// callsOrNone is calls, and works before the library is loaded.
func (s *backendFixture) callsOrNone() nvmltest.CallCounts {
	if _, err := os.Stat(filepath.Join(testDir, "calls")); err != nil {
		return nvmltest.CallCounts{}
	}
	return s.calls()
}

// eventually waits until a condition holds.
func (s *backendFixture) eventually(what string, condition func() bool) {
	s.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("timeout: %s", what)
		}
	}
}

// runInChild runs the body in a process of its own, in a new directory that
// prepare may fill. The dynamic linker searches the directory's ld.
func runInChild(t *testing.T, prepare func(dir string), body func(t *testing.T, dir string)) {
	t.Helper()
	if dir := os.Getenv(childEnv); dir != "" {
		body(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	prepare(dir)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), childEnv+"="+dir,
		nvmltest.EnvScenario+"="+filepath.Join(dir, "scenario"), nvmltest.EnvCalls+"="+filepath.Join(dir, "calls"),
		"LD_LIBRARY_PATH="+filepath.Join(dir, "ld"),
		"GORACE=atexit_sleep_ms=0") // otherwise the race detector delays each exit by a second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("child process: %v\n%s", err, out)
	default:
		t.Logf("%s", out)
	}
}
