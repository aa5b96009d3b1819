package collect_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
	"go.uber.org/goleak"
)

// The paces of readings, and the windows of GPM.
const (
	slowInterval      = 25 * time.Second
	confirmedInterval = 5 * time.Minute
	gpmWindow         = 9500 * time.Millisecond
)

// testTimeout is longer than any expected event takes.
const testTimeout = 20 * time.Second

// testDir has the NVML stand-in, its scenario and its call log: a process can
// load only one NVML.
var testDir string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "podgauge-collect-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	testDir = dir
	if err := os.MkdirAll(filepath.Join(dir, "usr", "lib64"), 0o755); err != nil {
		panic(err)
	}
	if _, err := nvmltest.Build(filepath.Join(dir, "usr", "lib64")); err != nil {
		panic(err)
	}
	os.Setenv(nvmltest.EnvScenario, filepath.Join(dir, "scenario"))
	os.Setenv(nvmltest.EnvCalls, filepath.Join(dir, "calls"))
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// readerFixture reads the GPUs of the NVML stand-in.
type readerFixture struct {
	testing.TB
	machine       *nvmltest.Scenario
	plan          *metric.ReadPlan
	metrics       []device.Metric // of the plan
	library       nvml.Interface
	session       *lib.Session // nil: closed
	histories     collect.Histories
	gpus          []*collect.GPUReader // by index
	leakedSamples uint64               // GPM samples of earlier fixtures with the same library
}

// newListedFixture returns a fixture with listed GPUs and the scenario of the
// lines.
func newListedFixture(t testing.TB, lines ...string) *readerFixture {
	t.Helper()
	return newPlanFixture(t, metric.NewReadPlan(false, nil), lines...)
}

func newPlanFixture(t testing.TB, plan *metric.ReadPlan, lines ...string) *readerFixture {
	t.Helper()
	library, err := lib.FindLibrary([]string{testDir})
	if err != nil {
		t.Fatal(err)
	}
	s := &readerFixture{
		TB: t, machine: nvmltest.NewScenario(filepath.Join(testDir, "scenario")),
		plan: plan, metrics: plan.Metrics(), library: library,
	}
	if _, err := os.Stat(filepath.Join(testDir, "calls")); err == nil {
		s.leakedSamples = s.calls().GPMSamples()
	}
	s.clear("")
	s.set(lines...)
	t.Cleanup(func() {
		s.clear("")
		s.Close()
	})
	s.list(-1)
	return s
}

// list lists the GPUs and their MIG devices. It requires n GPUs, unless n is
// negative.
func (s *readerFixture) list(n int) {
	s.Helper()
	if s.session == nil {
		s.succeeds("init", s.library.Init())
		s.session = lib.NewSession(s.library, metric.Symbols())
	}
	count, ret := s.library.DeviceGetCount()
	s.succeeds("count", ret)
	if n >= 0 && count != n {
		s.Fatalf("got %d listed GPUs, want %d", count, n)
	}
	old := s.gpus
	s.gpus = make([]*collect.GPUReader, count)
	for i := range s.gpus {
		handle, ret := s.library.DeviceGetHandleByIndex(i)
		s.succeeds("handle", ret)
		for _, g := range old {
			if g.Handle == handle {
				s.gpus[i] = g
			}
		}
		if s.gpus[i] == nil {
			uuid, ret := handle.GetUUID()
			s.succeeds("UUID", ret)
			s.gpus[i] = collect.NewGPUReader(device.GPU(uuid), handle, s.session, s.plan,
				s.histories.Of(device.GPU(uuid)))
			s.gpus[i].Mu.Lock()
			s.gpus[i].Initialize()
			s.gpus[i].Mu.Unlock()
		}
		s.gpus[i].MIG.Store(s.migState(handle))
	}
}

// migState reads the MIG devices, as a listing does.
func (s *readerFixture) migState(handle nvml.Device) *collect.MIGState {
	s.Helper()
	mode, pending, ret := handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return &collect.MIGState{Denials: collect.DenialsToConfirm}
	}
	s.succeeds("MIG mode", ret)
	state := &collect.MIGState{
		Capable: true, Enabled: mode == nvml.DEVICE_MIG_ENABLE,
		PendingEnabled: pending == nvml.DEVICE_MIG_ENABLE,
	}
	if !state.Enabled {
		return state
	}
	count, ret := handle.GetMaxMigDeviceCount()
	s.succeeds("count MIG devices", ret)
	for i := range count {
		h, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		s.succeeds("MIG device", ret)
		uuid, ret := h.GetUUID()
		s.succeeds("UUID", ret)
		gi, ret := h.GetGpuInstanceId()
		s.succeeds("GPU instance", ret)
		ci, ret := h.GetComputeInstanceId()
		s.succeeds("compute instance", ret)
		state.Devices = append(state.Devices, collect.MIGDevice{ID: device.ID(uuid), GI: gi, CI: ci, Handle: h})
	}
	return state
}

func (s *readerFixture) succeeds(what string, ret nvml.Return) {
	s.Helper()
	if ret != nvml.SUCCESS {
		s.Fatalf("%s: %v", what, lib.Error(ret))
	}
}

// Close shuts the library down. A later list starts it again.
func (s *readerFixture) Close() {
	if s.session == nil {
		return
	}
	for _, g := range s.gpus {
		g.FreeSamples(s.session)
	}
	s.gpus, s.session = nil, nil
	s.library.Shutdown()
}

func (s *readerFixture) gpu(i int) *collect.GPUReader {
	s.Helper()
	if i >= len(s.gpus) {
		s.Fatalf("GPU %d is not listed", i)
	}
	return s.gpus[i]
}

func (s *readerFixture) id(i int) device.GPU { s.Helper(); return s.gpu(i).ID }

func (s *readerFixture) ids() (ids []device.GPU) {
	for _, g := range s.gpus {
		ids = append(ids, g.ID)
	}
	return ids
}

func (s *readerFixture) byID(id device.GPU) *collect.GPUReader {
	s.Helper()
	for _, g := range s.gpus {
		if g.ID == id {
			return g
		}
	}
	s.Fatalf("%s is not listed", id)
	return nil
}

func (s *readerFixture) Read(id device.GPU) ([]device.Sample, error) {
	s.Helper()
	return s.byID(id).Read()
}

func (s *readerFixture) Check(id device.GPU) (device.ResetEvidence, error) {
	s.Helper()
	return s.byID(id).Check()
}

func (s *readerFixture) ReadProcessUsage(id device.GPU) ([]device.ProcessUsage, bool) {
	s.Helper()
	return s.byID(id).ReadProcessUsage()
}

// Devices and Wait complete a device.Backend.
func (s *readerFixture) Devices(context.Context) ([]device.Device, error) { return nil, nil }

func (s *readerFixture) Wait(context.Context) (device.Event, error) { return device.Event{}, nil }

func (s *readerFixture) Metrics() []device.Metric { return s.metrics }

func (s *readerFixture) set(lines ...string) { s.Helper(); s.must(s.machine.Set(lines...)) }

func (s *readerFixture) clear(words string) { s.Helper(); s.must(s.machine.Clear(words)) }

func (s *readerFixture) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// values reads a GPU, requires no error, and returns the values by the name of
// their series.
func (s *readerFixture) values(i int) map[string]float64 {
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

func (s *readerFixture) calls() nvmltest.CallCounts {
	s.Helper()
	calls, err := nvmltest.ReadCalls(filepath.Join(testDir, "calls"))
	s.must(err)
	return calls
}

// samples returns the number of GPM samples that this fixture has allocated and
// not freed.
func (s *readerFixture) samples() int {
	s.Helper()
	return int(s.calls().GPMSamples()) - int(s.leakedSamples)
}

// eventually waits until a condition holds.
func (s *readerFixture) eventually(what string, condition func() bool) {
	s.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("timeout: %s", what)
		}
	}
}

// collectAll makes all calls of a collection on a GPU.
func (s *readerFixture) collectAll(i int) (samples []device.Sample, usage []device.ProcessUsage, known bool) {
	s.Helper()
	samples, err := s.Read(s.id(i))
	s.must(err)
	usage, known = s.ReadProcessUsage(s.id(i))
	return samples, usage, known
}

// passTime returns a function that checks and collects every 5 s for a while.
// The function returns the last value of a series, -1 if absent.
func (s *readerFixture) passTime(name string) func(by time.Duration) float64 {
	return func(by time.Duration) float64 {
		s.Helper()
		for ; by > 0; by -= 5 * time.Second {
			time.Sleep(5 * time.Second)
			_, _ = s.Check(s.id(0)) // irrelevant here
			s.values(0)
		}
		if v, ok := s.values(0)[name]; ok {
			return v
		}
		return -1
	}
}
