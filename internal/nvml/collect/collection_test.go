package collect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// sevenMIGDevices returns the scenario of a GPU with the maximum number of MIG
// devices.
func sevenMIGDevices(model string) []string {
	lines := []string{"gpus 1", "gpu 0 model " + model, "gpu 0 mig_mode 1"}
	for i := range 7 {
		lines = append(lines,
			fmt.Sprintf("gpu 0 slice %d 1g.10gb gi %d ci 0 uuid MIG-%d used %d", i, i+7, i, 1000+i),
			fmt.Sprintf("gpu 0 process %d 100 gi %d ci 0", 50+i, i+7))
	}
	return lines
}

// readsDefault selects the rows of the set default.
func readsDefault(m *device.Metric) bool { return m.Set >= device.SetDefault }

// TestCalls limits the calls of collections of 8 GPUs with the set default in
// the steady state. Rows that are not exported are not read.
func TestCalls(t *testing.T) {
	const maxCalls = 110
	for what, lines := range map[string][]string{
		"H100":               {"gpu * model h100", "gpu * process 17 1000"},
		"H100 without usage": {"gpu * model h100"},
		"B200":               {"gpu * model b200", "gpu * process 17 1000"},
		"A100":               {"gpu * model a100", "gpu * process 17 1000"},
		"T4":                 {"gpu * model t4", "gpu * process 17 1000"},
	} {
		for _, interval := range []time.Duration{time.Second, 10 * time.Second, 15 * time.Second} {
			bubble.Test(t, func(t *testing.T) {
				s := newPlanFixture(t, metric.NewReadPlan(false, readsDefault), append(lines, "gpus 8")...)
				defer s.Close()
				readers := device.NewReaders(s)
				collect := func() {
					time.Sleep(interval)
					for _, r := range readers.Read(t.Context(), s.ids(), true) {
						if r.Err != nil || !r.ProcessUsageKnown {
							t.Fatalf("reading of %s: got error %v, processes known %v", r.GPU, r.Err,
								r.ProcessUsageKnown)
						}
					}
				}
				for range 2 * time.Minute / interval { // absent values are not asked for again at once
					collect()
				}
				before, collections := s.calls(), uint64(5*time.Minute/interval)
				for range collections {
					collect()
				}
				calls, total := s.calls().Since(before), uint64(0)
				for i := range s.gpus {
					total += calls.GPUTotal(i)
				}
				if total > maxCalls*collections {
					t.Errorf("%s, every %s: got %d calls a collection, want at most %d", what, interval,
						total/collections, maxCalls)
				}
				for _, function := range []string{
					"nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetOfaUtilization", "nvmlDeviceGetBAR1MemoryInfo",
					"nvmlDeviceGetComputeMode",
				} {
					if n := calls.Count(function, 0); n > 0 {
						t.Errorf("calls of %s: got %d, want 0", function, n)
					}
				}
			})
		}
	}
}

// TestSlowValuesExpire checks that old values of a GPU are not exported after a
// long time without reads or after a failure. The next collection reads all of
// them.
func TestSlowValuesExpire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const width, rows = "nvidia_gpu_pcie_link_width", "nvidia_gpu_row_remap_pending"
		s := newListedFixture(t, "gpus 1")
		if got := s.values(0); got[width] != 16 {
			t.Fatalf("link width: got %v, want 16", got[width])
		}
		s.set("gpu 0 pcie_width 8", "gpu 0 remapped_pending 1")
		if got := s.values(0); got[width] != 16 || got[rows] != 0 {
			t.Errorf("slow reads that are not due: got width %v and rows %v, want 16 and 0", got[width], got[rows])
		}
		time.Sleep(time.Minute)
		if got := s.values(0); got[width] != 8 || got[rows] != 1 {
			t.Errorf("slow reads that are due: got width %v and rows %v, want 8 and 1", got[width], got[rows])
		}
		s.set("gpu 0 lost", "gpu 0 pcie_width 4")
		if _, err := s.Read(s.id(0)); err == nil {
			t.Fatal("Read of a lost GPU: got no error")
		}
		s.clear("gpu 0 lost")
		for range 8 {
			if got, ok := s.values(0)[width]; ok && got != 4 {
				t.Fatalf("link width after the GPU was lost: got %v, want 4", got)
			}
		}
	})
}

// togglingGPU is a GPU that changes all its values together.
type togglingGPU struct {
	*readerFixture
	lines   [2][]string
	values  [2]map[string]float64 // exported values in each state
	current int
	since   time.Time
}

// newTogglingGPU returns a GPU with an idle and a busy state. The energy
// counter is left out: a decrease counts as a reset.
func newTogglingGPU(t *testing.T) *togglingGPU {
	f := &togglingGPU{lines: [2][]string{
		{"gpu 0 metric 2 10"},
		slices.DeleteFunc(slices.Clone(nvmltest.BusyGPU),
			func(line string) bool { return strings.Contains(line, " energy ") }),
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

func (f *togglingGPU) toggle() {
	f.clear("gpu 0")
	f.current, f.since = 1-f.current, time.Now()
	f.set(f.lines[f.current]...)
}

// staleNames returns the series with values of the previous state. Feature rows
// are no readings: a denial is cached for minutes.
func (f *togglingGPU) staleNames(got map[string]float64) (names []string) {
	for i, m := range metric.Metrics() {
		name := seriesName(m)
		old, had := f.values[1-f.current][name]
		fresh, has := f.values[f.current][name]
		if v, exported := got[name]; exported && had && has && old != fresh && v == old &&
			m.ReadPace != device.PaceStatic &&
			!metric.Rows[i].Monotonic && m.Name != "nvidia_gpu_feature_supported" {
			names = append(names, name)
		}
	}
	return names
}

// TestAgeOfValues collects at several intervals from a GPU that sometimes
// changes all its values. No value of the previous state is exported after half
// a minute, from the first collection on.
func TestAgeOfValues(t *testing.T) {
	for _, seconds := range []int{1, 15, 30, 45, 60, 61, 90, 300} {
		bubble.Test(t, func(t *testing.T) {
			every := time.Duration(seconds) * time.Second
			f := newTogglingGPU(t)
			defer f.Close()
			collections, slow := 0, 0
			for at := time.Second; at <= max(10*time.Minute, 6*every); at += time.Second {
				time.Sleep(time.Second)
				if at == 10*time.Second || at%(130*time.Second) == 0 {
					f.toggle()
				}
				if at%(5*time.Second) == 0 {
					_, _ = f.Check(f.id(0)) // ends the windows; faults are irrelevant here
				}
				if at%every != 0 {
					continue
				}
				stale := f.staleNames(rounded(f.readerFixture.values(0)))
				if age := time.Since(f.since); age >= 30*time.Second && len(stale) > 0 {
					t.Errorf("every %v: %v after the change: got %d stale values, want 0: %v", every, age, len(stale),
						stale)
				}
				collections, slow = collections+1, max(slow, len(stale))
			}
			if collections < 5 || every == time.Second && slow < 40 {
				t.Errorf("every %v: got %d collections with up to %d stale values, want at least 5 and 40",
					every, collections, slow)
			}
		})
	}
}

// TestStrayDenialOfFeature lets a GPU deny a feature once, and then for long,
// at the first read or later. The feature counts as not supported only after
// several denials.
func TestStrayDenialOfFeature(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for feature, fails := range map[string]string{
			"ecc": "field:1", "nvlink": "field:91", "row_remapping": "field:143",
			"fabric": "nvmlDeviceGetGpuFabricInfoV", "gpm": "nvmlGpmQueryDeviceSupport",
		} {
			name, deny := fmt.Sprintf("nvidia_gpu_feature_supported{feature=%q}",
				feature), "fail "+fails+" gpu 0 NOT_SUPPORTED"
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
	})
}

// TestStrayDenial lets a GPU deny a reading once. Each kind of reading is
// repeated within half a minute, and given up after several denials.
func TestStrayDenial(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
			if !pass(confirmedInterval) {
				t.Errorf("%s: never read again", c.fails)
			}
			s.Close()
		}
	})
}

// TestRenumberedFields checks that fields are not read with driver versions
// that give their numbers another meaning.
func TestRenumberedFields(t *testing.T) {
	const brake = `nvidia_gpu_throttle_seconds_total{reason="hw_power_brake"}`
	for version, has := range map[string]bool{
		"575.57.08": false, "580.65.06": false, "580.82.07": true,
		"580.95.05": true, "590.44.01": true, "unknown": false,
	} {
		s := newListedFixture(t, "gpus 1", "driver "+version)
		if _, ok := s.values(0)[brake]; ok != has {
			t.Errorf("driver %s: value present: got %v, want %v", version, ok, has)
		}
		s.Close() // Init reads the version
	}
}

// TestMIGModeChanges checks that metrics that a MIG-enabled GPU lacks return as
// soon as MIG mode is off.
func TestMIGModeChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
	})
}

// TestFirstReadFails lets a GPU fail when it is listed first. Its features are
// read when it responds.
func TestFirstReadFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, code := range []string{"UNKNOWN", "GPU_IS_LOST"} {
			s := newListedFixture(t, "gpus 1", "fail nvmlDeviceGetFieldValues gpu 0 "+code,
				"fail nvmlGpmQueryDeviceSupport gpu 0 "+code)
			s.clear("fail")
			time.Sleep(slowInterval)
			got := s.settledValues(0)
			for _, name := range []string{
				smActive, "nvidia_gpu_nvlink_links_up",
				`nvidia_gpu_feature_supported{feature="gpm"}`,
			} {
				if _, ok := got[name]; !ok {
					t.Errorf("%s: %s is absent", code, name)
				}
			}
			s.Close()
		}
	})
}
