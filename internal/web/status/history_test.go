package status_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// lines returns the label and the path of each line of the past.
func (f *pageFixture) lines(t *testing.T) string {
	t.Helper()
	return strings.Join(f.find(t, "", `<svg class="past"[^>]*aria-label="([^"]*)"[^>]*>\s*<path d="([^"]*)"`), "; ")
}

// newHistoryFixture returns a node of a GPU with an empty history.
func newHistoryFixture() (*pageFixture, device.ID) {
	n := newEmptyFixture()
	n.Readings.History = &status.ReadingHistory{}
	return n, n.addGPU("NVIDIA L4", 24).ID
}

// TestHistoryLines checks the lines of the last half hour: a unit to the right for 30 s, 16 units up for 100 %.
func TestHistoryLines(t *testing.T) {
	for _, c := range []struct {
		name   string
		points map[int]float64 // utilization by slot; 59 is the newest
		want   string
	}{
		{"nothing read", nil, ""},
		{"one reading is a dot", map[int]float64{59: 0.5}, "50 to 50 % M59 8h0"},
		{"equal readings", map[int]float64{56: 0.5, 57: 0.51, 58: 0.5, 59: 0.49}, "49 to 51 % M56 8h0L57 8L58 8L59 8"},
		{"up and down", map[int]float64{56: 0, 57: 1, 58: 1, 59: 0}, "0 to 100 % M56 16h0L57 0L58 0L59 16"},
		{"above 100 %", map[int]float64{59: 1.5}, "100 to 100 % M59 0h0"},
		{"a line over a short gap", map[int]float64{50: 0.5, 54: 1}, "50 to 100 % M50 8h0L54 0"},
		{"a long gap", map[int]float64{50: 0.5, 55: 1, 56: 1}, "50 to 100 % M50 8h0M55 0h0L56 0"},
	} {
		runAtNow(t, func(t *testing.T) {
			n, id := newHistoryFixture()
			for slot := range 60 {
				if value, ok := c.points[slot]; ok {
					at := beforeNow(time.Duration(59-slot) * 30 * time.Second)
					n.Readings.History.Record(at, map[device.ID]status.DeviceReading{id: {status.Utilization: value}})
				}
			}
			want := c.want
			if want != "" {
				want = "Utilization of the last 30 min: " + want
			}
			if got := n.lines(t); got != want {
				t.Errorf("%s: got %s, want %s", c.name, got, want)
			}
		})
	}
}

// TestHistorySlots checks which readings become points, and for how long.
func TestHistorySlots(t *testing.T) {
	runAtNow(t, func(t *testing.T) {
		n, id := newHistoryFixture()
		record := func(id device.ID, after time.Duration, value float64) {
			n.Readings.History.Record(now.Add(after), map[device.ID]status.DeviceReading{id: {status.Utilization: value}})
		}
		check := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(time.Until(now.Add(after)))
			got := regexp.MustCompile(`\d+ to \d+ % M\d+`).FindString(n.lines(t))
			if got != want {
				t.Errorf("after %s: got %q, want %q", after, got, want)
			}
		}
		record(id, 0, 0.1)
		record(id, 29*time.Second, 0.2) // replaces the first reading
		record(id, 30*time.Second, 0.3)
		record(id, 20*time.Second, 0.4) // the clock went back: the reading goes into the newest slot
		check(30*time.Second, "20 to 40 % M58")
		check(90*time.Second, "20 to 40 % M56")
		check(30*time.Minute, "40 to 40 % M0")
		check(31*time.Minute, "")
		record(id, 32*time.Minute, 0.5)
		check(32*time.Minute, "50 to 50 % M59")
		record("another", 5*time.Hour, 0.6)
		check(5*time.Hour, "")
	})
}

// TestHistoryIsBounded checks that any number of devices, as of MIG devices made again and again, does not fill the memory.
func TestHistoryIsBounded(t *testing.T) {
	n, id := newHistoryFixture()
	for i := range 5000 {
		some := device.ID(fmt.Sprint("MIG-", i))
		n.Readings.History.Record(time.Now(), map[device.ID]status.DeviceReading{some: {status.Utilization: 0.5}})
	}
	n.Readings.History.Record(time.Now(), map[device.ID]status.DeviceReading{id: {status.Utilization: 0.5}})
	if got := n.lines(t); got != "" {
		t.Errorf("got %s", got)
	}
}
