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

// ageSlow has all that is slow be older by a while.
func (s *readerFixture) ageSlow(i int, by time.Duration) {
	g := s.gpu(i)
	g.slowReadAt = g.slowReadAt.Add(-by)
	older := func(turns []callState) {
		for i := range turns {
			turns[i].calledAt = turns[i].calledAt.Add(-by)
		}
	}
	older(g.callStates)
	for _, in := range g.instances {
		older(in.callStates)
	}
}

// ageAll is as if no collection and no check had been for a while.
func (s *readerFixture) ageAll(i int, by time.Duration) {
	s.ageSamples(i, by)
	s.ageSlow(i, by)
}

// collectAll is a flight with all that a scrape asks of a GPU.
func (s *readerFixture) collectAll(i int) (samples []device.Sample, uses []device.ProcessUsage, known bool) {
	s.Helper()
	samples, err := s.Read(s.id(i), nil)
	s.must(err)
	uses, known = s.ReadProcessUsage(s.id(i), nil)
	return samples, uses, known
}

// sevenMIGDevices is a GPU partitioned as far as it can be.
func sevenMIGDevices(model string) []string {
	lines := []string{"gpus 1", "gpu 0 model " + model, "gpu 0 mig_mode 1"}
	for i := range 7 {
		lines = append(lines,
			fmt.Sprintf("gpu 0 slice %d 1g.10gb gi %d ci 0 uuid MIG-%d used %d", i, i+7, i, 1000+i),
			fmt.Sprintf("gpu 0 process %d 100 gi %d ci 0", 50+i, i+7))
	}
	return lines
}

// TestCallsOfFlight counts what flights cost, with nothing that is due and with all that
// is slow, and wants none to be above what a flight may cost. What is fast is made in each.
func TestCallsOfFlight(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		fast  uint64 // calls of a flight in which nothing slow is due
		most  uint64
		old   uint64 // of one in which all that is slow would be too old
	}{
		// The fields; memory, utilization, four engines, temperature, a clock, reasons;
		// three lists of processes and their shares.
		{"H100", []string{"gpus 1", "gpu 0 model h100", "gpu 0 process 17 1000"}, 14, 20, 30},
		{"H100 that nobody uses", []string{"gpus 1"}, 13, 20, 29},
		{"B200", []string{"gpus 1", "gpu 0 model b200", "gpu 0 process 17 1000"}, 14, 20, 30},
		// The T4 has two engines.
		{"T4", []string{"gpus 1", "gpu 0 model t4", "gpu 0 process 17 1000"}, 12, 20, 28},
		{"A100", []string{"gpus 1", "gpu 0 model a100", "gpu 0 process 17 1000"}, 14, 20, 30},
		// The fields, memory, temperature, a clock, reasons, three lists; of each slice its
		// memory and whether it is the one.
		{"A100 in seven slices", sevenMIGDevices("a100"), 8 + 7*2, 20 + 7*3, 24 + 7*4},
		{"H100 in seven slices", sevenMIGDevices("h100"), 8 + 7*2, 20 + 7*3, 24 + 7*4},
		{"H100 without fields", []string{"gpus 1", "fail nvmlDeviceGetFieldValues gpu 0 NOT_SUPPORTED"}, 14, 20, 31},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newListedFixture(t, c.lines...)
			flight := func() uint64 {
				before := s.calls()
				s.collectAll(0)
				calls := s.calls().Since(before)
				for _, function := range []string{"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetUUID"} {
					if n := calls.Count(function, 0); n > uint64(len(s.gpu(0).instances)) {
						t.Errorf("%s is called %d times", function, n)
					}
				}
				if n := calls.Count(lib.FieldValuesSymbol, 0); n > 2 {
					t.Errorf("fields are asked for %d times", n)
				}
				return calls.GPUTotal(0)
			}
			var first, due, old []uint64
			for range 12 {
				first = append(first, flight())
			}
			for range 12 {
				s.ageSlow(0, slowInterval)
				due = append(due, flight())
				for range 4 {
					flight()
				}
			}
			for range 4 {
				s.ageSlow(0, 2*maxAge)
				old = append(old, flight())
			}
			for range 24 { // what the last of them left
				flight()
			}
			settled := flight()
			if settled != c.fast {
				t.Errorf("a flight with nothing slow makes %d calls, want %d", settled, c.fast)
			}
			if n := max(slices.Max(first), slices.Max(due)); n > c.most {
				t.Errorf("a flight makes up to %d calls, may make %d: %v, %v", n, c.most, first, due)
			}
			if n := slices.Max(old); n > c.old {
				t.Errorf("with values that would be too old a collection makes up to %d calls, may make %d: %v", n, c.old, old)
			}
			if n := slices.Max(due); n <= settled {
				t.Errorf("nothing slow is asked for: %v", due)
			}
		})
	}
}

// readsDefault selects the rows of the set default, and one row of the status page besides.
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

// TestCallsOfDefaultSet counts the calls of a collection a second on 8 GPUs with the set default: what is not exported is not read.
func TestCallsOfDefaultSet(t *testing.T) {
	for _, c := range []struct {
		what      string
		lines     []string
		processes bool
		most      uint64 // calls of a collection, on average over a minute
	}{
		// Of each GPU the fields; memory, utilization, temperature, a clock, reasons; slow calls every 25 s.
		{"processes of the node invisible", []string{"gpus 8"}, false, 51},
		{"without processes", []string{"gpus 8"}, true, 75}, // three lists
		{"with processes", []string{"gpus 8", "gpu * process 17 1000"}, true, 83},
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
							t.Fatal("processes are unknown")
						}
					}
				}
			}
			calls := s.calls().Since(before)
			total := uint64(0)
			for i := range s.gpus {
				total += calls.GPUTotal(i)
			}
			if total > c.most*collections {
				t.Errorf("%d calls in %d collections, at most %d each", total, collections, c.most)
			}
			for _, function := range []string{
				"nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization",
				"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetPerformanceState",
				"nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode",
			} {
				if n := calls.Count(function, 0); n > 0 {
					t.Errorf("%s is called %d times", function, n)
				}
			}
		})
	}
}

// TestSlowComesRound has all that is slow change. With each flight some of it is read,
// what was read longest ago first, until all is.
func TestSlowComesRound(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.settledValues(0)
	s.set(nvmltest.BusyGPU...)
	stale := func() (names []string) {
		got := s.values(0)
		for i, m := range metric.Metrics() {
			name := seriesName(m)
			if m.ReadPace != device.PaceSlow || metric.Rows[i].Monotonic || strings.Contains(name, "c2c") || strings.Contains(name, "retire") {
				continue // an H100 does not have it at first, or it is counted from there
			}
			if nvmltest.BusyValues[name] != got[name] {
				names = append(names, name)
			}
		}
		return names
	}
	all := len(stale())
	if all < 60 {
		t.Fatalf("%d slow values have changed, of those that were not due", all)
	}
	s.ageSlow(0, slowInterval)
	left := []int{all}
	for len(left) < 8 && left[len(left)-1] > 0 {
		left = append(left, len(stale()))
	}
	if left[1] >= all || left[2] >= left[1] {
		t.Errorf("a flight reads nothing that is slow: %v", left)
	}
	if n := stale(); len(n) > 0 {
		t.Errorf("after %v still as before: %v", left, n)
	}
}

// TestSlowValuesEnd has a GPU not be read for long, and fail: what was read before is
// not shown as what is. After a while the next collection has all of it.
func TestSlowValuesEnd(t *testing.T) {
	const width, rows = "nvidia_gpu_pcie_link_width", "nvidia_gpu_row_remap_pending"
	s := newListedFixture(t, "gpus 1")
	if got := s.values(0); got[width] != 16 {
		t.Fatalf("got %v", got)
	}
	s.set("gpu 0 pcie_width 8", "gpu 0 remapped_pending 1")
	if got := s.values(0); got[width] != 16 || got[rows] != 0 {
		t.Errorf("it is asked for all the time: %v, %v", got[width], got[rows])
	}
	s.ageAll(0, maxAge+time.Second)
	if got := s.values(0); got[width] != 8 || got[rows] != 1 {
		t.Errorf("got %v, %v", got[width], got[rows])
	}
	s.set("gpu 0 lost", "gpu 0 pcie_width 4")
	if _, err := s.Read(s.id(0), nil); err == nil {
		t.Fatal("a lost GPU is read")
	}
	s.clear("gpu 0 lost")
	for range 8 {
		if got, ok := s.values(0)[width]; ok && got != 4 {
			t.Fatalf("after it was lost it shows %v", got)
		}
	}
}

// togglingGPU is a GPU of which all values change together.
type togglingGPU struct {
	*readerFixture
	lines   [2][]string
	values  [2]map[string]float64 // what it shows in either state
	current int
	since   time.Time
}

// newTogglingGPU begins with an idle GPU, whose other state is a busy one. Energy is left out:
// a counter that goes down is a reset.
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

// staleNames names what shows the state that has ended. Features are no readings: what a GPU
// denies is believed for minutes.
func (f *togglingGPU) staleNames(got map[string]float64) (names []string) {
	for i, m := range metric.Metrics() {
		name := seriesName(m)
		old, had := f.values[1-f.current][name]
		fresh, has := f.values[f.current][name]
		if v, shown := got[name]; shown && had && has && old != fresh && v == old && m.ReadPace != device.PaceStatic && !metric.Rows[i].Monotonic && m.Name != "nvidia_gpu_feature_supported" {
			names = append(names, name)
		}
	}
	return names
}

// TestAgeOfValues collects at several intervals, in simulated time, from a GPU of which
// everything changes now and then. Nothing of before a change is shown a minute later, and no
// collection makes more calls than it may.
func TestAgeOfValues(t *testing.T) {
	names := []string{}
	for _, m := range metric.Metrics() {
		names = append(names, seriesName(m))
	}
	for every, most := range map[time.Duration]uint64{
		time.Second: maxCallsPerGPU, 15 * time.Second: maxCallsPerGPU, 30 * time.Second: 30, time.Minute: 30, 2 * time.Minute: 30,
	} {
		f := newTogglingGPU(t)
		g, begin := f.gpu(0), f.since
		collections, slow := 0, 0
		for at := time.Second; at <= max(5*time.Minute, 6*every); at += time.Second {
			now := begin.Add(at)
			if at%(130*time.Second) == 0 {
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
			if n := f.calls().Since(before).GPUTotal(0) + uint64(g.processCallBudget()); n > most {
				t.Errorf("every %v: the collection at %v makes %d calls, may make %d", every, at, n, most)
			}
			got := map[string]float64{}
			for _, sample := range g.appendSamples(nil, now) {
				got[names[sample.Metric]] = sample.Value
			}
			stale := f.staleNames(rounded(got))
			if age := now.Sub(f.since); age > time.Minute && len(stale) > 0 {
				t.Errorf("every %v: %v after everything has changed it shows %d values of before: %v", every, age, len(stale), stale)
			}
			collections, slow = collections+1, max(slow, len(stale))
		}
		if collections < 5 || every == time.Second && slow < 40 {
			t.Errorf("every %v: %d collections, in which %d values were of before", every, collections, slow)
		}
		f.Close()
	}
}

// passTime returns a function that lets a while pass, in steps of a scrape's interval, and
// returns the last value of a series; -1: it is absent.
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

// TestStrayDenialAtFirst is TestStrayDenial for what depends on an answer that a GPU gives
// when it is listed.
func TestStrayDenialAtFirst(t *testing.T) {
	for _, c := range []struct {
		fails, name string
		back        time.Duration
	}{
		{"nvmlGpmQueryDeviceSupport", smActive, 40 * time.Second}, // with the window that begins then
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
				t.Errorf("%s: there is no %s %v after one NOT_SUPPORTED", c.fails, c.name, c.back)
			case denied > 0 && has:
				t.Errorf("%s: it is asked for again soon, though it was denied for minutes", c.fails)
			case pass(confirmedRetryInterval+c.back) < 0:
				t.Errorf("%s: it never comes back", c.fails)
			}
			s.Close()
		}
	}
}

// TestStrayDenialOfFeature has a GPU deny once, and then for long, what it had or is first
// asked for: a feature is not supported only after several denials.
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
			shown := s.passTime(name)
			pass := func(by time.Duration) (last float64) {
				for ; by > 0; by -= 10 * time.Second {
					s.list(1)
					if last = shown(10 * time.Second); last == 0 {
						break
					}
				}
				return last
			}
			if !first {
				if got := pass(time.Minute); got != 1 {
					t.Fatalf("%s is %v", feature, got)
				}
				s.set(deny)
				if pass(10*time.Second) == 0 { // in ten seconds the driver is asked at most twice
					t.Errorf("%s is 0 after one denial", feature)
				}
			} else if shown(0) == 0 {
				t.Errorf("%s is 0 after the first denial", feature)
			}
			s.clear("fail")
			if got := pass(time.Minute); got != 1 {
				t.Errorf("%s is %v a minute after one denial, first %v", feature, got, first)
			}
			s.set(deny)
			want := 0.0
			if feature == "gpm" { // what the GPU has said is not asked again
				want = 1
			}
			if got := pass(2 * time.Minute); got != want {
				t.Errorf("%s is %v after two minutes of denials, want %v", feature, got, want)
			}
			s.clear("fail")
			s.Close()
		}
	}
}

// TestStrayDenial has the GPU say for once that it does not have something: each kind of
// reading is asked for again within half a minute, and given up after several denials.
func TestStrayDenial(t *testing.T) {
	for _, c := range []struct{ fails, name string }{
		{"field:82", `nvidia_gpu_temperature_celsius{sensor="memory"}`},
		{"field:94", "nvidia_gpu_pcie_replays_total"},
		{"nvmlDeviceGetTemperature", `nvidia_gpu_temperature_celsius{sensor="gpu"}`},
		{"nvmlDeviceGetCurrPcieLinkWidth", "nvidia_gpu_pcie_link_width"},
		{"nvmlGpmSampleGet", smActive},
	} {
		s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 10")
		shown := s.passTime(c.name)
		pass := func(by time.Duration) (has bool) { return shown(by) >= 0 }
		if !pass(time.Minute) {
			t.Fatalf("%s: there is no %s", c.fails, c.name)
		}
		s.set("fail " + c.fails + " gpu 0 NOT_SUPPORTED")
		for steps := 0; pass(5 * time.Second); steps++ { // the reading is asked for once
			if steps > 12 {
				t.Fatalf("%s: %s is still there a minute after NOT_SUPPORTED", c.fails, c.name)
			}
		}
		s.clear("fail")
		back := 30 * time.Second
		if c.fails == "nvmlGpmSampleGet" {
			back += 10 * time.Second // and the window that begins then
		}
		if !pass(back) {
			t.Errorf("%s: it is not there %v after one NOT_SUPPORTED", c.fails, back)
		}
		s.set("fail " + c.fails + " gpu 0 NOT_SUPPORTED")
		pass(2 * time.Minute)
		s.clear("fail")
		if pass(time.Minute) {
			t.Errorf("%s: it is asked for again soon, though it was denied for minutes", c.fails)
		}
		if !pass(confirmedRetryInterval) {
			t.Errorf("%s: it never comes back", c.fails)
		}
		s.Close()
	}
}

// TestSlowCallFails drops the value at once, and comes back to it in time.
func TestSlowCallFails(t *testing.T) {
	const width = "nvidia_gpu_pcie_link_width"
	s := newListedFixture(t, "gpus 1", "gpu 0 pcie_width 8")
	for code, again := range map[string]time.Duration{"UNKNOWN": slowInterval, "NOT_SUPPORTED": unconfirmedRetryInterval} {
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
			t.Errorf("%s: the old value stays", code)
		}
		s.clear("fail")
		g := s.gpu(0)
		for i := range g.callStates {
			g.callStates[i].denials.lastAt = g.callStates[i].denials.lastAt.Add(-again)
		}
		s.ageSlow(0, again)
		if !has(true) {
			t.Errorf("%s: it never comes back", code)
		}
	}
}

// TestOlderForm has a driver that knows the older form of a struct alone. It is asked
// for that, and not for the newer one each time.
func TestOlderForm(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "driver 550.54.15")
	g := s.gpu(0)
	newer := slices.IndexFunc(metric.Calls, func(c metric.Call) bool { return c.Symbol == "nvmlDeviceGetGpuFabricInfoV" })
	g.callStates[newer].denials = Denials{DenialsToConfirm, time.Now()} // as if it had answered ARGUMENT_VERSION_MISMATCH
	g.latest.Unset(metric.Calls[newer].Values)
	s.set("gpu 0 fabric_state 2")
	var got map[string]float64
	for range 8 {
		s.ageSlow(0, slowInterval)
		got = s.values(0)
	}
	if got[`nvidia_gpu_fabric_state{state="in_progress"}`] != 1 || g.callStates[newer+1].calledAt.IsZero() {
		t.Errorf("got %v", got)
	}
	if _, ok := got["nvidia_gpu_fabric_healthy"]; ok {
		t.Error("a GPU that has not joined the fabric is healthy or not")
	}
	if !g.callStates[newer].calledAt.Before(g.callStates[newer+1].calledAt) {
		t.Error("the newer form is asked for")
	}
}

// TestRenumberedFields are not asked for where their numbers mean something else.
func TestRenumberedFields(t *testing.T) {
	const brake = `nvidia_gpu_throttle_seconds_total{reason="hw_power_brake"}`
	for version, has := range map[string]bool{"575.57.08": false, "580.65.06": false, "580.82.07": true, "580.95.05": true, "590.44.01": true, "unknown": false} {
		s := newListedFixture(t, "gpus 1", "driver "+version)
		if _, ok := s.values(0)[brake]; ok != has {
			t.Errorf("driver %s: it is read: %v", version, ok)
		}
		s.Close() // the version is asked for by an Init
	}
}

// TestMIGModeChanges: what a partitioned GPU does not have comes back at once.
func TestMIGModeChanges(t *testing.T) {
	const busy = "nvidia_gpu_utilization_ratio"
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1")
	got := s.values(0)
	if _, ok := got[busy]; ok || got[`nvidia_gpu_mig_enabled{when="now"}`] != 1 {
		t.Errorf("partitioned: %v", got)
	}
	s.set("gpu 0 mig_mode 0")
	s.list(1)
	got = s.values(0)
	if _, ok := got[busy]; !ok || got[`nvidia_gpu_mig_enabled{when="now"}`] != 0 {
		t.Errorf("not any more: %v", got)
	}
}

// TestFirstMeetingFails has a GPU fail when it is listed for the first time: what it has is
// found out when it answers, and within what a flight may cost.
func TestFirstMeetingFails(t *testing.T) {
	for _, code := range []string{"UNKNOWN", "GPU_IS_LOST"} {
		s := newListedFixture(t, "gpus 1", "fail nvmlDeviceGetFieldValues gpu 0 "+code, "fail nvmlGpmQueryDeviceSupport gpu 0 "+code)
		s.clear("fail")
		var got map[string]float64
		for range 16 { // all that is slow or static is still to be asked for
			before := s.calls()
			got = s.values(0)
			if n := s.calls().Since(before).GPUTotal(0); n > 30 { // as in TestCallsOfFlight
				t.Errorf("%s: a flight makes %d calls", code, n)
			}
			s.closeWindow(0)
			s.ageSlow(0, slowInterval)
		}
		for _, name := range []string{smActive, "nvidia_gpu_nvlink_links_up", `nvidia_gpu_feature_supported{feature="gpm"}`} {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: it never has %s", code, name)
			}
		}
		s.Close()
	}
}
