package health_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestPublication(t *testing.T) {
	runScenarios(t, []scenario{
		{"only changes", 2, `1s; quiet 20m`},
		{"the first waits for all GPUs", 2, `hang d1; start; 4s: none; 2s: - not_responding`},
		// The others are published without a GPU whose first check hangs.
		{"an added GPU that hangs", 2, `9s; add; hang d2; 2s: - -; fail d0 xid 79; 1ms: xid_79 -
			5s: xid_79 - not_responding`},
	})
}

func TestDriverState(t *testing.T) {
	runScenarios(t, []scenario{
		{"loaded late", 2, `unload; start; 1m: none; driver absent; ready true; load; 2s: - -; driver up`},
		{"hangs at the start", 1, `hangall; start; 6s; driver not responding; ready true; respond; 2s: -`},
		// Listings that fail at once are no hang, and known devices are kept.
		{"listings fail", 1, `lists unknown; start; 1m; driver failing; ready true; log 1 driver unusable
			lists ok; 2s: -; lists unknown; 1m; driver failing; log 2 driver unusable; 1m: -`},
		{"events are interrupted", 1, `1m; interrupted false; log 0 driver events; holdwait; 5s; interrupted false
			1m; interrupted true; log 1 driver events interrupted; log 0 driver events resumed
			go; 2s; interrupted false; log 1 driver events resumed`},
		{"each Wait fails", 1, `waits unknown; start; 1m; interrupted true; log 1 driver events interrupted`},
	})
}

// TestDriverHang lets the driver hang at different times between checks and
// listings: all calls, or only calls about GPUs. The hang is detected within
// five seconds, and its end soon after. One hanging GPU of several is not a
// hang of the driver.
func TestDriverHang(t *testing.T) {
	for _, gpus := range []int{1, 2, 3, 8} {
		for offset := time.Duration(0); offset < 11*time.Second; offset += 700 * time.Millisecond {
			bubble.Test(t, func(t *testing.T) {
				s := newScenarioRun(t, gpus)
				defer func() { s.end() }()
				s.script(fmt.Sprintf("start; 20s; %s", offset))
				s.script(`hangall; 5s; driver not responding; alive true; 15s; log 1 driver unusable
					respond; 1s; driver up`)
				for _, id := range s.ids {
					s.HangGPU(id)
				}
				s.script("5s; driver not responding; 15s; driver not responding; respond; 1s; driver up")
				if gpus > 1 {
					s.HangGPU(s.ids[gpus-1])
					for range 20 {
						s.script("1s; driver up")
					}
					s.script("hangall; 5s; driver not responding")
				}
				s.ReleaseHangs()
			})
		}
	}
}

// TestUndeliveredCheckIsRunning checks that a check counts as running until the
// Monitor has its result: a release waits for the result.
func TestUndeliveredCheckIsRunning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		m := newMachine(1)
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, func(w *monitorFixture) {
			w.options.OnHealthEvent = func(device.HealthEvent) { <-busy }
		})
		defer w.stop()
		w.statusesAfter(500 * time.Millisecond)
		m.HangGPU(id)
		w.statusesAfter(time.Second) // a check hangs
		m.Fail(id, "xid 95")
		synctest.Wait()
		m.ReleaseHangs()
		synctest.Wait()
		if w.readers.Idle() {
			t.Error("Idle while the Monitor is busy: got true, want false")
		}
		close(busy)
		synctest.Wait()
		if !w.readers.Idle() {
			t.Error("Idle after the result: got false, want true")
		}
	})
}
