package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
)

// recoveryCase is a fault of the first GPU, and its recovery.
type recoveryCase struct {
	name, fail string
	failPath   string // the health states within ten minutes after fail
	status     string // then: reason, action and flaps
	repair     string
	repairPath string // the health states within a minute after repair
}

const lastingFault = "check d0 row_remap_failure reset_gpu lasts"

var recoveryCases = []recoveryCase{
	{"no recovery needed", "fail d0 xid 31", "healthy", "- - 0", "", "healthy"},
	{"a report to verify", "fail d0 xid 154", "suspect healthy", "- - 0", "", "healthy"},
	{
		"a report to verify, and a fault", "check d0 recovery_action_gpu_reset reset_gpu; fail d0 xid 154",
		"unhealthy", "recovery_action_gpu_reset reset_gpu 1", "check d0 ok", "unhealthy recovering healthy",
	},
	{"one check", "check d0 unknown; suspect; check d0 ok", "suspect healthy", "- - 0", "", "healthy"},
	{"two checks", "check d0 unknown", "healthy suspect unhealthy", "check_failed - 1", "check d0 ok", "unhealthy recovering healthy"},
	{"a fault", "check d0 nvlink inspect", "healthy unhealthy", "nvlink inspect 1", "check d0 ok", "unhealthy recovering healthy"},
	{"a fault that lasts", lastingFault, "healthy unhealthy", "row_remap_failure reset_gpu 1", "check d0 ok", "unhealthy"},
	{
		"a fault that lasts until a reset", lastingFault, "healthy unhealthy", "row_remap_failure reset_gpu 1",
		"reset d0", "unhealthy recovering healthy",
	},
	{"lost", "check d0 lost", "healthy unhealthy", "lost reboot 1", "check d0 ok", "unhealthy recovering healthy"},
	{"an Xid, by passed checks", "fail d0 xid 95", "unhealthy", "xid_95 reset_gpu 1", "check d0 ok", "unhealthy"},
	{"an Xid, by a reset", "fail d0 xid 95", "unhealthy", "xid_95 reset_gpu 1", "reset d0", "unhealthy recovering healthy"},
	{"an Xid soon after a reset", "reset d0; fail d0 xid 95", "unhealthy", "xid_95 reset_gpu 1", "reset d0", "unhealthy recovering healthy"},
	{"an Xid during a hang", "hang d0; 6s; fail d0 xid 95", "unhealthy", "xid_95 reset_gpu 1", "reset d0", "recovering healthy"},
	{"an Xid of a GPU that is lost, by passed checks", "fail d0 xid 79", "unhealthy", "xid_79 reboot 1", "check d0 ok", "unhealthy"},
	{"an Xid of a GPU that is lost, by a reset", "fail d0 xid 79", "unhealthy", "xid_79 reboot 1", "reset d0", "unhealthy recovering healthy"},
	{"a repair is pending after the reset", "fail d0 xid 64", "unhealthy", "xid_64 reset_gpu 1", "reset d0; repair d0", "unhealthy"},
	{"the repair is made", "fail d0 xid 64", "unhealthy", "xid_64 reset_gpu 1", "reset d0; repair d0; 1m; reset d0", "unhealthy recovering healthy"},
	{"a pending repair without a fault", "repair d0", "healthy", "- - 0", "", "healthy"},
	{"a hang", "hang d0", "healthy unhealthy", "not_responding - 1", "respond", "recovering healthy"},
	{
		"a fault while recovering", "fail d0 lost; 10s; check d0 ok; 1500ms; check d0 unknown",
		"recovering unhealthy", "check_failed - 1", "check d0 ok", "unhealthy recovering healthy",
	},
}

// TestRecovery runs each recoveryCase and checks that the second GPU is unaffected.
func TestRecovery(t *testing.T) {
	for _, row := range recoveryCases {
		words := strings.Fields(row.status)
		runScenarios(t, []scenario{{row.name, 2, fmt.Sprintf(`1s; %s; path 10m %s
			0s: %s -; action %s -; flaps %s 0; %s; path 1m %s`,
			row.fail, row.failPath, words[0], words[1], words[2], row.repair, row.repairPath)}})
	}
}

// TestRecoveryAcrossRestarts restarts the process during the fault and during
// the recovery.
func TestRecoveryAcrossRestarts(t *testing.T) {
	for _, row := range recoveryCases {
		reason, _, _ := strings.Cut(row.status, " ")
		restart := "restart"
		if reason == "not_responding" {
			restart = "stop; hang d0; start" // the end of a process ends the hang
		}
		last := row.repairPath[strings.LastIndex(row.repairPath, " ")+1:]
		since := ""
		if reason != "-" {
			since = "since 1m10s"
			if strings.HasPrefix(row.failPath, "healthy ") || strings.HasPrefix(row.failPath, "recovering") {
				since = "" // found later
			}
		}
		runScenarios(t, []scenario{{row.name, 1, fmt.Sprintf(`start; 1s; %s; 1m; %s; 10s: %s; flaps 0; %s
			%s; 1s; restart; 10s; health %s`, row.fail, restart, reason, since, row.repair, last)}})
	}
}

func TestRecoveryOfGPUs(t *testing.T) { runScenarioFile(t, "recovery_of_gpus") }

// TestReboot checks that a reboot counts as a reset of all GPUs. The first
// publication waits for the first check of recovering devices: from the
// kubelet's start until that publication, pods of the node fail.
func TestReboot(t *testing.T) {
	for _, row := range []struct{ name, fail, boot, first string }{
		{"the fault is over", "xid 79", "reset d0", "500ms - -"},
		{"the fault is over, without an energy counter", "xid 95", "", "500ms - -"},
		{"the fault is over, and needed no reset", "lost", "reset d0", "500ms - -"},
		{"the GPU is still lost", "xid 79", "", "1500ms lost -"},
		{"the GPU hangs", "xid 95", "hang d0", "6500ms not_responding -"},
		{"a repair is pending", "xid 95", "repair d0", "1500ms xid_95 -"},
	} {
		runScenarios(t, []scenario{{row.name, 2, fmt.Sprintf(
			"start; 1s; fail d0 %s; 1m; stop; %s; booted; start; first %s", row.fail, row.boot, row.first)}})
	}
}

// TestLostHistory checks that each device must pass its checks before the first
// publication, and that a history is lost until then.
func TestLostHistory(t *testing.T) {
	runScenarios(t, []scenario{
		{"a GPU is lost", 3, `fail d1 lost; lose; start; 1900ms: none; 1500ms: - lost -; flaps 0 1 0; events lost!:g1`},
		{"for thirty seconds", 2, `flaky g0; lose; start; 29s: none; 2s: unproven -`},
		{"saved", 1, `unload; lose; start; 1s; lost true; stop; load; start; 1900ms: none; 1500ms: -; lost false`},
	})
}

// TestRecoveryPeriod checks that the recovery period doubles with each flap
// within an hour, up to ten minutes.
func TestRecoveryPeriod(t *testing.T) {
	inScenario(t, 1, func(t *testing.T, s *scenarioRun) {
		s.script("start; 1s")
		flaps := 0
		requirePeriod := func(want time.Duration) {
			t.Helper()
			flaps++
			s.script("fail d0 lost; 6s; check d0 ok")
			began := time.Now()
			for s.statusesAfter(100 * time.Millisecond)[0].Reason != "" {
			}
			if got := time.Since(began); got < want-1500*time.Millisecond || got > want+3*time.Second {
				t.Errorf("recovery period of flap %d: got %s, want %s", flaps, got, want)
			}
			s.script(fmt.Sprint("flaps ", flaps))
		}
		for _, want := range []time.Duration{3, 6, 12, 24, 48, 96, 192, 384, 600, 600} {
			requirePeriod(want * time.Second)
		}
		s.script("restart; 1s")
		flaps = 0
		requirePeriod(600 * time.Second)
		s.script("2h")
		requirePeriod(3 * time.Second)
		s.script("40m")
		requirePeriod(6 * time.Second)
		s.script("40m")
		requirePeriod(6 * time.Second)
	})
}

// TestFailedResets checks that a hardware fault that comes back after two
// resets has the action replace.
func TestFailedResets(t *testing.T) {
	for _, row := range []struct {
		name   string
		faults string // each followed by a reset
		policy string
		pause  string // without a process, before the reset; empty: no restart
		want   string // action of the last fault
	}{
		{"twice", "xid 95, xid 95", "default", "", "reset_gpu"},
		{"three times", "xid 95, xid 95, xid 95", "default", "", "replace"},
		{"three times, with restarts", "xid 95, xid 95, xid 95", "default", "1h", "replace"},
		{"three times, off the bus", "xid 79, xid 79, xid 79", "default", "1h", "replace"},
		{"a different fault in between", "xid 95, xid 48, xid 95, xid 95", "default", "1h", "reset_gpu"},
		{"weeks apart", "xid 95, xid 95, xid 95", "default", "192h", "reset_gpu"},
		{"lost, no reset needed", "lost, lost, lost", "default", "", "reboot"},
		{"by policy alone", "xid 31, xid 31, xid 31", "unhealthy", "1h", "-"},
	} {
		script := "policy " + row.policy + "; start"
		reset := "; reset d0"
		if row.pause != "" {
			reset = "; stop; " + row.pause + "; reset d0; start"
		}
		for fault := range strings.SplitSeq(row.faults, ", ") {
			script += "; 1m: -; fail d0 " + fault + "; 1m; health unhealthy"
			if strings.Count(script, "fail") == strings.Count(row.faults, ",")+1 {
				script += "; action " + row.want
			}
			script += reset
		}
		runScenarios(t, []scenario{{row.name, 1, script + "; 1m: -"}})
	}
}

// TestSlowFirstCheck lets a GPU's first check fail just before the timeout, and
// the second take a second.
func TestSlowFirstCheck(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, func(device.Backend) device.Backend { return &slowFailure{Machine: m, gpu: m.GPUs()[0]} })
		defer w.stop()
		requireReasons(t, "after a second check", w.statusesAfter(10*time.Second), "", "")
	})
}

// slowFailure is a machine on which a GPU's first check fails just before the
// timeout, and the second check takes a second.
type slowFailure struct {
	*sim.Machine
	gpu    device.GPU
	checks int // checks of a GPU never overlap
}

func (s *slowFailure) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if gpu != s.gpu {
		return s.Machine.Check(gpu)
	}
	switch s.checks++; s.checks {
	case 1:
		time.Sleep(4900 * time.Millisecond)
		return device.ResetEvidence{}, errUnknown
	case 2:
		time.Sleep(time.Second)
	}
	return s.Machine.Check(gpu)
}
