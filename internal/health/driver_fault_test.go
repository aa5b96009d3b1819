package health_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
)

// setChecks sets what the checks return, by GPU.
func (s *scenarioRun) setChecks(errs []string) {
	for i, text := range errs {
		s.script(fmt.Sprintf("check d%d %s", i, text))
	}
}

// repeat returns the word n times.
func repeat(word string, n int) []string { return strings.Fields(strings.Repeat(word+" ", n)) }

// TestDriverFault lets the checks of some GPUs fail. If those of all fail
// alike, driver or container has the fault, and no GPU.
func TestDriverFault(t *testing.T) {
	all := func(word string, n int) string { return strings.Join(repeat(word, n), " ") }
	for _, row := range []struct {
		name   string
		checks string // what they return, by GPU
		lists  string
		slow   time.Duration // of a check, by turns
		want   string        // reasons
	}{
		{"all GPUs", all("unknown", 8), "ok", 0, all("driver", 8)},
		{"all GPUs, one after another", all("unknown", 8), "ok", 200 * time.Millisecond, all("driver", 8)},
		{"all GPUs, and listings", all("unknown", 4), "unknown", 0, all("driver", 4)},
		{"all GPUs, no driver", all("no-driver", 4), "no-driver", 0, all("driver", 4)},
		{"both GPUs", "unknown unknown", "ok", 0, "driver driver"},
		{"all GPUs but a lost one", "unknown lost unknown", "ok", 0, "driver lost driver"},
		{"one GPU of eight", all("ok", 7) + " unknown", "ok", 0, all("-", 7) + " check_failed"},
		{"one slow GPU of eight", all("ok", 7) + " unknown", "ok", 200 * time.Millisecond, all("-", 7) + " check_failed"},
		{"two GPUs of three", "unknown unknown ok", "ok", 0, "check_failed check_failed -"},
		{"all GPUs, one in another way", "timeout unknown unknown unknown", "ok", 0, all("driver", 4)},
		{"all GPUs, the last in another way", "unknown unknown unknown timeout", "ok", 0, all("driver", 4)},
		{"two GPUs, one with an error of the driver", "unknown driver-fault", "ok", 0, "driver driver"},
		{"two GPUs, each in another way", "unknown timeout", "ok", 0, "check_failed check_failed"},
		{"two GPUs beside a GPU with a fault", "unknown unknown fabric", "ok", 0, "check_failed check_failed fabric"},
		{"one lost GPU of eight", all("ok", 7) + " lost", "ok", 0, all("-", 7) + " lost"},
		{"all GPUs lost", all("lost", 4), "ok", 0, all("lost", 4)},
		{"the only GPU", "unknown", "ok", 0, "check_failed"},
		{"the only GPU, and listings", "unknown", "unknown", 0, "driver"},
		{"the only GPU, with an error of the driver", "driver-fault", "ok", 0, "driver"},
		{"one GPU of two, with an error of the driver", "driver-fault ok", "ok", 0, "check_failed -"},
		{"listings only", "ok ok", "unknown", 0, "- -"},
	} {
		for _, early := range []bool{false, true} { // from the first check
			bubble.Run(t, fmt.Sprintf("%s, early %v", row.name, early), func(t *testing.T) {
				testDriverFault(t, strings.Fields(row.checks), row.lists, row.slow, row.want, early)
			})
		}
	}
}

func testDriverFault(t *testing.T, checks []string, lists string, slow time.Duration, want string, early bool) {
	s := newScenarioRun(t, len(checks))
	defer func() { s.end() }()
	s.backend.checkTime = slow
	healthy := strings.Join(repeat("-", len(checks)), " ")
	if early && lists == "ok" {
		s.setChecks(checks)
	}
	s.start()
	if early {
		s.script("1ms")
	} else {
		s.script("10300ms: " + healthy)
	}
	s.script("lists " + lists)
	s.setChecks(checks)
	s.script("12s: " + want + "; 1m: " + want)
	events := s.recorder.takeEvents()
	faults := len(checks) - strings.Count(want, "driver") - strings.Count(want, "-")
	flaps := uint64(0)
	for _, status := range s.statusesAfter(0) {
		flaps += status.Flaps
	}
	if len(events) != faults || int(flaps) != faults {
		t.Errorf("got %d events and %d flaps, want %d: %+v", len(events), flaps, faults, events)
	}
	isDriver := strings.Contains(want, "driver") || lists != "ok"
	if d := s.monitor.Driver(); (d.State == device.DriverUp) == isDriver {
		t.Errorf("driver: got %+v, want a fault: %v", d, isDriver)
	}
	if n := s.logged("driver unusable") + s.logged("device unhealthy"); isDriver && n != 1 {
		t.Errorf("log lines about the fault: got %d, want 1:\n%s", n, s.log.String())
	}
	if !strings.Contains(want, "lost") {
		s.setChecks(repeat("ok", len(checks)))
		s.script("lists ok; 15s: " + healthy + "; events; driver up")
	}
}

// TestFaultAfterDriverFault lets the checks of all GPUs fail, and then those of
// some. The fault is theirs after the driver works again.
func TestFaultAfterDriverFault(t *testing.T) {
	for _, row := range []struct {
		name         string
		gpus, broken int // GPUs, and those that stay so
		err          string
		slow         time.Duration
	}{
		{"all fail, then one of eight stays", 8, 1, "unknown", 0},
		{"all fail, then one of eight slow GPUs stays", 8, 1, "unknown", 200 * time.Millisecond},
		{"all fail, then one of two stays", 2, 1, "unknown", 0},
		{"all fail with an error of the driver, then one of eight stays", 8, 1, "driver-fault", 0},
		{"all fail, then two of eight stay", 8, 2, "unknown", 0},
	} {
		bubble.Run(t, row.name, func(t *testing.T) {
			s := newScenarioRun(t, row.gpus)
			defer func() { s.end() }()
			s.backend.checkTime = row.slow
			s.script("start; 10s")
			healthy, drivers := repeat("-", row.gpus), strings.Join(repeat("driver", row.gpus), " ")
			broken := append(repeat("check_failed", row.broken), healthy[row.broken:]...)
			for _, pause := range []string{"30s", "30300ms"} {
				s.setChecks(repeat(row.err, row.gpus))
				s.script(pause + ": " + drivers)
				s.setChecks(append(repeat(row.err, row.broken), repeat("ok", row.gpus-row.broken)...))
				s.script("15s: " + strings.Join(broken, " ") + "; driver up")
				if events := s.recorder.takeEvents(); len(events) != row.broken {
					t.Errorf("got events %+v, want %d", events, row.broken)
				}
				s.setChecks(repeat("ok", row.gpus))
				s.script("1m: " + strings.Join(healthy, " "))
			}
		})
	}
}

func TestDriverFaultBesideOtherFaults(t *testing.T) {
	runScenarioFile(t, "driver_fault_beside_other_faults")
}

// TestRestartForDriver lets the driver fail for long. Run ends, with growing
// pauses across processes, until the driver has worked for a while.
func TestRestartForDriver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newScenarioRun(t, 2)
		fail := func(err string) { s.script("lists " + err + "; check all " + err) }
		run := func(lasts time.Duration, during func()) (ended time.Duration) {
			t.Helper()
			readers := health.NewReaders(s.backend)
			monitor := health.NewMonitor(s.backend, readers, &device.Inventory{}, health.Options{
				Log: slog.New(slog.DiscardHandler), History: s.recorder.savedHistory(), Store: s.recorder, RestartAfter: time.Minute,
			})
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			began, done := time.Now(), make(chan error, 1)
			go func() { done <- monitor.Run(ctx) }()
			during()
			err := <-done
			if (err == nil) != (ctx.Err() != nil) || err != nil && !errors.Is(err, health.ErrRestart) {
				t.Errorf("Run: got %v, want ErrRestart before the end of the context", err)
			}
			ended = time.Since(began)
			cancel()
			monitor.Drain(context.Background())
			readers.Drain(context.Background())
			synctest.Wait()
			return ended
		}
		nothing := func() {}
		if got := run(3*time.Hour, func() { fail("unknown") }); got < 3*time.Hour {
			t.Errorf("driver that never listed a device: restart after %s, want none", got)
		}
		fail("ok")
		if got := run(2*time.Hour, func() {
			time.Sleep(time.Hour)
			fail("unknown")
		}); got.Round(5*time.Second) != time.Hour+time.Minute {
			t.Errorf("first restart: got it after %s, want a minute of failures", got-time.Hour)
		}
		for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
			if got := run(2*time.Hour, nothing); got.Round(5*time.Second) != want*time.Minute {
				t.Errorf("restart %d: got it after %s, want %d minutes", i+2, got, want)
			}
		}
		working := func(d time.Duration) func() {
			return func() {
				fail("ok")
				time.Sleep(d)
				fail("unknown")
			}
		}
		if got := run(2*time.Hour, working(5*time.Minute)); got < time.Hour {
			t.Errorf("after five minutes of work: restart after %s, want an hour", got)
		}
		if got := run(2*time.Hour, working(15*time.Minute)); got.Round(20*time.Second) != 16*time.Minute {
			t.Errorf("after fifteen minutes of work: restart after %s, want a minute", got-15*time.Minute)
		}
		fail("no-driver")
		if got := run(3*time.Hour, nothing); got < 3*time.Hour {
			t.Errorf("no driver: restart after %s, want none", got)
		}
	})
}

// TestNoRestartForDriver has failures that a new process would not end, and a
// disk that cannot keep the number of restarts. An end of Run fails the scenario.
func TestNoRestartForDriver(t *testing.T) {
	for name, script := range map[string]string{
		"disabled":                   "restart-after 0s; start; 1m; lists unknown; check all unknown",
		"a hang":                     "start; 1m; hangall",
		"no driver":                  "start; 1m; lists no-driver; check all no-driver",
		"one GPU":                    "start; 1m; check d0 unknown",
		"all GPUs lost":              "start; 1m; check all lost",
		"only listings":              "start; 1m; lists unknown",
		"a disk that cannot be used": "disk unusable; start; 1m; lists unknown; check all unknown",
		"a release":                  "start; 1m; lists unknown; check all unknown; release",
		"short faults":               "start" + strings.Repeat("; check all unknown; lists unknown; 50s; check all ok; lists ok; 20s", 30),
	} {
		runScenarios(t, []scenario{{name, 2, "restart-after 1m; " + script + "; 30m; alive true; respond"}})
	}
}
