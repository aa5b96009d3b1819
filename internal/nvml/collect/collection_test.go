package collect

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// ageSlow makes all slow reads older.
func (s *readerFixture) ageSlow(i int, by time.Duration) {
	g := s.gpu(i)
	g.slowReadAt = g.slowReadAt.Add(-by)
	age := func(states []callState) {
		for i := range states {
			states[i].calledAt = states[i].calledAt.Add(-by)
		}
	}
	age(g.callStates)
	for _, in := range g.instances {
		age(in.callStates)
	}
}

// ageAll simulates a time without collections and checks.
func (s *readerFixture) ageAll(i int, by time.Duration) {
	s.ageSamples(i, by)
	s.ageSlow(i, by)
}

// collectAll makes all calls of a collection on a GPU.
func (s *readerFixture) collectAll(i int) (samples []device.Sample, usage []device.ProcessUsage, known bool) {
	s.Helper()
	samples, err := s.Read(s.id(i), nil)
	s.must(err)
	usage, known = s.ReadProcessUsage(s.id(i), nil)
	return samples, usage, known
}

// sevenMIGDevices returns the scenario of a GPU with the maximum number of MIG devices.
func sevenMIGDevices(model string) []string {
	lines := []string{"gpus 1", "gpu 0 model " + model, "gpu 0 mig_mode 1"}
	for i := range 7 {
		lines = append(lines,
			fmt.Sprintf("gpu 0 slice %d 1g.10gb gi %d ci 0 uuid MIG-%d used %d", i, i+7, i, 1000+i),
			fmt.Sprintf("gpu 0 process %d 100 gi %d ci 0", 50+i, i+7))
	}
	return lines
}

// maxCollectionCalls limits the calls of a collection with all slow reads due, and some denied ones.
const maxCollectionCalls = 35

// TestCallsPerCollection limits the calls of a collection: with no slow read due, and with all of them due. Each collection makes all fast
// reads.
func TestCallsPerCollection(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		idle  uint64 // calls of a collection with no slow read due
		due   uint64 // calls of a collection with all slow reads due
	}{
		// The fields; memory, utilization, four engines, temperature, a clock, reasons; three process lists and the processes' utilization.
		{"H100", []string{"gpus 1", "gpu 0 model h100", "gpu 0 process 17 1000"}, 14, 30},
		{"H100 without processes", []string{"gpus 1"}, 13, 29},
		{"B200", []string{"gpus 1", "gpu 0 model b200", "gpu 0 process 17 1000"}, 14, 30},
		// The T4 has two engines.
		{"T4", []string{"gpus 1", "gpu 0 model t4", "gpu 0 process 17 1000"}, 12, 28},
		{"A100", []string{"gpus 1", "gpu 0 model a100", "gpu 0 process 17 1000"}, 14, 30},
		// The fields, memory, temperature, a clock, reasons, three lists; the memory and the UUID of each MIG device.
		{"A100 with seven MIG devices", sevenMIGDevices("a100"), 8 + 7*2, 24 + 7*4},
		{"H100 with seven MIG devices", sevenMIGDevices("h100"), 8 + 7*2, 24 + 7*4},
		{"H100 without fields", []string{"gpus 1", "fail nvmlDeviceGetFieldValues gpu 0 NOT_SUPPORTED"}, 14, 31},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newListedFixture(t, c.lines...)
			collect := func() uint64 {
				before := s.calls()
				s.collectAll(0)
				calls := s.calls().Since(before)
				for _, function := range []string{"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetUUID"} {
					if n := calls.Count(function, 0); n > uint64(len(s.gpu(0).instances)) {
						t.Errorf("calls of %s: got %d, want at most one per MIG device", function, n)
					}
				}
				if n := calls.Count(lib.FieldValuesSymbol, 0); n > 2 {
					t.Errorf("reads of fields: got %d, want at most 2", n)
				}
				return calls.GPUTotal(0)
			}
			var first, due []uint64
			for range 12 {
				first = append(first, collect())
			}
			for range 12 {
				s.ageSlow(0, slowInterval)
				due = append(due, collect())
				for range 4 {
					collect()
				}
			}
			for range 24 { // reads that are due after the last collection
				collect()
			}
			settled := collect()
			if settled != c.idle {
				t.Errorf("collection with no slow read due: got %d calls, want %d", settled, c.idle)
			}
			if n := max(slices.Max(first), slices.Max(due)); n > c.due {
				t.Errorf("calls of a collection: got up to %d, want at most %d: %v, %v", n, c.due, first, due)
			}
			if n := slices.Max(due); n <= settled {
				t.Errorf("calls with slow reads due: got %v, want more than without", due)
			}
		})
	}
}

// readsDefault selects the rows of the set default, and one row of the status page.
func readsDefault(t *testing.T) func(*device.Metric) bool {
	t.Helper()
	text, err := os.ReadFile("../../../exporter/series_sets.txt")
	if err != nil {
		t.Fatal(err)
	}
	return func(m *device.Metric) bool {
		return strings.Contains(string(text), "default "+m.RowName()+"\n") || strings.Contains(string(text), "default "+m.Name+"\n")
	}
}

// TestCallsOfDefaultSet counts the calls of a collection every second on 8 GPUs with the set default. Rows that are not exported are not read.
func TestCallsOfDefaultSet(t *testing.T) {
	for _, c := range []struct {
		what      string
		lines     []string
		processes bool
		maxCalls  uint64 // calls of a collection, average over a minute
	}{
		// For each GPU the fields; memory, utilization, temperature, a clock, reasons; slow calls every 25 s.
		{"host processes not visible", []string{"gpus 8"}, false, 52},
		{"without processes", []string{"gpus 8"}, true, 76}, // three lists
		{"with processes", []string{"gpus 8", "gpu * process 17 1000"}, true, 84},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newPlanFixture(t, metric.NewReadPlan(false, readsDefault(t)), c.lines...)
			before, now := s.calls(), time.Now()
			const collections = 60
			for range collections {
				now = now.Add(time.Second)
				for i, g := range s.gpus {
					g.collect(now)
					if c.processes {
						g.processCalls = g.collection.budget + g.processCallBudget()
						if _, known := s.ReadProcessUsage(s.id(i), nil); !known {
							t.Fatal("process usage: got unknown, want known")
						}
					}
				}
			}
			calls := s.calls().Since(before)
			total := uint64(0)
			for i := range s.gpus {
				total += calls.GPUTotal(i)
			}
			if total > c.maxCalls*collections {
				t.Errorf("got %d calls in %d collections, want at most %d each", total, collections, c.maxCalls)
			}
			for _, function := range []string{
				"nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization",
				"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetPerformanceState",
				"nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode",
			} {
				if n := calls.Count(function, 0); n > 0 {
					t.Errorf("calls of %s: got %d, want 0", function, n)
				}
			}
		})
	}
}

// TestSlowReadsTogether changes all slow values. The first collection with them due reads all.
func TestSlowReadsTogether(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.settledValues(0)
	s.set(nvmltest.BusyGPU...)
	stale := func() (names []string) {
		got := s.values(0)
		for i, m := range metric.Metrics() {
			name := seriesName(m)
			if m.ReadPace != device.PaceSlow || metric.Rows[i].Monotonic || strings.Contains(name, "c2c") || strings.Contains(name, "retire") {
				continue // absent on an H100 at first, or counted from there
			}
			if nvmltest.BusyValues[name] != got[name] {
				names = append(names, name)
			}
		}
		return names
	}
	if all := len(stale()); all < 60 {
		t.Fatalf("got %d slow values that changed and are not due, want at least 60", all)
	}
	s.ageSlow(0, slowInterval)
	if n := stale(); len(n) > 0 {
		t.Errorf("got stale values %v, want none", n)
	}
}

// TestSlowValuesExpire checks that old values of a GPU are not exported after a long time without reads or after a failure. The next
// collection reads all of them.
func TestSlowValuesExpire(t *testing.T) {
	const width, rows = "nvidia_gpu_pcie_link_width", "nvidia_gpu_row_remap_pending"
	s := newListedFixture(t, "gpus 1")
	if got := s.values(0); got[width] != 16 {
		t.Fatalf("link width: got %v, want 16", got[width])
	}
	s.set("gpu 0 pcie_width 8", "gpu 0 remapped_pending 1")
	if got := s.values(0); got[width] != 16 || got[rows] != 0 {
		t.Errorf("slow reads that are not due: got width %v and rows %v, want 16 and 0", got[width], got[rows])
	}
	s.ageAll(0, maxAge+time.Second)
	if got := s.values(0); got[width] != 8 || got[rows] != 1 {
		t.Errorf("slow reads that are due: got width %v and rows %v, want 8 and 1", got[width], got[rows])
	}
	s.set("gpu 0 lost", "gpu 0 pcie_width 4")
	if _, err := s.Read(s.id(0), nil); err == nil {
		t.Fatal("Read of a lost GPU: got no error")
	}
	s.clear("gpu 0 lost")
	for range 8 {
		if got, ok := s.values(0)[width]; ok && got != 4 {
			t.Fatalf("link width after the GPU was lost: got %v, want 4", got)
		}
	}
}

// togglingGPU is a GPU that changes all its values together.
type togglingGPU struct {
	*readerFixture
	lines   [2][]string
	values  [2]map[string]float64 // exported values in each state
	current int
	since   time.Time
}

// newTogglingGPU returns a GPU with an idle and a busy state. The energy counter is left out: a decrease counts as a reset.
func newTogglingGPU(t *testing.T) *togglingGPU {
	f := &togglingGPU{lines: [2][]string{
		{"gpu 0 metric 2 10"},
		slices.DeleteFunc(slices.Clone(nvmltest.BusyGPU), func(line string) bool { return strings.Contains(line, " energy ") }),
	}}
	for i := range f.values {
		if i > 0 {
			f.Close()
		}
		f.readerFixture = newListedFixture(t, append(f.lines[i], "gpus 1")...)
		f.values[i] = f.settledValues(0)
	}
	f.current, f.since = 1, time.Now()
	return f
}

func (f *togglingGPU) toggle(now time.Time) {
	f.clear("gpu 0")
	f.current, f.since = 1-f.current, now
	f.set(f.lines[f.current]...)
}

// staleNames returns the series with values of the previous state. Feature rows are no readings: a denial is cached for minutes.
func (f *togglingGPU) staleNames(got map[string]float64) (names []string) {
	for i, m := range metric.Metrics() {
		name := seriesName(m)
		old, had := f.values[1-f.current][name]
		fresh, has := f.values[f.current][name]
		if v, exported := got[name]; exported && had && has && old != fresh && v == old && m.ReadPace != device.PaceStatic &&
			!metric.Rows[i].Monotonic && m.Name != "nvidia_gpu_feature_supported" {
			names = append(names, name)
		}
	}
	return names
}

// TestAgeOfValues collects at several intervals, in simulated time, from a GPU that sometimes changes all its values. No value of the
// previous state is exported after half a minute, from the first collection on, and the number of calls is limited.
func TestAgeOfValues(t *testing.T) {
	names := []string{}
	for _, m := range metric.Metrics() {
		names = append(names, seriesName(m))
	}
	for _, seconds := range []int{1, 15, 30, 45, 60, 61, 90, 300} {
		every := time.Duration(seconds) * time.Second
		f := newTogglingGPU(t)
		g, begin := f.gpu(0), f.since
		collections, slow := 0, 0
		for at := time.Second; at <= max(10*time.Minute, 6*every); at += time.Second {
			now := begin.Add(at)
			if at == 10*time.Second || at%(130*time.Second) == 0 {
				f.toggle(now)
			}
			if at%(5*time.Second) == 0 {
				g.takeSamples(now)
			}
			if at%every != 0 {
				continue
			}
			before := f.calls()
			g.collect(now)
			if n := f.calls().Since(before).GPUTotal(0) + uint64(g.processCallBudget()); n > maxCollectionCalls {
				t.Errorf("every %v: collection at %v: got %d calls, want at most %d", every, at, n, maxCollectionCalls)
			}
			got := map[string]float64{}
			for _, sample := range g.appendSamples(nil, now) {
				got[names[sample.Metric]] = sample.Value
			}
			stale := f.staleNames(rounded(got))
			if age := now.Sub(f.since); age >= 30*time.Second && len(stale) > 0 {
				t.Errorf("every %v: %v after the change: got %d stale values, want 0: %v", every, age, len(stale), stale)
			}
			collections, slow = collections+1, max(slow, len(stale))
		}
		if collections < 5 || every == time.Second && slow < 40 {
			t.Errorf("every %v: got %d collections with up to %d stale values, want at least 5, and 40 at one second", every, collections, slow)
		}
		f.Close()
	}
}

// passTime returns a function that simulates collections every 5 s for a while. The function returns the last value of a series, -1 if absent.
func (s *readerFixture) passTime(name string) func(by time.Duration) float64 {
	g, now := s.gpu(0), time.Now()
	return func(by time.Duration) float64 {
		for end := now.Add(by); now.Before(end); {
			now = now.Add(5 * time.Second)
			g.takeSamples(now)
			g.collect(now)
		}
		for _, sample := range g.appendSamples(nil, now) {
			if seriesName(metric.Metrics()[sample.Metric]) == name {
				return sample.Value
			}
		}
		return -1
	}
}

// TestStrayDenialAtListing is TestStrayDenial for calls whose result is read when the GPU is listed.
func TestStrayDenialAtListing(t *testing.T) {
	for _, c := range []struct {
		fails, name string
		back        time.Duration
	}{
		{"nvmlGpmQueryDeviceSupport", smActive, 40 * time.Second}, // with the next window
		{"field:91", "nvidia_gpu_nvlink_links_up", 30 * time.Second},
	} {
		for _, denied := range []time.Duration{0, 2 * time.Minute} {
			s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 10", "fail "+c.fails+" gpu 0 NOT_SUPPORTED")
			pass := s.passTime(c.name)
			pass(denied)
			s.clear("fail")
			has := pass(c.back) >= 0
			switch {
			case denied == 0 && !has:
				t.Errorf("%s: %s is absent %v after one NOT_SUPPORTED", c.fails, c.name, c.back)
			case denied > 0 && has:
				t.Errorf("%s: read again too soon after minutes of denials", c.fails)
			case pass(confirmedRetryInterval+c.back) < 0:
				t.Errorf("%s: never read again", c.fails)
			}
			s.Close()
		}
	}
}

// TestStrayDenialOfFeature lets a GPU deny a feature once, and then for long, at the first read or later. The feature counts as not
// supported only after several denials.
func TestStrayDenialOfFeature(t *testing.T) {
	for feature, fails := range map[string]string{
		"ecc": "field:1", "nvlink": "field:91", "row_remapping": "field:143",
		"fabric": "nvmlDeviceGetGpuFabricInfoV", "gpm": "nvmlGpmQueryDeviceSupport",
	} {
		name, deny := fmt.Sprintf("nvidia_gpu_feature_supported{feature=%q}", feature), "fail "+fails+" gpu 0 NOT_SUPPORTED"
		for _, first := range []bool{true, false} {
			s := newListedFixture(t, "gpus 1")
			if first {
				s.set(deny)
				s.Close()
				s.list(1)
			}
			lastValue := s.passTime(name)
			pass := func(by time.Duration) (last float64) {
				for ; by > 0; by -= 10 * time.Second {
					s.list(1)
					if last = lastValue(10 * time.Second); last == 0 {
						break
					}
				}
				return last
			}
			if !first {
				if got := pass(time.Minute); got != 1 {
					t.Fatalf("%s: got %v, want 1", feature, got)
				}
				s.set(deny)
				if pass(10*time.Second) == 0 { // the driver gets at most two calls in ten seconds
					t.Errorf("%s: got 0 after one denial", feature)
				}
			} else if lastValue(0) == 0 {
				t.Errorf("%s: got 0 after the first denial", feature)
			}
			s.clear("fail")
			if got := pass(time.Minute); got != 1 {
				t.Errorf("%s: got %v a minute after one denial, want 1; at the first read: %v", feature, got, first)
			}
			s.set(deny)
			want := 0.0
			if feature == "gpm" { // a positive response is final
				want = 1
			}
			if got := pass(2 * time.Minute); got != want {
				t.Errorf("%s: got %v after two minutes of denials, want %v", feature, got, want)
			}
			s.clear("fail")
			s.Close()
		}
	}
}

// TestStrayDenial lets a GPU deny a reading once. Each kind of reading is repeated within half a minute, and given up after several denials.
func TestStrayDenial(t *testing.T) {
	for _, c := range []struct{ fails, name string }{
		{"field:82", `nvidia_gpu_temperature_celsius{sensor="memory"}`},
		{"field:94", "nvidia_gpu_pcie_replays_total"},
		{"nvmlDeviceGetTemperature", `nvidia_gpu_temperature_celsius{sensor="gpu"}`},
		{"nvmlDeviceGetCurrPcieLinkWidth", "nvidia_gpu_pcie_link_width"},
		{"nvmlGpmSampleGet", smActive},
	} {
		s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 10")
		lastValue := s.passTime(c.name)
		pass := func(by time.Duration) (has bool) { return lastValue(by) >= 0 }
		if !pass(time.Minute) {
			t.Fatalf("%s: %s is absent", c.fails, c.name)
		}
		s.set("fail " + c.fails + " gpu 0 NOT_SUPPORTED")
		for steps := 0; pass(5 * time.Second); steps++ { // until the next read
			if steps > 12 {
				t.Fatalf("%s: %s is still exported a minute after NOT_SUPPORTED", c.fails, c.name)
			}
		}
		s.clear("fail")
		back := 30 * time.Second
		if c.fails == "nvmlGpmSampleGet" {
			back += 10 * time.Second // with the next window
		}
		if !pass(back) {
			t.Errorf("%s: absent %v after one NOT_SUPPORTED", c.fails, back)
		}
		s.set("fail " + c.fails + " gpu 0 NOT_SUPPORTED")
		pass(2 * time.Minute)
		s.clear("fail")
		if pass(time.Minute) {
			t.Errorf("%s: read again too soon after minutes of denials", c.fails)
		}
		if !pass(confirmedRetryInterval) {
			t.Errorf("%s: never read again", c.fails)
		}
		s.Close()
	}
}

// TestSlowCallFails checks that a failed slow call removes the value at once, and that the call is retried.
func TestSlowCallFails(t *testing.T) {
	const width = "nvidia_gpu_pcie_link_width"
	s := newListedFixture(t, "gpus 1", "gpu 0 pcie_width 8")
	for code, retryAfter := range map[string]time.Duration{"UNKNOWN": slowInterval, "NOT_SUPPORTED": unconfirmedRetryInterval} {
		s.set("fail nvmlDeviceGetCurrPcieLinkWidth gpu 0 " + code)
		has := func(want bool) bool {
			for range 8 {
				if _, ok := s.values(0)[width]; ok == want {
					return true
				}
			}
			return false
		}
		s.ageSlow(0, slowInterval)
		if !has(false) {
			t.Errorf("%s: the old value is still exported", code)
		}
		s.clear("fail")
		g := s.gpu(0)
		for i := range g.callStates {
			g.callStates[i].denials.lastAt = g.callStates[i].denials.lastAt.Add(-retryAfter)
		}
		s.ageSlow(0, retryAfter)
		if !has(true) {
			t.Errorf("%s: never read again", code)
		}
	}
}

// TestOlderStruct has a driver that knows only the older version of a struct. The newer version is not requested each time.
func TestOlderStruct(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "driver 550.54.15")
	g := s.gpu(0)
	newer := slices.IndexFunc(metric.Calls, func(c metric.Call) bool { return c.Symbol == "nvmlDeviceGetGpuFabricInfoV" })
	g.callStates[newer].denials = Denials{DenialsToConfirm, time.Now()} // as after ARGUMENT_VERSION_MISMATCH
	g.latest.Unset(metric.Calls[newer].Values)
	s.set("gpu 0 fabric_state 2")
	var got map[string]float64
	for range 8 {
		s.ageSlow(0, slowInterval)
		got = s.values(0)
	}
	if got[`nvidia_gpu_fabric_state{state="in_progress"}`] != 1 || g.callStates[newer+1].calledAt.IsZero() {
		t.Errorf("got %v, want fabric state in_progress from the older call", got)
	}
	if _, ok := got["nvidia_gpu_fabric_healthy"]; ok {
		t.Error("got a fabric health before the GPU joined the fabric, want none")
	}
	if !g.callStates[newer].calledAt.Before(g.callStates[newer+1].calledAt) {
		t.Error("the newer version was requested again")
	}
}

// TestRenumberedFields checks that fields are not read with driver versions that give their numbers another meaning.
func TestRenumberedFields(t *testing.T) {
	const brake = `nvidia_gpu_throttle_seconds_total{reason="hw_power_brake"}`
	for version, has := range map[string]bool{"575.57.08": false, "580.65.06": false, "580.82.07": true, "580.95.05": true, "590.44.01": true, "unknown": false} {
		s := newListedFixture(t, "gpus 1", "driver "+version)
		if _, ok := s.values(0)[brake]; ok != has {
			t.Errorf("driver %s: value present: got %v, want %v", version, ok, has)
		}
		s.Close() // Init reads the version
	}
}

// TestMIGModeChanges checks that metrics that a MIG-enabled GPU lacks return as soon as MIG mode is off.
func TestMIGModeChanges(t *testing.T) {
	const busy = "nvidia_gpu_utilization_ratio"
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1")
	got := s.values(0)
	if _, ok := got[busy]; ok || got[`nvidia_gpu_mig_enabled{when="now"}`] != 1 {
		t.Errorf("with MIG mode: got %v, want no utilization", got)
	}
	s.set("gpu 0 mig_mode 0")
	s.list(1)
	got = s.values(0)
	if _, ok := got[busy]; !ok || got[`nvidia_gpu_mig_enabled{when="now"}`] != 0 {
		t.Errorf("without MIG mode: got %v, want a utilization", got)
	}
}

// TestFirstReadFails lets a GPU fail when it is listed first. Its features are read when it responds, within the limit of calls.
func TestFirstReadFails(t *testing.T) {
	for _, code := range []string{"UNKNOWN", "GPU_IS_LOST"} {
		s := newListedFixture(t, "gpus 1", "fail nvmlDeviceGetFieldValues gpu 0 "+code, "fail nvmlGpmQueryDeviceSupport gpu 0 "+code)
		s.clear("fail")
		var got map[string]float64
		for range 16 { // all slow and static reads are due
			before := s.calls()
			got = s.values(0)
			if n := s.calls().Since(before).GPUTotal(0); n > 40 { // as in TestCallsPerCollection, and the static reads
				t.Errorf("%s: calls of a collection: got %d, want at most 40", code, n)
			}
			s.closeWindow(0)
			s.ageSlow(0, slowInterval)
		}
		for _, name := range []string{smActive, "nvidia_gpu_nvlink_links_up", `nvidia_gpu_feature_supported{feature="gpm"}`} {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: %s is absent", code, name)
			}
		}
		s.Close()
	}
}
