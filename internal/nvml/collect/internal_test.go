package collect

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// The tests of this file give the driver's numbers to pure functions.

// FuzzChecks lets checks evaluate any value that a driver may put into a field.
func FuzzChecks(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0))
		f.Add(typ, uint64(math.MaxUint64))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64) {
		var value [8]byte
		binary.NativeEndian.PutUint64(value[:], bits)
		v, ok := metric.DecodeField(typ, value, nvml.SUCCESS)
		if !ok {
			return
		}
		for i := range healthChecks {
			c := &healthChecks[i]
			if c.fieldIndex == 0 {
				continue
			}
			bad := v != 0
			if c.fieldIndex == recoveryIndex {
				bad = v == math.Trunc(v) && v > 0 && v <= float64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT)
			}
			if fault := c.evaluate(nil, c, v, time.Time{}); (fault == nil) == bad || fault != nil && (fault.Reason == "" || fault.Action == "") {
				t.Fatalf("%s: value %v: got fault %+v", c.Condition, v, fault)
			}
		}
	})
}

// TestTooFastToWrap checks that a wrap that is impossible in the time counts as a restart of the counter.
func TestTooFastToWrap(t *testing.T) {
	m := monotonicCounter{}
	m.begin(0, 1, 0)
	m.add(0, 1000, 1<<32, 0)
	m.started = true
	m.add(0, 10, 1<<32, 1<<30)
	if m.total != 1010 {
		t.Errorf("got %v, want 1010", m.total)
	}
	m.add(0, 5, 1<<32, 1<<33)
	if m.total != 1010+1<<32-5 {
		t.Errorf("got %v, want one wrap more", m.total)
	}
}

// FuzzMonotonicCounter counts at random, with links that disappear and return. The total has the counts of present links, and never decreases.
func FuzzMonotonicCounter(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		random := rand.New(rand.NewPCG(a, b)) //nolint:gosec // not for secrets
		const links, wraps = 3, 1 << 16
		var m monotonicCounter
		var counted [links]uint64
		var seen [links]bool
		var last [links]uint64
		want, before := 0.0, 0.0
		for range 40 {
			m.begin(0, links, 0)
			any := false
			for i := range links {
				counted[i] += random.Uint64N(wraps / 2)
				if random.IntN(4) == 0 {
					continue // the link does not respond
				}
				if seen[i] && counted[i]-last[i] >= wraps { // absent for more than a wrap
					return
				}
				now := counted[i] % wraps
				switch {
				case seen[i]:
					want += float64(counted[i] - last[i])
				case !m.started:
					want += float64(now)
				}
				seen[i], last[i], any = true, counted[i], true
				m.add(i, float64(now), wraps, wraps)
			}
			m.started = m.started || any
			if m.total != want || m.total < before {
				t.Fatalf("total: got %v, want %v, before %v", m.total, want, before)
			}
			before = m.total
		}
	})
}

// TestUtilizationSamples averages values that drivers returned: several samples of a process, values above 100, unknown pids, times in the
// future.
func TestUtilizationSamples(t *testing.T) {
	now := uint64(time.Now().UnixMicro())
	usage := []device.ProcessUsage{{PID: 1}, {PID: 2}, {PID: 3}}
	averageSamples(usage, []nvml.ProcessUtilizationSample{
		{Pid: 1, TimeStamp: now - 50, SmUtil: 10},
		{Pid: 1, TimeStamp: now - 10, SmUtil: 30, MemUtil: 40},
		{Pid: 2, TimeStamp: now - 20, SmUtil: 4000000000, DecUtil: 101},
		{Pid: 77, TimeStamp: now - 20, SmUtil: 50},
		{Pid: 1, TimeStamp: now - 100, SmUtil: 100}, // before the window
		{Pid: 3, TimeStamp: 1 << 63, SmUtil: 100},
	}, now-100)
	want := []device.ProcessUsage{{PID: 1, SM: 0.2, MemoryController: 0.2}, {PID: 2, SM: 1, Decoder: 1}, {PID: 3}}
	if !slices.Equal(usage, want) {
		t.Errorf("got %+v; want %+v", usage, want)
	}
}
