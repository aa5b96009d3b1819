package nvml

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/device"
)

// busyGPU is a GPU that has all there is, each value another one.
var busyGPU = []string{
	"gpu 0 memory_total 85899345920", "gpu 0 memory_reserved 620756992", "gpu 0 memory_used 1073741824",
	"gpu 0 utilization 29", "gpu 0 memory_utilization 7", "gpu 0 temperature 61", "gpu 0 memory_temperature 73",
	"gpu 0 power 412345", "gpu 0 power_limit 700000", "gpu 0 energy 123456789",
	"gpu 0 sm_clock 1980", "gpu 0 mem_clock 2619", "gpu 0 throttle 0x424", "gpu 0 throttle_supported 0x7ff",
	"gpu 0 pcie_replay 3", "gpu 0 ecc_volatile_corrected 4", "gpu 0 ecc_volatile_uncorrected 5",
	"gpu 0 ecc_aggregate_corrected 6", "gpu 0 ecc_aggregate_uncorrected 7",
}

// busyValues is what each row shows of it: a row without one fails the test.
var busyValues = map[string]float64{
	"nvidia_gpu_memory_total_bytes":                                 85899345920,
	"nvidia_gpu_memory_reserved_bytes":                              620756992,
	"nvidia_gpu_memory_used_bytes":                                  1073741824,
	"nvidia_gpu_memory_free_bytes":                                  84204847104,
	"nvidia_gpu_utilization_ratio":                                  0.29,
	"nvidia_gpu_memory_controller_utilization_ratio":                0.07,
	`nvidia_gpu_temperature_celsius{sensor="gpu"}`:                  61,
	`nvidia_gpu_temperature_celsius{sensor="memory"}`:               73,
	"nvidia_gpu_power_watts":                                        412.345,
	"nvidia_gpu_power_limit_watts":                                  700,
	"nvidia_gpu_energy_joules_total":                                123456.789,
	`nvidia_gpu_clock_hertz{clock="sm"}`:                            1980e6,
	`nvidia_gpu_clock_hertz{clock="memory"}`:                        2619e6,
	`nvidia_gpu_throttle_active{reason="gpu_idle"}`:                 0,
	`nvidia_gpu_throttle_active{reason="applications_clocks"}`:      0,
	`nvidia_gpu_throttle_active{reason="sw_power_cap"}`:             1,
	`nvidia_gpu_throttle_active{reason="hw_slowdown"}`:              0,
	`nvidia_gpu_throttle_active{reason="sync_boost"}`:               0,
	`nvidia_gpu_throttle_active{reason="sw_thermal"}`:               1,
	`nvidia_gpu_throttle_active{reason="hw_thermal"}`:               0,
	`nvidia_gpu_throttle_active{reason="hw_power_brake"}`:           0,
	`nvidia_gpu_throttle_active{reason="display_clock"}`:            0,
	`nvidia_gpu_throttle_active{reason="board_limit"}`:              0,
	`nvidia_gpu_throttle_active{reason="reliability"}`:              1,
	"nvidia_gpu_pcie_replays_total":                                 3,
	`nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`:    4,
	`nvidia_gpu_ecc_volatile_errors_total{severity="uncorrected"}`:  5,
	`nvidia_gpu_ecc_aggregate_errors_total{severity="corrected"}`:   6,
	`nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"}`: 7,
}

func TestRows(t *testing.T) {
	s := start(t, append(busyGPU, "gpus 1")...)
	got := s.values(0)
	for _, m := range Metrics() {
		name := seriesName(m)
		want, known := busyValues[name]
		switch value, read := got[name]; {
		case !known:
			t.Errorf("no case for %s", name)
		case !read:
			t.Errorf("%s is not read", name)
		case value != want:
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
	if len(got) != len(busyValues) || len(got) != len(Metrics()) {
		t.Errorf("%d values, %d cases, %d rows", len(got), len(busyValues), len(Metrics()))
	}
}

// TestRowsAreWellFormed holds what the exporter builds upon.
func TestRowsAreWellFormed(t *testing.T) {
	seen := map[string]row{}
	last := ""
	for _, r := range rows {
		other, known := seen[r.name]
		if known && last != r.name {
			t.Errorf("the rows of %s do not stand together", r.name)
		}
		if known && (other.help != r.help || other.kind != r.kind) {
			t.Errorf("the rows of %s differ in help or kind", r.name)
		}
		if isTotal := strings.HasSuffix(r.name, "_total"); isTotal != (r.kind != device.Gauge) {
			t.Errorf("%s has the wrong kind for its name", r.name)
		}
		if r.field == noField && r.slot == noSlot {
			t.Errorf("%s comes from nowhere", r.name)
		}
		if r.bit == 0 && r.unit == (unit{}) {
			t.Errorf("%s has no unit", r.name)
		}
		seen[r.name], last = r, r.name
	}
}

// TestRowFails has one thing after the other fail, and wants nothing but its own
// rows to go. What has another source is read from there.
func TestRowFails(t *testing.T) {
	for _, c := range []struct {
		fails string
		gone  string // what the lost rows begin with; empty: none is lost
	}{
		{"nvmlDeviceGetMemoryInfo_v2", "nvidia_gpu_memory_reserved"},
		{"nvmlDeviceGetUtilizationRates", "nvidia_gpu_utilization_ratio nvidia_gpu_memory_controller"},
		{"nvmlDeviceGetTemperature", `nvidia_gpu_temperature_celsius{sensor="gpu"`},
		{"nvmlDeviceGetClockInfo", "nvidia_gpu_clock"},
		{"nvmlDeviceGetCurrentClocksEventReasons", ""},
		{"nvmlDeviceGetPowerUsage", ""},
		{"field:186", ""},
		{"field:190", ""},
		{"field:82", `nvidia_gpu_temperature_celsius{sensor="memory"`},
		{"field:83", "nvidia_gpu_energy"},
		{"field:94", "nvidia_gpu_pcie_replays"},
		{"field:3", `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"`},
		{"field:6", `nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"`},
		{"nvmlDeviceGetFieldValues", `nvidia_gpu_temperature_celsius{sensor="memory" nvidia_gpu_energy nvidia_gpu_pcie nvidia_gpu_ecc`},
	} {
		for _, code := range []string{"NOT_SUPPORTED", "UNKNOWN"} {
			t.Run(c.fails+" "+code, func(t *testing.T) {
				s := start(t, append(busyGPU, "gpus 1", "fail "+c.fails+" gpu 0 "+code)...)
				want := maps.Clone(busyValues)
				maps.DeleteFunc(want, func(name string, _ float64) bool { return c.gone != "" && beginsWithAny(name, c.gone) })
				if c.fails == "nvmlDeviceGetMemoryInfo_v2" { // the older call counts it as used
					want["nvidia_gpu_memory_used_bytes"] += busyValues["nvidia_gpu_memory_reserved_bytes"]
				}
				for range 2 {
					if got := s.values(0); !maps.Equal(got, want) {
						t.Fatalf("got %v\nwant %v", got, want)
					}
				}
			})
		}
	}
}

func beginsWithAny(name, prefixes string) bool {
	for prefix := range strings.FieldsSeq(prefixes) {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// TestFieldComesBack has a field fail once. It is asked for again by the next reading,
// unless the GPU said that it does not have it: then after a while, or a failure.
func TestFieldComesBack(t *testing.T) {
	const replays = "nvidia_gpu_pcie_replays_total"
	for code, back := range map[string]bool{"UNKNOWN": true, "NOT_SUPPORTED": false, "INVALID_ARGUMENT": false} {
		s := start(t, "gpus 1")
		id := s.id(0)
		has := func(when string, want bool) {
			t.Helper()
			if _, ok := s.values(0)[replays]; ok != want {
				t.Errorf("%s, %s: it has a value: %v", code, when, ok)
			}
		}
		once := func() {
			s.set("fail field:94 gpu 0 " + code)
			has("while it fails", false)
			s.clear("fail")
			has("the next time", back)
		}
		once()
		s.set("gpu 0 lost")
		if _, err := s.Read(id, nil); !errors.Is(err, device.ErrLost) {
			t.Errorf("got %v", err)
		}
		s.clear("gpu 0")
		has("when the GPU is back", true)
		once()
		s.set("gpu 0 lost")
		if _, err := s.Check(id); !errors.Is(err, device.ErrLost) {
			t.Errorf("got %v", err)
		}
		s.clear("gpu 0")
		has("when a check has failed", true)
		once()
		g := s.table.Load().byID[id]
		g.slow.drops = g.slow.drops.Add(-askAgainAfter)
		has("minutes later", true)
		once()
		s.Close()
		s.list(1)
		has("after an Init", true)
	}
}

// TestAbsurd has values that are none. They are absent, not shown.
func TestAbsurd(t *testing.T) {
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
		s := start(t, "gpus 1", "gpu 0 "+line)
		if v, ok := s.values(0)[gone]; ok {
			t.Errorf("%s: %s is %v", line, gone, v)
		}
	}
}

// TestThrottleReasons shows those that the GPU can give, and any that it gave.
func TestThrottleReasons(t *testing.T) {
	const idle, limit = `nvidia_gpu_throttle_active{reason="gpu_idle"}`, `nvidia_gpu_throttle_active{reason="board_limit"}`
	s := start(t, "gpus 1", "gpu 0 throttle 0x1", "gpu 0 throttle_supported 0x1ff")
	got := s.values(0)
	if _, ok := got[limit]; ok || got[idle] != 1 {
		t.Errorf("got %v", got)
	}
	s.set("gpu 0 throttle 0x200")
	if got := s.values(0); got[limit] != 1 || got[idle] != 0 {
		t.Errorf("with a limit: got %v", got)
	}
	s.set("gpu 0 throttle 0")
	if v, ok := s.values(0)[limit]; !ok || v != 0 {
		t.Errorf("without it: got %v, %v", v, ok)
	}
}

// TestReadErrors has one GPU give nothing. That is said as soon as it is known, and
// costs nobody else anything.
func TestReadErrors(t *testing.T) {
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
		{[]string{"fail nvmlDeviceGetTemperature gpu 1 GPU_IS_LOST"}, true, "", 9, "nvmlDeviceGetTemperature: GPU_IS_LOST"},
		{[]string{"fail * gpu 1 RESET_REQUIRED"}, false, "reset_required", 1, "RESET_REQUIRED"},
		{[]string{"fail * gpu 1 INVALID_ARGUMENT"}, true, "", 15, "INVALID_ARGUMENT"},
		{[]string{"fail * gpu 1 NO_PERMISSION"}, false, "", 15, "nvmlDeviceGetFieldValues: NO_PERMISSION"},
		{[]string{"fail * gpu 1 4242"}, false, "", 15, "NVML answers 4242"},
		{[]string{"gpus 1"}, true, "", 15, "INVALID_ARGUMENT"}, // its handle is none any more
	} {
		s := start(t, "gpus 3")
		id, before := s.id(1), s.calls()
		s.set(c.lines...)
		kept := []device.Sample{{Device: "kept"}}
		samples, err := s.Read(id, kept)
		var fault *device.Fault
		if errors.As(err, &fault) != (c.fault != "") || fault != nil && fault.Reason != c.fault {
			t.Errorf("%v: error %v, want the fault %q", c.lines, err, c.fault)
		}
		if err == nil || !strings.Contains(err.Error(), c.message) || errors.Is(err, device.ErrLost) != c.lost {
			t.Errorf("%v: error %v, want %q, lost %v", c.lines, err, c.message, c.lost)
		}
		if len(samples) != 1 || samples[0].Device != "kept" {
			t.Errorf("%v: samples %v", c.lines, samples)
		}
		if n := s.calls().Since(before).PerGPU(1); n > c.atMost {
			t.Errorf("%v: %d calls, want at most %d", c.lines, n, c.atMost)
		}
		if c.lines[0] != "gpus 1" && len(s.values(0)) != len(s.values(2)) {
			t.Errorf("%v: the GPUs beside it are not read alike", c.lines)
		}
	}
}

// TestHangs has a GPU's calls hang. A second one about the same GPU returns at once,
// and so do all about others, listings and waits included.
func TestHangs(t *testing.T) {
	s := start(t, "gpus 2")
	s.set("hang * gpu 1")
	stuck := s.id(1)
	done := make(chan error, 1)
	go func() { _, err := s.Read(stuck, nil); done <- err }() // ends with the hang; received below
	s.eventually("the call hangs", func() bool { return s.calls().InFlight(1) == 1 })
	if _, err := s.Read(stuck, nil); !errors.Is(err, device.ErrStalled) {
		t.Errorf("another reading says %v", err)
	}
	if _, err := s.Check(stuck); !errors.Is(err, device.ErrStalled) {
		t.Errorf("a check says %v", err)
	}
	s.values(0)
	s.list(2)
	s.listen()
	s.event(0, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("got %+v", got)
	}
	if n := s.calls().InFlight(1); n != 1 {
		t.Errorf("%d calls hang", n)
	}
	s.clear("hang")
	s.must(<-done)
	s.values(1)
	s.listen()
	s.event(1, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(1) {
		t.Errorf("got %+v", got)
	}
}

// TestCallsOfRead pins what a reading costs.
func TestCallsOfRead(t *testing.T) {
	for _, c := range []struct {
		what string
		line string
		want uint64
	}{
		{"a driver of today", "", 7},
		{"no field that has another source", "fail field:186 gpu 0 NOT_SUPPORTED\nfail field:190 gpu 0 NOT_SUPPORTED", 9},
		{"no fields", "fail nvmlDeviceGetFieldValues gpu 0 NOT_SUPPORTED", 9},
		{"nothing but failures", "fail * gpu 0 NOT_SUPPORTED", 11},
	} {
		s := start(t, "gpus 1")
		s.set(strings.Split(c.line, "\n")...)
		id := s.id(0)
		s.Read(id, nil) //nolint:errcheck // the first one learns what the GPU does not have
		before := s.calls()
		s.Read(id, nil) //nolint:errcheck // only its calls matter
		calls := s.calls().Since(before)
		if got := calls.PerGPU(0); got != c.want || calls.Of(fieldValues, 0) > 1 {
			t.Errorf("%s: %d calls, want %d", c.what, got, c.want)
		}
	}
}

// TestAllocationsOfRead pins them: one for each call of go-nvml's that returns a
// struct or a number, since C gets its address; none for the fields.
func TestAllocationsOfRead(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	s := start(t, "gpus 1")
	id := s.id(0)
	var buf []device.Sample
	var err error
	allocations := testing.AllocsPerRun(100, func() { buf, err = s.Read(id, buf[:0]) })
	s.must(err)
	if allocations != 6 {
		t.Errorf("a reading allocates %v times, want 6", allocations)
	}
	if checks := testing.AllocsPerRun(100, func() { _, err = s.Check(id) }); checks != 0 {
		t.Errorf("a check allocates %v times", checks)
	}
	s.must(err)
}

func BenchmarkRead(b *testing.B) {
	s := start(b, "gpus 1")
	id := s.id(0)
	var buf []device.Sample
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = s.Read(id, buf[:0])
	}
}
