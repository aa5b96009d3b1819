package status

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func TestSparkline(t *testing.T) {
	for _, c := range []struct {
		name      string
		points    map[int]int // percent by slot
		path      string
		low, high int
	}{
		{"nothing read", nil, "", 100, 0},
		{"one reading is a dot", map[int]int{59: 50}, "M59 8h0", 50, 50},
		{"equal readings are one step", map[int]int{56: 50, 57: 51, 58: 50, 59: 49}, "M56 8h3", 49, 51},
		{"up and down", map[int]int{56: 0, 57: 100, 58: 100, 59: 0}, "M56 16l1-16h1l1 16", 0, 100},
		{"a line over a short gap", map[int]int{50: 50, 54: 100}, "M50 8l4-8", 50, 100},
		{"a long gap", map[int]int{50: 50, 55: 100, 56: 100}, "M50 8h0M55 0h1", 50, 100},
	} {
		var points slotPoints
		for slot, percent := range c.points {
			points[slot] = uint8(percent) + percentOffset
		}
		if got := newSparkline(&points); got != (sparkline{c.path, c.low, c.high}) {
			t.Errorf("%s: got %+v, want %q %d %d", c.name, got, c.path, c.low, c.high)
		}
	}
}

// record records utilizations; negative: no reading.
func record(h *ReadingHistory, after time.Duration, utilization ...float64) {
	readings := map[device.ID]DeviceReading{}
	for i, value := range utilization {
		if value >= 0 {
			readings[device.ID(fmt.Sprintf("GPU-%d", i))] = DeviceReading{Utilization: value}
		}
	}
	h.Record(now.Add(after), readings)
}

// TestHistorySlots checks which readings become points, and for how long.
func TestHistorySlots(t *testing.T) {
	var h ReadingHistory
	percents := func(id device.ID, after time.Duration) (got string) {
		points := h.points(id, now.Add(after))
		for slot, p := range points[useMeasure] {
			if p > 0 {
				got += fmt.Sprintf("%d:%d ", slot, p-percentOffset)
			}
		}
		return got
	}
	record(&h, 0, 0.1)
	record(&h, 29*time.Second, 0.2) // replaces the first reading
	record(&h, 30*time.Second, 0.3, 1.5)
	record(&h, 20*time.Second, 0.4) // the clock went back: the reading goes into the newest slot
	for _, c := range []struct {
		id    device.ID
		after time.Duration
		want  string
	}{
		{"GPU-0", 30 * time.Second, "58:20 59:40 "},
		{"GPU-1", 30 * time.Second, "59:100 "},
		{"GPU-2", 30 * time.Second, ""},
		{"GPU-0", 90 * time.Second, "56:20 57:40 "},
		{"GPU-0", 30 * time.Minute, "0:40 "},
		{"GPU-0", 31 * time.Minute, ""},
	} {
		if got := percents(c.id, c.after); got != c.want {
			t.Errorf("%s after %s: got %q, want %q", c.id, c.after, got, c.want)
		}
	}
	record(&h, 30*time.Minute, 0.5)
	if got := percents("GPU-0", 30*time.Minute); got != "0:40 59:50 " {
		t.Errorf("half an hour later: got %q", got)
	}
	record(&h, 5*time.Hour, -1, 0.6)
	if got := percents("GPU-1", 5*time.Hour); got != "59:60 " || len(h.devices) != 1 {
		t.Errorf("hours later: got %q of %d devices", got, len(h.devices))
	}
	if points := (*ReadingHistory)(nil).points("GPU-0", now); points != ([measureCount]slotPoints{}) {
		t.Error("points without a history")
	}
}

// TestHistoryMemory limits the memory for 64 GPUs and for any number of devices.
func TestHistoryMemory(t *testing.T) {
	for _, c := range []struct{ devices, kept, maxBytes int }{{64, 64, 20_000}, {5000, maxHistories, 100_000}} {
		all := map[device.ID]DeviceReading{}
		for i := range c.devices {
			all[device.ID(fmt.Sprintf("GPU-%d", i))] = DeviceReading{Utilization: 0.5, MemoryUsed: 1, MemoryTotal: 2, Power: 3, PowerLimit: 4}
		}
		h, size := measuredHistory(all)
		for range 4 { // the runtime sometimes allocates memory itself
			if size <= c.maxBytes {
				break
			}
			h, size = measuredHistory(all)
		}
		if size > c.maxBytes || len(h.devices) != c.kept {
			t.Errorf("%d devices: got %d bytes for %d, want at most %d for %d", c.devices, size, len(h.devices), c.maxBytes, c.kept)
		} else {
			t.Logf("%d devices: %d bytes for %d", c.devices, size, len(h.devices))
		}
		slot := 3 * historySlots
		if n := testing.AllocsPerRun(100, func() {
			h.Record(now.Add(time.Duration(slot)*slotDuration), all)
			slot++
		}); n > 0 {
			t.Errorf("%d devices: got %.0f memory allocations per record", c.devices, n)
		}
	}
}

// measuredHistory returns a full history of the devices, and its size in bytes.
func measuredHistory(all map[device.ID]DeviceReading) (*ReadingHistory, int) {
	var before, after runtime.MemStats
	h := &ReadingHistory{}
	for range 2 { // objects with a finalizer need two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&before)
	for slot := range 3 * historySlots {
		h.Record(now.Add(time.Duration(slot)*slotDuration), all)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(all)
	return h, int(after.HeapAlloc) - int(before.HeapAlloc)
}
