package nvml_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// The paces of readings, and the windows of GPM.
const (
	slowInterval   = 25 * time.Second
	deniedInterval = time.Minute
	gpmWindow      = 9500 * time.Millisecond
)

// Series of one source each.
const (
	smActive   = "nvidia_gpu_sm_active_ratio"
	memoryTemp = `nvidia_gpu_temperature_celsius{sensor="memory"}`
	gpuTemp    = `nvidia_gpu_temperature_celsius{sensor="gpu"}`
	linkWidth  = "nvidia_gpu_pcie_link_width"
	remapRows  = "nvidia_gpu_row_remap_pending"
)

// closeWindow lets a check end the window between two GPM samples.
func (s *fixture) closeWindow(i int) {
	s.Helper()
	time.Sleep(gpmWindow)
	_, _ = s.Check(s.id(i)) // the result is irrelevant here
}

// settledValues reads a GPU after the end of a GPM window.
func (s *fixture) settledValues(i int) map[string]float64 {
	s.Helper()
	s.values(i)
	s.closeWindow(i)
	s.closeWindow(i)
	return s.values(i)
}

// differences lists the series with other values, and missing ones.
func differences(got, want map[string]float64) (lines []string) {
	for name, v := range got {
		if w, ok := want[name]; !ok || v != w {
			lines = append(lines, fmt.Sprintf("%s: got %v, want %v (%v)", name, v, w, ok))
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			lines = append(lines, name+" is absent")
		}
	}
	return slices.Sorted(slices.Values(lines))
}

// TestRows requires the value of each row, on a new and on an old GPU.
func TestRows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, append(nvmltest.BusyGPU, "gpus 1")...)
		if diff := differences(s.settledValues(0), nvmltest.BusyValues); diff != nil {
			t.Error(strings.Join(diff, "\n"))
		}
		old := newListedFixture(t, slices.Concat(nvmltest.BusyGPU, nvmltest.OldMemoryScenario, []string{"gpus 1"})...)
		want := maps.Clone(nvmltest.BusyValues)
		maps.DeleteFunc(want, func(name string, _ float64) bool { return strings.Contains(name, "sram") })
		maps.Copy(want, nvmltest.OldDriverValues)
		for _, line := range differences(old.settledValues(0), want) {
			if !strings.HasSuffix(line, " is absent") || strings.HasPrefix(line, "nvidia_gpu_ecc_") {
				t.Errorf("old GPU: %s", line)
			}
		}
		for _, m := range metric.Metrics() {
			_, known := nvmltest.BusyValues[seriesName(m)]
			if _, old := nvmltest.OldDriverValues[seriesName(m)]; !known && !old {
				t.Errorf("test case for %s is missing", seriesName(m))
			}
		}
	})
}

// TestRowFails lets each source fail, and requires that only its rows are
// absent. Rows with another source are read from there.
func TestRowFails(t *testing.T) {
	const gpm = "nvidia_gpu_graphics_engine nvidia_gpu_sm_ nvidia_gpu_pipe nvidia_gpu_dram"
	for fails, gone := range map[string]string{ // prefixes of the absent rows
		"nvmlDeviceGetMemoryInfo_v2":             "nvidia_gpu_memory_reserved",
		"nvmlDeviceGetBAR1MemoryInfo":            "nvidia_gpu_bar1",
		"nvmlDeviceGetUtilizationRates":          "nvidia_gpu_utilization_ratio nvidia_gpu_memory_controller",
		"nvmlDeviceGetOfaUtilization":            "nvidia_gpu_ofa",
		"nvmlDeviceGetTemperature":               gpuTemp,
		"nvmlDeviceGetMarginTemperature":         "nvidia_gpu_temperature_margin_celsius",
		"nvmlDeviceGetClockInfo":                 "nvidia_gpu_clock_hertz",
		"nvmlDeviceGetMaxClockInfo":              "nvidia_gpu_clock_max",
		"nvmlDeviceGetCurrentClocksEventReasons": "",
		"nvmlDeviceGetPowerUsage":                "",
		"nvmlDeviceGetEnforcedPowerLimit":        "",
		"nvmlDeviceGetCurrPcieLinkGeneration":    "nvidia_gpu_pcie_link_generation=",
		"nvmlDeviceGetRowRemapperHistogram":      "nvidia_gpu_row_remap_banks",
		"nvmlDeviceGetRepairStatus":              "nvidia_gpu_repair_pending",
		"nvmlGpmSampleGet":                       gpm,
		"nvmlGpmMetricsGet":                      gpm,
		"metric:5":                               `nvidia_gpu_pipe_active_ratio{pipe="tensor"`,
		"field:82":                               memoryTemp,
		"field:83":                               "nvidia_gpu_energy",
		"field:94":                               "nvidia_gpu_pcie_replays",
		"field:197":                              "nvidia_gpu_pcie_transmit",
		"field:3":                                `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"`,
		"field:6":                                `nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"`,
		"field:165":                              "nvidia_gpu_nvlink_links_up",
		"field:230":                              "nvidia_gpu_recovery_action",
	} {
		for _, code := range []string{"NOT_SUPPORTED", "UNKNOWN"} {
			bubble.Test(t, func(t *testing.T) {
				s := newListedFixture(t, append(nvmltest.BusyGPU, "gpus 1", "fail "+fails+" gpu 0 "+code)...)
				want := maps.Clone(nvmltest.BusyValues)
				for prefix := range strings.FieldsSeq(gone) {
					maps.DeleteFunc(want, func(name string, _ float64) bool { return strings.HasPrefix(name+"=", prefix) })
				}
				if fails == "nvmlDeviceGetMemoryInfo_v2" { // the older call counts reserved memory as used
					want["nvidia_gpu_memory_used_bytes"] += nvmltest.BusyValues["nvidia_gpu_memory_reserved_bytes"]
				}
				for range 2 {
					if diff := differences(s.settledValues(0), want); diff != nil {
						t.Fatalf("%s %s: %s", fails, code, strings.Join(diff, "\n"))
					}
				}
			})
		}
	}
}

// TestRowsAlone checks that a plan with a single family reads the same series
// of the family as a plan with all rows.
func TestRowsAlone(t *testing.T) {
	read := func(t *testing.T, reads func(*device.Metric) bool, lines []string) map[string][]string {
		s := newFixture(t, nvml.Options{PerLink: true, Reads: reads}, lines...)
		defer s.Close()
		s.list(-1)
		families := map[string][]string{}
		for range 2 {
			clear(families)
			s.resets(0)                   // a check
			samples, _ := s.Read(s.id(0)) // a plan without fast rows may get no response
			for _, sample := range samples {
				m := s.Metrics()[sample.Metric]
				families[m.Name] = append(families[m.Name], string(sample.Device)+seriesName(m))
			}
		}
		return families
	}
	for name, lines := range map[string][]string{
		"H100": {"gpus 1", "gpu 0 uuid GPU-0", "gpu 0 model h100"}, "T4": {"gpus 1", "gpu 0 uuid GPU-0", "gpu 0 model t4"},
		"MIG": sevenMIGDevices,
	} {
		t.Run(name, func(t *testing.T) {
			all := read(t, nil, lines)
			if len(all) < 30 {
				t.Fatalf("got %d families, want at least 30", len(all))
			}
			for family, want := range all {
				got := read(t, func(m *device.Metric) bool { return m.Name == family }, lines)
				expect.EqualSlices(t, got[family], want, family, "alone")
			}
		})
	}
}

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
				reads := func(m *device.Metric) bool { return m.Set >= device.SetDefault }
				s := newFixture(t, nvml.Options{Reads: reads}, append(lines, "gpus 8")...)
				defer s.Close()
				var gpus []device.GPU
				for _, d := range s.list(8) {
					gpus = append(gpus, d.GPU)
				}
				readers := health.NewReaders(s)
				collect := func(n int) {
					for range n {
						time.Sleep(interval)
						for _, r := range readers.Read(t.Context(), gpus, true) {
							if r.Err != nil || !r.ProcessUsageKnown {
								t.Fatalf("reading of %s: error %v, processes known %v", r.GPU, r.Err, r.ProcessUsageKnown)
							}
						}
					}
				}
				collect(int(2 * time.Minute / interval)) // absent values are not asked for again at once
				before, collections := s.calls(), int(2*time.Minute/interval)
				collect(collections)
				calls, total := s.calls().Since(before), 0
				for i := range gpus {
					total += int(calls.GPUTotal(i))
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

// TestAgeOfValues collects at several intervals from a GPU that sometimes
// changes all its values. No value of the previous state is exported after half
// a minute, from the first collection on. The energy counter is left out: a
// decrease counts as a reset.
func TestAgeOfValues(t *testing.T) {
	busy := slices.DeleteFunc(slices.Clone(nvmltest.BusyGPU),
		func(line string) bool { return strings.Contains(line, " energy ") })
	states := [2][]string{{"gpu 0 metric 2 10"}, busy}
	for _, seconds := range []int{1, 15, 30, 45, 60, 61, 90, 300} {
		bubble.Test(t, func(t *testing.T) {
			every := time.Duration(seconds) * time.Second
			var values [2]map[string]float64 // exported in each state
			s := newFixture(t, nvml.Options{}, "gpus 1")
			for i, lines := range states {
				s.Close()
				s.clear("gpu 0")
				s.set(lines...)
				s.list(1)
				values[i] = s.settledValues(0)
			}
			current, since, collections := 1, time.Now(), 0
			for at := time.Second; at <= max(10*time.Minute, 6*every); at += time.Second {
				time.Sleep(time.Second)
				if at == 10*time.Second || at%(130*time.Second) == 0 {
					s.clear("gpu 0")
					current, since = 1-current, time.Now()
					s.set(states[current]...)
				}
				if at%(5*time.Second) == 0 {
					_, _ = s.Check(s.id(0)) // ends the windows; faults are irrelevant here
				}
				if at%every != 0 {
					continue
				}
				collections++
				got := s.values(0)
				for i, m := range metric.Metrics() {
					name := seriesName(m)
					old, had := values[1-current][name]
					fresh, has := values[current][name]
					if v, exported := got[name]; exported && had && has && old != fresh && v == old &&
						m.ReadPace != device.PaceStatic && !metric.Rows[i].Monotonic && !metric.Rows[i].IsFeature &&
						time.Since(since) >= 30*time.Second {
						t.Errorf("every %v: %s: %v after the change: got the old value", every, name, time.Since(since))
					}
				}
			}
			if collections < 5 {
				t.Errorf("every %v: got %d collections, want at least 5", every, collections)
			}
		})
	}
}

// TestSlowValues checks that slow values are read when due, and that old values
// are not exported after a failure.
func TestSlowValues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1")
		want := func(what string, width, rows float64) {
			t.Helper()
			s.wantValue(what, 0, linkWidth, width)
			s.wantValue(what, 0, remapRows, rows)
		}
		want("at first", 16, 0)
		s.set("gpu 0 pcie_width 8", "gpu 0 remapped_pending 1")
		want("not due", 16, 0)
		time.Sleep(slowInterval)
		want("due", 8, 1)
		s.set("gpu 0 lost", "gpu 0 pcie_width 4")
		if _, err := s.Read(s.id(0)); !errors.Is(err, device.ErrLost) {
			t.Errorf("Read: got %v, want ErrLost", err)
		}
		s.clear("gpu 0 lost")
		want("after the GPU was lost", 4, 1)
	})
}

// TestStrayDenial lets each kind of source fail once. A denied source is read
// again after 25 s, after more denials every minute, after other trouble at
// once. A feature is unsupported only after two denials in a row.
func TestStrayDenial(t *testing.T) {
	feature := func(name string) string { return fmt.Sprintf("nvidia_gpu_feature_supported{feature=%q}", name) }
	for _, c := range []struct {
		fails, name   string
		value, denied float64
		interval      time.Duration // of reads
	}{
		{"field:82", memoryTemp, 40, -1, 0},
		{"field:94", "nvidia_gpu_pcie_replays_total", 0, -1, slowInterval},
		{"nvmlDeviceGetTemperature", gpuTemp, 30, -1, 0},
		{"nvmlDeviceGetCurrPcieLinkWidth", linkWidth, 16, -1, slowInterval},
		{"field:1", feature("ecc"), 1, 0, slowInterval},
		{"field:91", feature("nvlink"), 1, 0, slowInterval},
		{"field:143", feature("row_remapping"), 1, 0, slowInterval},
		{"nvmlDeviceGetGpuFabricInfoV", feature("fabric"), 1, 0, slowInterval},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 1", "gpu 0 memory_temperature 40")
			fail := func(code string) {
				t.Helper()
				s.wantValue(c.fails+" before "+code, 0, c.name, c.value)
				s.set("fail " + c.fails + " gpu 0 " + code)
				time.Sleep(c.interval)
				s.wantValue(c.fails+" "+code, 0, c.name, -1)
			}
			wantAbsentFor := func(d time.Duration, value float64) {
				t.Helper()
				s.clear("fail")
				time.Sleep(d / 2) // a fallback may be due earlier than the rest
				s.wantValue(c.fails+" soon after a denial", 0, c.name, value)
				time.Sleep(d / 2)
			}
			fail("UNKNOWN")
			s.clear("fail")
			time.Sleep(c.interval)
			for _, code := range []string{"NOT_SUPPORTED", "INVALID_ARGUMENT"} {
				fail(code)
				wantAbsentFor(slowInterval, -1)
				fail(code)
				time.Sleep(slowInterval)
				s.wantValue(c.fails+" again "+code, 0, c.name, c.denied)
				wantAbsentFor(deniedInterval, c.denied)
			}
			fail("NOT_SUPPORTED")
			s.set("gpu 0 lost")
			_, readErr := s.Read(s.id(0))
			_, checkErr := s.Check(s.id(0))
			if !errors.Is(readErr, device.ErrLost) || !errors.Is(checkErr, device.ErrLost) {
				t.Errorf("lost GPU: got %v and %v, want ErrLost", readErr, checkErr)
			}
			s.clear("gpu 0 lost")
			s.clear("fail")
			fail("NOT_SUPPORTED")
			s.Close()
			s.clear("fail")
			s.list(1)
			s.wantValue(c.fails+" after an Init", 0, c.name, c.value)
		})
	}
}

// TestFirstReadFails lets a GPU fail when it is listed first. Its features are
// read when it responds.
func TestFirstReadFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, code := range []string{"UNKNOWN", "GPU_IS_LOST"} {
			s := newListedFixture(t, "gpus 1", "gpu 0 model t4", "gpu 0 call nvmlDeviceGetNumFans 1",
				"gpu 0 call nvmlDeviceGetFanSpeed_v2/0 40", "fail nvmlDeviceGetFieldValues gpu 0 "+code,
				"fail nvmlGpmQueryDeviceSupport gpu 0 "+code, "fail nvmlDeviceGetNumFans gpu 0 "+code)
			s.clear("fail")
			for range 2 { // absent features need two denials
				time.Sleep(slowInterval)
				s.values(0)
			}
			got := s.settledValues(0)
			for _, name := range []string{
				`nvidia_gpu_feature_supported{feature="gpm"}`, `nvidia_gpu_feature_supported{feature="ecc"}`,
				`nvidia_gpu_fan_speed_ratio{fan="0"}`,
			} {
				if _, ok := got[name]; !ok {
					t.Errorf("%s: %s is absent", code, name)
				}
			}
			s.Close()
		}
	})
}

// TestRenumberedFields checks that fields are not read with driver versions
// that give their numbers another meaning.
func TestRenumberedFields(t *testing.T) {
	for version, has := range map[string]bool{
		"575.57.08": false, "580.65.06": false, "580.82.07": true, "580.95.05": true, "590.44.01": true, "unknown": false,
	} {
		s := newListedFixture(t, "gpus 1", "driver "+version)
		if got := s.valueOf(0, `nvidia_gpu_throttle_seconds_total{reason="hw_power_brake"}`); (got >= 0) != has {
			t.Errorf("driver %s: got %v, want a value: %v", version, got, has)
		}
		s.Close() // Init reads the version
	}
}

// TestFieldValuesAdded has a driver that adds to the values in the buffer, as
// reported in https://github.com/NVIDIA/go-nvml/issues/46. Readings and checks
// must not change.
func TestFieldValuesAdded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "add fields", "gpus 1", "gpu 0 field 3 10", "gpu 0 memory_temperature 40",
			"gpu 0 pcie_tx 5000", "gpu 0 energy 9000")
		for i := range 3 {
			time.Sleep(time.Minute)
			what := fmt.Sprintf("reading %d", i)
			s.wantValue(what, 0, `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`, 10)
			s.wantValue(what, 0, memoryTemp, 40)
			s.wantValue(what, 0, "nvidia_gpu_pcie_transmit_bytes_total", 5000)
			if v, err := s.Check(s.id(0)); err != nil || v.EnergyCounter != 9000 {
				t.Errorf("check %d: got %+v, %v, want energy counter 9000", i, v, err)
			}
		}
	})
}

// TestImplausibleValues checks that implausible values are not exported.
func TestImplausibleValues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for line, gone := range map[string]string{
			"utilization 101":                           "nvidia_gpu_utilization_ratio",
			"utilization 0xFFFFFFFF":                    "nvidia_gpu_utilization_ratio",
			"temperature 0xFFFFFFFB":                    gpuTemp, // -5
			"sm_clock 0xFFFFFFFF":                       `nvidia_gpu_clock_hertz{clock="sm"}`,
			"field 82 -5 i32":                           memoryTemp,
			"field 83 -1 u64":                           "nvidia_gpu_energy_joules_total",
			"field 94 0xFFFFFFFF u32":                   "nvidia_gpu_pcie_replays_total",
			"field 3 -1 i64":                            `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`,
			"memory_temperature 0x7FFFFFFF":             memoryTemp,
			"memory_total 0x7FFFFFFFFFFFFFFF":           "nvidia_gpu_memory_total_bytes",
			"ecc_volatile_corrected 0x7FFFFFFFFFFFFFFF": `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`,
		} {
			s := newListedFixture(t, "gpus 1", "gpu 0 "+line)
			s.wantValue(line, 0, gone, -1)
			s.Close()
		}
	})
}

// TestThrottleReasons checks that the reasons that the GPU supports or returned
// are exported. Idle (0x1) is no reason: a sum over the reasons would count
// idle GPUs as throttled.
func TestThrottleReasons(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 throttle 0x1", "gpu 0 throttle_supported 0x1ff")
		want := func(what string, limit, capped float64) {
			t.Helper()
			s.wantValue(what, 0, `nvidia_gpu_throttle_active{reason="board_limit"}`, limit)
			s.wantValue(what, 0, `nvidia_gpu_throttle_active{reason="sw_power_cap"}`, capped)
		}
		want("idle", -1, 0)
		s.set("gpu 0 throttle 0x200")
		want("with a limit", 1, 0)
		s.set("gpu 0 throttle 0x4")
		want("with a cap", 0, 1)
	})
}

// TestReadErrors lets the reads of one GPU fail. The error is returned as early
// as possible, and the other GPUs are read.
func TestReadErrors(t *testing.T) {
	const uuid, invalid = "fail nvmlDeviceGetUUID gpu 1 ", "fail * gpu 1 INVALID_ARGUMENT"
	for _, c := range []struct {
		lines   []string
		lost    bool
		atMost  uint64 // calls
		message string
	}{
		{[]string{"gpu 1 lost"}, true, 1, "GPU_IS_LOST"},
		{[]string{"fail * gpu 1 GPU_IS_LOST"}, true, 1, "GPU_IS_LOST"},
		{[]string{"fail field:83 gpu 1 GPU_IS_LOST"}, true, 1, "GPU_IS_LOST"},
		{[]string{"fail nvmlDeviceGetTemperature gpu 1 GPU_IS_LOST"}, true, 9, "nvmlDeviceGetTemperature: GPU_IS_LOST"},
		{[]string{"fail * gpu 1 RESET_REQUIRED"}, false, 1, "RESET_REQUIRED"},
		{[]string{invalid}, true, 16, "nvmlDeviceGetUUID: INVALID_ARGUMENT"},
		{[]string{invalid, uuid + "SUCCESS"}, false, 16, "nvmlDeviceGetFieldValues: INVALID_ARGUMENT"},
		{[]string{invalid, uuid + "GPU_IS_LOST"}, true, 16, "nvmlDeviceGetUUID: GPU_IS_LOST"},
		{[]string{"fail * gpu 1 NO_PERMISSION"}, false, 15, "nvmlDeviceGetFieldValues: NO_PERMISSION"},
		{[]string{"fail * gpu 1 4242"}, false, 15, "NVML returned 4242"},
		{[]string{"gpus 1"}, true, 16, "INVALID_ARGUMENT"}, // its handle is invalid
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 3")
			before := s.calls()
			s.set(c.lines...)
			samples, err := s.Read(s.id(1))
			fault, _ := errors.AsType[*device.Fault](err)
			if err == nil || !strings.Contains(err.Error(), c.message) || errors.Is(err, device.ErrLost) != c.lost ||
				(fault != nil && fault.Reason == "reset_required") != (c.message == "RESET_REQUIRED") {
				t.Errorf("%v: got error %v, want %q, lost %v", c.lines, err, c.message, c.lost)
			}
			if n := s.calls().Since(before).GPUTotal(1); n > c.atMost || len(samples) > 0 {
				t.Errorf("%v: got %d calls, samples %v, want at most %d, none", c.lines, n, samples, c.atMost)
			}
			if c.lines[0] != "gpus 1" && len(s.values(0)) != len(s.values(2)) {
				t.Errorf("%v: got different numbers of values from the other GPUs", c.lines)
			}
		})
	}
}
