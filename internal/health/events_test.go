package health_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestTwoSources checks that an event counts once, whether driver or kernel log
// reports it, or both.
func TestTwoSources(t *testing.T) {
	const driver, kernel = "xid_31:g1", "xid_31@kmsg:g1"
	for _, row := range []struct {
		name, script, count string
		events              []string
	}{
		{"the driver first", "driver kernel", "31:1", []string{driver}},
		{"the kernel log first", "kernel driver", "31:1", []string{kernel}},
		{"the kernel log long before", "kernel 9s driver", "31:1", []string{kernel}},
		{"the driver long before", "driver 9s kernel", "31:1", []string{driver}},
		{"the driver alone", "driver driver 1m driver", "31:3", []string{driver, driver, driver}},
		{"the kernel log alone", "kernel kernel 1m kernel", "31:3", []string{kernel, kernel, kernel}},
		{"another one by the driver", "driver kernel driver", "31:2", []string{driver, driver}},
		{"another one in the kernel log later", "driver kernel 11s kernel", "31:2", []string{driver, kernel}},
		{"another one by the driver later", "kernel 11s driver", "31:2", []string{kernel, driver}},
		{"both sources, three times", "driver kernel 1m kernel driver 1m driver kernel", "31:3", []string{driver, kernel, driver}},
	} {
		script := strings.NewReplacer("driver", "fail d1 xid 31", "kernel", "kernel d1 31").
			Replace(strings.ReplaceAll(row.script, " ", "; "))
		runScenarios(t, []scenario{{
			row.name, 2,
			"1s; " + script + "; 2s: - -; xids - " + row.count + "; events " + strings.Join(row.events, " "),
		}})
	}
	bubble.Run(t, "a storm", func(t *testing.T) {
		storm := slices.Repeat([]string{"kernel d1 31", "fail d1 xid 31", "fail d1 xid 31"}, 1000)
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(storm), func(i, j int) { storm[i], storm[j] = storm[j], storm[i] })
		s := newScenarioRun(t, 2)
		defer func() { s.end() }()
		s.script("start; 1s; fail d1 xid 31; " + strings.Join(storm, "; ") + "; 2s; xids - 31:2001")
	})
}

// TestSeverity checks that nonfatal Xids count, but not as the latest severe
// one. Only the kernel log has the severity of some Xids; without the kernel
// log, a fault that the next check finds decides.
func TestSeverity(t *testing.T) {
	for _, row := range []struct{ name, script, count, severe string }{
		{"driver alone", "driver", "1", "never"},
		{"driver, then a fault", "driver fault", "1", "1s"},
		{"driver, then a fault a minute later", "driver 1m fault", "1", "never"},
		{"driver first, nonfatal", "driver nonfatal", "1", "never"},
		{"driver first, fatal", "driver fatal", "1", "1s"},
		{"kernel log first, nonfatal", "nonfatal driver", "1", "never"},
		{"kernel log first, fatal", "fatal driver", "1", "1s"},
		{"kernel log alone, nonfatal", "nonfatal", "1", "never"},
		{"kernel log alone, fatal", "fatal", "1", "1s"},
		{"fatal, then nonfatal", "driver fatal 1m driver nonfatal", "2", "1s"},
		{"nonfatal, then fatal", "driver nonfatal 1m driver fatal", "2", "1m1s"},
		{"two at once", "driver driver nonfatal fatal", "2", "1s"},
	} {
		script := strings.NewReplacer("driver", "fail d0 xid 145", "nonfatal", "kernel d0 145 nonfatal",
			"fatal", "kernel d0 145", "fault", "check d0 recovery_action_gpu_reset reset_gpu").
			Replace(strings.ReplaceAll(row.script, " ", "; "))
		// The next process has the same time.
		runScenarios(t, []scenario{{row.name, 1, "1s; " + script + "; 8s; xids 145:" + row.count + "; severe " + row.severe +
			"; restart; 1m; xids 145:0; severe " + row.severe}})
	}
}

func TestKernelLog(t *testing.T) { runScenarioFile(t, "kernel_log") }

// TestEventsAreBounded checks that the kinds of events are bounded, and their
// count is not. An event beyond the limit marks a device unhealthy.
func TestEventsAreBounded(t *testing.T) {
	inScenario(t, 1, func(t *testing.T, s *scenarioRun) {
		s.script("start; 1s")
		report := func(xid uint64, count int) {
			e := device.Event{GPU: s.GPUs()[0], Xid: xid, Source: "kmsg"}
			expect.NoError(t, s.monitor.Report(t.Context(), e, count, time.Now()))
		}
		report(31, 80_000)
		s.script("2s; xids 31:80000")
		for xid := range uint64(1000) {
			report(1000+xid, 1)
		}
		if status := s.statusesAfter(2 * time.Second)[0]; len(status.Xids) != 256 {
			t.Errorf("got %d kinds of events, want 256", len(status.Xids))
		}
		s.script("kernel d0 95; 2s: xid_95")
	})
}

// TestPolicy changes the policy while the Monitor runs.
func TestPolicy(t *testing.T) {
	for _, row := range []struct{ xid, policy, reason, health, events, lines string }{
		{"31", "default", "-", "healthy", "xid_31:g0", "1"},
		{"31", "ignore", "-", "healthy", "", "0"},
		{"31", "warn", "-", "healthy", "xid_31:g0", "1"},
		{"31", "unhealthy", "xid_31", "unhealthy", "xid_31!:g0", "1"},
		{"95", "default", "xid_95", "unhealthy", "xid_95!:g0", "1"},
		{"95", "ignore", "-", "healthy", "", "0"},
		{"95", "warn", "-", "healthy", "xid_95:g0", "1"},
		{"95", "unhealthy", "xid_95", "unhealthy", "xid_95!:g0", "1"},
		{"154", "default", "-", "suspect", "xid_154/asks:g0", "1"},
		{"154", "ignore", "-", "healthy", "", "0"},
		{"154", "warn", "-", "healthy", "xid_154/asks:g0", "1"},
	} {
		runScenarios(t, []scenario{{row.xid + " " + row.policy, 1, "1s; policy " + row.policy + "; fail d0 xid " + row.xid +
			"; 100ms: " + row.reason + "; health " + row.health + "; 1s; xids " + row.xid + ":1; events " + row.events +
			"; log " + row.lines + " driver event; reset d0; 5s: -"}})
	}
}

// TestPolicyThreshold checks a policy that applies from the third report of a device within ten minutes.
func TestPolicyThreshold(t *testing.T) {
	rows := []scenario{
		{"two reports", 2, "fail d0 xid 31; 1s; fail d0 xid 31; 1s: - -; events xid_31:g0 xid_31:g0"},
		{"three reports", 2, `fail d0 xid 31; 1s; fail d0 xid 31; 1s; fail d0 xid 31; 1s: xid_31 -
			events xid_31:g0 xid_31:g0 xid_31!:g0`},
		{"three reports, not within the window", 2, `fail d0 xid 31; 5m; fail d0 xid 31; 5m; fail d0 xid 31; 1s: - -
			4m59s; fail d0 xid 31; 1s: - -; fail d0 xid 31; 1s: xid_31 -`},
		{"reports of two GPUs", 2, "fail d0 xid 31; fail d0 xid 31; fail d1 xid 31; fail d1 xid 31; 1s: - -"},
		{"reports of two Xids", 2, "fail d0 xid 31; fail d0 xid 31; fail d0 xid 13; fail d0 xid 13; 1s: - -"},
		{"both sources of one report", 2, "fail d0 xid 31; kernel d0 31; 20s; fail d0 xid 31; kernel d0 31; 20s: - -"},
		{"below the threshold, the class decides", 2, "fail d0 xid 95; 1s: xid_95 -"},
		{"below the threshold, a list decides", 2, `policy unhealthy 3 10m warn; fail d0 xid 95; fail d0 xid 95; 1s: - -
			events xid_95:g0 xid_95:g0; fail d0 xid 95; 1s: xid_95 -`},
		{"counts start at 0 after a recovery", 2, `fail d0 xid 31; fail d0 xid 31; fail d0 xid 31; 1s: xid_31 -
			reset d0; 1m: - -; fail d0 xid 31; fail d0 xid 31; 1s: - -; fail d0 xid 31; 1s: xid_31 -`},
		{"counts start at 0 after a trust", 2, `fail d0 xid 31; fail d0 xid 31; fail d1 xid 31; fail d1 xid 31; 1s; trust d0; 1s
			fail d0 xid 31; fail d1 xid 31; 1s: - xid_31`},
		{"counts start at 0 after a resume", 2, "fail d0 xid 31; fail d0 xid 31; 1s; release; resume; 1m; fail d0 xid 31; 1s: - -"},
		{"a restart", 2, "fail d0 xid 31; fail d0 xid 31; 2s; restart; 2s; fail d0 xid 31; 1s: - -"},
	}
	for i := range rows {
		rows[i].script = "policy unhealthy 3 10m default; 1s; " + rows[i].script
	}
	for name, script := range map[string]string{
		"MIG devices count apart":          "fail d0 xid 31; fail d0 xid 31; fail d1 xid 31; fail d1 xid 31; 1s: - - -; fail d1 xid 31; 1s: - - xid_31",
		"many reports of a sibling device": "kernel d1 31; kernel d1 31;" + strings.Repeat("kernel d0 31;", 801) + "1s; kernel d1 31; 1s: - xid_31 xid_31",
		"a MIG device is trusted":          "fail d0 xid 31; fail d0 xid 31; fail d1 xid 31; fail d1 xid 31; 1s; trust d0; 1s; fail d0 xid 31; fail d1 xid 31; 1s: - - xid_31",
		"the GPU recovers":                 "fail d1 xid 31; fail d1 xid 31; fail g0 xid 95; 1s; reset g0; 1m: - - -; fail d1 xid 31; 1s: - - -",
	} {
		rows = append(rows, scenario{name, 1, "partition g0 1g.10gb 1g.10gb; start; policy unhealthy 3 10m default; 1s; " + script})
	}
	runScenarios(t, rows)
}

// TestHealthEvents checks which events name which devices.
func TestHealthEvents(t *testing.T) {
	rows := []scenario{
		{"an application's Xid of a MIG device", 2, "fail d1 xid 31; 1m; events xid_31:d1"},
		{"an Xid that marks a MIG device unhealthy", 2, "fail d1 xid 999; 1m; events xid_999!:d1"},
		{"an Xid of the hardware", 2, "fail d1 xid 95; 1m; events xid_95!:g0,d0,d1"},
		{"an Xid to verify", 2, "fail d1 xid 154; 1m; events xid_154/asks:g0,d0,d1"},
		{"twice", 2, "fail d1 xid 95; fail d1 xid 95; 1m; events xid_95!:g0,d0,d1 xid_95:g0,d0,d1"},
		{"off the bus", 2, "fail d1 xid 79; 1m; events xid_79!:g0,d0,d1"},
		{"lost", 2, "fail d1 lost; 1m; events lost!:g0,d0,d1"},
		{"gone", 2, "remove g0; 1m; events lost!:g0,d0,d1"},
		{"a check", 2, "fail d1 odd; 1m; events check_failed!:g0,d0,d1"},
		{"a hang", 2, "hang d1; 1m; events not_responding!:g0,d0,d1; respond"},
		{"GPUs that are not ready", 2, `check all confidential_computing external
			10s: confidential_computing confidential_computing confidential_computing confidential_computing
			check all ok; 5s: - - - -; events`},
		{"a reconfiguration", 2, "partition g0 2g.20gb; 1m; events"},
		{"MIG mode is turned off", 2, "unpartition g0; 1m; events"},
		{"a release", 2, "release; 1m; resume; 1m; events"},
		{"the driver is unloaded and loaded", 2, "unload; 100ms; load; 1m; events"},
	}
	for i := range rows {
		rows[i].script = "partition g0 1g.10gb 1g.10gb; start; 1s; " + rows[i].script
	}
	runScenarios(t, rows)
}

// TestXidStorm reports ten thousand Xids in ten seconds. Each is counted and
// passed on, with few checks, publications, saves and log lines.
func TestXidStorm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		b := &countingBackend{Backend: m, checks: map[time.Time]int{}}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b }, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		publications := 0
		_, changed := w.inventory.Get()
		for n := range 10_000 {
			w.Fail(w.AllocatableIDs()[0], []string{"xid 31", "xid 95"}[n%2])
			w.statusesAfter(time.Millisecond)
			if pubsub.IsClosed(changed) {
				publications++
				_, changed = w.inventory.Get()
			}
		}
		s.mu.Lock()
		saves := s.saves
		s.mu.Unlock()
		if n := b.checkTimes(); n < 10 || n > 250 || publications < 10 || publications > 50 || saves > 50 {
			t.Errorf("got %d checks, %d publications and %d saves, want at most 250, 50 and 50", n, publications, saves)
		}
		if n := w.logged("driver event"); n < 2 || n > 4 {
			t.Errorf("got %d log lines about events, want 2 to 4", n)
		}
		xids := w.statusesAfter(time.Second)[0].Xids
		if events := s.takeEvents(); len(events) != 10_000 || len(xids) != 2 || xids[0].Count != 5000 || xids[1].Count != 5000 {
			t.Errorf("got %d events and Xids %+v, want 10000 events, 5000 of each Xid", len(events), xids)
		}
	})
}
