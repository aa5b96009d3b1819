package collect_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestRowFails lets each source fail, and requires that only its rows are
// absent. Rows with another source are read from there.
func TestRowFails(t *testing.T) {
	for _, c := range []struct {
		fails string
		gone  string // prefixes of the absent rows; empty: none
	}{
		{"nvmlDeviceGetMemoryInfo_v2", "nvidia_gpu_memory_reserved"},
		{"nvmlDeviceGetBAR1MemoryInfo", "nvidia_gpu_bar1"},
		{"nvmlDeviceGetUtilizationRates", "nvidia_gpu_utilization_ratio nvidia_gpu_memory_controller"},
		{"nvmlDeviceGetOfaUtilization", "nvidia_gpu_ofa"},
		{"nvmlDeviceGetTemperature", `nvidia_gpu_temperature_celsius{sensor="gpu"`},
		{"nvmlDeviceGetMarginTemperature", "nvidia_gpu_temperature_margin_celsius"},
		{"nvmlDeviceGetClockInfo", "nvidia_gpu_clock_hertz"},
		{"nvmlDeviceGetMaxClockInfo", "nvidia_gpu_clock_max"},
		{"nvmlDeviceGetCurrentClocksEventReasons", ""},
		{"nvmlDeviceGetPowerUsage", ""},
		{"nvmlDeviceGetEnforcedPowerLimit", ""},
		{"nvmlDeviceGetCurrPcieLinkGeneration", "nvidia_gpu_pcie_link_generation="},
		{"nvmlDeviceGetRowRemapperHistogram", "nvidia_gpu_row_remap_banks"},
		{"nvmlDeviceGetRepairStatus", "nvidia_gpu_repair_pending"},
		{"nvmlGpmSampleGet", "nvidia_gpu_graphics_engine nvidia_gpu_sm_ nvidia_gpu_pipe nvidia_gpu_dram"},
		{"nvmlGpmMetricsGet", "nvidia_gpu_graphics_engine nvidia_gpu_sm_ nvidia_gpu_pipe nvidia_gpu_dram"},
		{"metric:5", `nvidia_gpu_pipe_active_ratio{pipe="tensor"`},
		{"field:82", `nvidia_gpu_temperature_celsius{sensor="memory"`},
		{"field:83", "nvidia_gpu_energy"},
		{"field:94", "nvidia_gpu_pcie_replays"},
		{"field:197", "nvidia_gpu_pcie_transmit"},
		{"field:3", `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"`},
		{"field:6", `nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"`},
		{"field:165", "nvidia_gpu_nvlink_links_up"},
		{"field:230", "nvidia_gpu_recovery_action"},
	} {
		for _, code := range []string{"NOT_SUPPORTED", "UNKNOWN"} {
			bubble.Test(t, func(t *testing.T) {
				s := newListedFixture(t, append(nvmltest.BusyGPU, "gpus 1", "fail "+c.fails+" gpu 0 "+code)...)
				want := maps.Clone(nvmltest.BusyValues)
				maps.DeleteFunc(want, func(name string, _ float64) bool {
					return c.gone != "" &&
						hasAnyPrefix(name+"=", c.gone)
				})
				if c.fails == "nvmlDeviceGetMemoryInfo_v2" { // the older call counts reserved memory as used
					want["nvidia_gpu_memory_used_bytes"] += nvmltest.BusyValues["nvidia_gpu_memory_reserved_bytes"]
				}
				for range 2 {
					if got := s.settledValues(0); !maps.Equal(got, want) {
						t.Fatalf("%s %s: %s", c.fails, code, diffValues(got, want))
					}
				}
			})
		}
	}
}

func diffValues(got, want map[string]float64) string {
	var lines []string
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
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func hasAnyPrefix(name, prefixes string) bool {
	for prefix := range strings.FieldsSeq(prefixes) {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// TestFieldReturns lets a field fail once. The next reading reads it again. An
// unsupported field is read again half a minute later, or after a failure.
func TestFieldReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const memory = `nvidia_gpu_temperature_celsius{sensor="memory"}`
		for code, back := range map[string]bool{"UNKNOWN": true, "NOT_SUPPORTED": false, "INVALID_ARGUMENT": false} {
			s := newListedFixture(t, "gpus 1")
			id := s.id(0)
			has := func(when string, want bool) {
				t.Helper()
				if _, ok := s.values(0)[memory]; ok != want {
					t.Errorf("%s, %s: value present: got %v, want %v", code, when, ok, want)
				}
			}
			once := func() {
				s.set("fail field:82 gpu 0 " + code)
				has("while it fails", false)
				s.clear("fail")
				has("in the next reading", back)
			}
			once()
			s.set("gpu 0 lost")
			if _, err := s.Read(id); !errors.Is(err, device.ErrLost) {
				t.Errorf("Read: got %v, want ErrLost", err)
			}
			s.clear("gpu 0")
			has("after the GPU was lost", true)
			once()
			s.set("gpu 0 lost")
			if _, err := s.Check(id); !errors.Is(err, device.ErrLost) {
				t.Errorf("Check: got %v, want ErrLost", err)
			}
			s.clear("gpu 0")
			has("after a failed check", true)
			once()
			time.Sleep(slowInterval)
			has("half a minute later", true)
			once()
			s.Close()
			s.list(1)
			has("after an Init", true)
		}
	})
}

// TestImplausibleValues checks that implausible values are not exported.
func TestImplausibleValues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for line, gone := range map[string]string{
			"utilization 101":                           "nvidia_gpu_utilization_ratio",
			"utilization 0xFFFFFFFF":                    "nvidia_gpu_utilization_ratio",
			"temperature 0xFFFFFFFB":                    `nvidia_gpu_temperature_celsius{sensor="gpu"}`, // -5
			"sm_clock 0xFFFFFFFF":                       `nvidia_gpu_clock_hertz{clock="sm"}`,
			"field 82 -5 i32":                           `nvidia_gpu_temperature_celsius{sensor="memory"}`,
			"field 83 -1 u64":                           "nvidia_gpu_energy_joules_total",
			"field 94 0xFFFFFFFF u32":                   "nvidia_gpu_pcie_replays_total",
			"field 3 -1 i64":                            `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`,
			"memory_temperature 0x7FFFFFFF":             `nvidia_gpu_temperature_celsius{sensor="memory"}`,
			"memory_total 0x7FFFFFFFFFFFFFFF":           "nvidia_gpu_memory_total_bytes",
			"ecc_volatile_corrected 0x7FFFFFFFFFFFFFFF": `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`,
		} {
			s := newListedFixture(t, "gpus 1", "gpu 0 "+line)
			if v, ok := s.values(0)[gone]; ok {
				t.Errorf("%s: %s: got %v, want none", line, gone, v)
			}
		}
	})
}

// TestThrottleReasons checks that the reasons that the GPU supports or returned
// are exported. Idle (0x1) is no reason: a sum over the reasons would count
// idle GPUs as throttled.
func TestThrottleReasons(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const (
			capped = `nvidia_gpu_throttle_active{reason="sw_power_cap"}`
			limit  = `nvidia_gpu_throttle_active{reason="board_limit"}`
		)
		s := newListedFixture(t, "gpus 1", "gpu 0 throttle 0x1", "gpu 0 throttle_supported 0x1ff")
		got := s.values(0)
		if _, ok := got[limit]; ok {
			t.Errorf("got %v, want no reason that is not supported", got)
		}
		for name, value := range got {
			if strings.HasPrefix(name, "nvidia_gpu_throttle_active") && value != 0 {
				t.Errorf("%s of an idle GPU: got %v, want 0", name, value)
			}
		}
		s.set("gpu 0 throttle 0x200")
		if got := s.values(0); got[limit] != 1 || got[capped] != 0 {
			t.Errorf("with a limit: got %v, want only that reason", got)
		}
		s.set("gpu 0 throttle 0")
		if v, ok := s.values(0)[limit]; !ok || v != 0 {
			t.Errorf("without the limit: got %v, %v, want 0, true", v, ok)
		}
	})
}

// TestReadErrors lets the reads of one GPU fail. The error is returned as early
// as possible, and the other GPUs are read.
func TestReadErrors(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			lines   []string
			lost    bool
			fault   string
			atMost  uint64 // calls
			message string
		}{
			{[]string{"gpu 1 lost"}, true, "", 1, "GPU_IS_LOST"},
			{[]string{"fail * gpu 1 GPU_IS_LOST"}, true, "", 1, "GPU_IS_LOST"},
			{[]string{"fail field:83 gpu 1 GPU_IS_LOST"}, true, "", 1, "GPU_IS_LOST"},
			{
				[]string{"fail nvmlDeviceGetTemperature gpu 1 GPU_IS_LOST"},
				true, "", 9,
				"nvmlDeviceGetTemperature: GPU_IS_LOST",
			},
			{[]string{"fail * gpu 1 RESET_REQUIRED"}, false, "reset_required", 1, "RESET_REQUIRED"},
			{[]string{"fail * gpu 1 INVALID_ARGUMENT"}, true, "", 16, "nvmlDeviceGetUUID: INVALID_ARGUMENT"},
			{
				[]string{"fail * gpu 1 INVALID_ARGUMENT", "fail nvmlDeviceGetUUID gpu 1 SUCCESS"},
				false, "", 16,
				"nvmlDeviceGetFieldValues: INVALID_ARGUMENT",
			},
			{
				[]string{"fail * gpu 1 INVALID_ARGUMENT", "fail nvmlDeviceGetUUID gpu 1 GPU_IS_LOST"},
				true, "", 16,
				"nvmlDeviceGetUUID: GPU_IS_LOST",
			},
			{[]string{"fail * gpu 1 NO_PERMISSION"}, false, "", 15, "nvmlDeviceGetFieldValues: NO_PERMISSION"},
			{[]string{"fail * gpu 1 4242"}, false, "", 15, "NVML returned 4242"},
			{[]string{"gpus 1"}, true, "", 16, "INVALID_ARGUMENT"}, // its handle is invalid
		} {
			s := newListedFixture(t, "gpus 3")
			id, before := s.id(1), s.calls()
			s.set(c.lines...)
			samples, err := s.Read(id)
			var fault *device.Fault
			if errors.As(err, &fault) != (c.fault != "") || fault != nil && fault.Reason != c.fault {
				t.Errorf("%v: got error %v, want fault %q", c.lines, err, c.fault)
			}
			if err == nil || !strings.Contains(err.Error(), c.message) || errors.Is(err, device.ErrLost) != c.lost {
				t.Errorf("%v: got error %v, want %q, lost %v", c.lines, err, c.message, c.lost)
			}
			if len(samples) > 0 {
				t.Errorf("%v: got samples %v, want none", c.lines, samples)
			}
			if n := s.calls().Since(before).GPUTotal(1); n > c.atMost {
				t.Errorf("%v: got %d calls, want at most %d", c.lines, n, c.atMost)
			}
			if c.lines[0] != "gpus 1" && len(s.values(0)) != len(s.values(2)) {
				t.Errorf("%v: got different numbers of values from the other GPUs", c.lines)
			}
		}
	})
}

// TestFansAfterFailure checks that fans are found after a failed count at the
// listing.
func TestFansAfterFailure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 model t4", "gpu 0 call nvmlDeviceGetNumFans 2",
			"gpu 0 call nvmlDeviceGetFanSpeed_v2/0 40", "gpu 0 call nvmlDeviceGetFanSpeed_v2/1 40")
		fans := func() (n int) {
			for name := range s.values(0) {
				if strings.HasPrefix(name, "nvidia_gpu_fan_speed_ratio{") {
					n++
				}
			}
			return n
		}
		if n := fans(); n != 2 {
			t.Fatalf("got %d fans, want 2", n)
		}
		s.Close()
		const failure = "fail nvmlDeviceGetNumFans gpu 0 UNKNOWN"
		s.set(failure)
		s.list(-1)
		if n := fans(); n != 0 {
			t.Fatalf("got %d fans without a count, want 0", n)
		}
		s.clear(failure)
		n := 0
		for range 4 {
			time.Sleep(slowInterval)
			n = fans()
		}
		if n != 2 {
			t.Errorf("got %d fans after the failure, want 2", n)
		}
	})
}
