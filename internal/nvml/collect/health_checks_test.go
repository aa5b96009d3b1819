package collect

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// checkFault is the fault that a check finds; nil: none.
func (s *readerFixture) checkFault(i int) *device.Fault {
	s.Helper()
	_, err := s.Check(s.id(i))
	var fault *device.Fault
	if err != nil && !errors.As(err, &fault) {
		s.Errorf("a check fails: %v", err)
	}
	return fault
}

func (s *readerFixture) wantFault(when string, i int, want *device.Fault) {
	s.Helper()
	if got := s.checkFault(i); (got == nil) != (want == nil) || got != nil && *got != *want {
		s.Errorf("%s: got %+v, want %+v", when, got, want)
	}
}

// ageChecks has time pass for what checks judge.
func (s *readerFixture) ageChecks(i int, by time.Duration) {
	s.ageSlow(i, by)
	h := s.gpu(i).history
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.notJoinedSince.IsZero() {
		h.notJoinedSince = h.notJoinedSince.Add(-by)
	}
}

// TestChecksByCall are of what has no field: each row has its case.
func TestChecksByCall(t *testing.T) {
	cases := map[string]struct{ bad, good string }{
		"sram_threshold_exceeded": {"gpu 1 sram_threshold 1", "gpu 1 sram_threshold 0"},
		"unrepairable_memory":     {"gpu 1 unrepairable 1", "gpu 1 unrepairable 0"},
		"fabric":                  {"gpu 1 fabric_status 999", "gpu 1 fabric_status 0"},
	}
	wants := map[string]device.Fault{
		"sram_threshold_exceeded": {Reason: "sram_threshold_exceeded", Action: "replace"},
		"unrepairable_memory":     {Reason: "unrepairable_memory", Action: "replace"},
		"fabric":                  {Reason: "fabric", Action: "reset_gpu"},
	}
	for _, c := range Checks() {
		line, ok := cases[c.Fault.Reason]
		if !ok {
			if !slices.Contains([]string{"row_remap_failure", "recovery_action_…", "fabric_not_joined"}, c.Fault.Reason) { // in tests of their own
				t.Errorf("no case for %s", c.Fault.Reason)
			}
			continue
		}
		want := wants[c.Fault.Reason]
		if c.Fault != want {
			t.Errorf("%s finds %+v, want %+v", c.Fault.Reason, c.Fault, want)
		}
		testCheckByCall(t, metric.NewReadPlan(false, nil), c.Fault.Reason, &want, line.bad, line.good)
		// Checks are independent of what is exported, also for a fault before the GPU is listed.
		nothing := metric.NewReadPlan(false, func(*device.Metric) bool { return false })
		testCheckByCall(t, nothing, c.Fault.Reason, &want, line.bad, line.good)
		newPlanFixture(t, nothing, "gpus 3", "gpu * model b200", line.bad).wantFault(c.Fault.Reason+" from the beginning", 1, &want)
	}
}

func testCheckByCall(t *testing.T, plan *metric.ReadPlan, reason string, want *device.Fault, bad, good string) {
	t.Helper()
	s := newPlanFixture(t, plan, "gpus 3", "gpu * model b200")
	s.wantFault(reason+" at first", 1, nil)
	s.set(bad)
	s.wantFault(reason+" at once", 1, nil) // nobody has looked
	before := s.calls()
	s.ageChecks(1, healthyCheckCallInterval)
	for range len(checkCalls) { // one call each time, the most overdue first
		s.checkFault(1)
	}
	if n := int(s.calls().Since(before).GPUTotal(1)); n > 2*len(checkCalls) {
		t.Errorf("%s: %d checks make %d calls", reason, len(checkCalls), n)
	}
	s.wantFault(reason+" a minute later", 1, want)
	s.wantFault(reason+" of another GPU", 2, nil)
	before = s.calls()
	s.wantFault(reason+" again", 1, want)
	if n := s.calls().Since(before).GPUTotal(1); n != 1 {
		t.Errorf("%s: a check makes %d calls", reason, n)
	}
	s.set(good)
	s.ageChecks(1, faultyCheckCallInterval)
	s.wantFault(reason+" when it is over", 1, nil)
}

// TestChecksByReading: a flight reads what checks judge, so that they need no call.
func TestChecksByReading(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 sram_threshold 1")
	s.wantFault("as it was found", 0, &device.Fault{Reason: "sram_threshold_exceeded", Action: "replace"})
	s.set("gpu 0 sram_threshold 0")
	s.ageChecks(0, slowInterval)
	for range 5 {
		s.values(0)
	}
	before := s.calls()
	s.wantFault("as it was read", 0, nil)
	if n := s.calls().Since(before).GPUTotal(0); n != 1 {
		t.Errorf("the check makes %d calls", n)
	}
}

// TestFaultsOutlastSilence: what the GPU does not tell any more is not mended, through a
// reset and another start of the driver.
func TestFaultsOutlastSilence(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 remapped_failure 1", "gpu 0 energy 9000")
	failed := &device.Fault{Reason: "row_remap_failure", Action: "replace", NeedsReset: true}
	s.wantFault("told", 0, failed)
	s.set("fail field:145 gpu 0 NOT_SUPPORTED") // as of a partitioned one
	s.wantFault("silent", 0, failed)
	s.set("gpu 0 energy 5")
	s.wantFault("after a reset", 0, failed)
	s.Close()
	s.list(2)
	s.wantFault("after a new start of the driver", 0, failed)
	s.wantFault("the GPU beside it", 1, nil)
	s.clear("fail")
	s.clear("gpu 0 remapped_failure")
	s.Close()
	s.list(2)
	s.wantFault("mended", 0, nil)

	s.set("gpu 1 recovery_action 1")
	if s.checkFault(1) == nil {
		t.Error("the recovery action is not seen")
	}
	s.set("fail field:230 gpu 1 UNKNOWN") // which is no answer
	if s.checkFault(1) == nil {
		t.Error("the recovery action is over since it could not be read")
	}
	s.clear("fail field:230")
	s.set("fail field:230 gpu 1 NOT_SUPPORTED") // it is the driver's, and goes with it
	s.wantFault("without a recovery action", 1, nil)
}

// TestStandingFault leaves the readings of a GPU that answers alone.
func TestStandingFault(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 remapped_failure 1")
	whole := len(s.values(0))
	for range 3 {
		if s.checkFault(0) == nil {
			t.Error("nothing is found")
		}
		if n := len(s.values(0)); n < whole {
			t.Errorf("%d values are read, and %d before", n, whole)
		}
	}
}

// TestFabric: a GPU that has not joined is given time, and one that has no use for the
// fabric all the time there is.
func TestFabric(t *testing.T) {
	apart := &device.Fault{Reason: "fabric_not_joined", Action: "inspect"}
	for _, c := range []struct {
		lines []string
		want  *device.Fault
	}{
		{[]string{"gpu 0 fabric_state 1"}, apart},
		{[]string{"gpu 0 fabric_state 2"}, apart},
		{[]string{"gpu 0 fabric_state 2", "gpu 0 fabric_status 999"}, apart}, // until it has joined that means nothing
		{[]string{"gpu 0 fabric_state 0"}, nil},
		{[]string{"gpu 0 fabric_state 3"}, nil},
		{[]string{"gpu 0 fabric_state 3", "gpu 0 fabric_health 0x1165", "gpu 0 fabric_summary 2"}, nil}, // it works, slower
		{[]string{"gpu 0 fabric_state 7"}, nil},
		{[]string{"gpu 0 fabric_state none"}, nil},
		{[]string{"gpu 0 fabric_state 1", "gpu 0 link 0-17 none"}, nil},
		{[]string{"gpu 0 fabric_state 1", "gpu 0 mig_mode 1"}, nil},
	} {
		s := newListedFixture(t, append([]string{"gpus 1", "gpu 0 model h100"}, c.lines...)...)
		s.wantFault(c.lines[0]+" at first", 0, nil)
		s.ageChecks(0, fabricJoinTimeout-time.Second)
		s.wantFault(c.lines[0]+" for minutes", 0, nil)
		s.ageChecks(0, time.Second)
		s.wantFault(c.lines[0]+" for five minutes", 0, c.want)
		s.set("gpu 0 fabric_state 3", "gpu 0 fabric_status 0")
		s.ageChecks(0, healthyCheckCallInterval)
		for range len(checkCalls) {
			s.checkFault(0)
		}
		s.wantFault(c.lines[0]+" and joined", 0, nil)
		s.set("gpu 0 fabric_state 1")
		s.ageChecks(0, healthyCheckCallInterval)
		for range len(checkCalls) {
			s.wantFault(c.lines[0]+" and apart again", 0, nil)
		}
	}
}

// TestFabricAfterTrouble: what a check goes by outlasts a failure, also where nobody reads.
func TestFabricAfterTrouble(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 fabric_state 1")
	s.wantFault("at first", 0, nil)
	s.set("fail nvmlDeviceGetFieldValues gpu 0 UNKNOWN")
	if _, err := s.Check(s.id(0)); err == nil {
		t.Error("the check does not fail")
	}
	s.clear("fail")
	s.ageChecks(0, fabricJoinTimeout)
	for range len(checkCalls) {
		s.checkFault(0)
	}
	s.wantFault("for five minutes", 0, &device.Fault{Reason: "fabric_not_joined", Action: "inspect"})
}

// TestLostInAJudgedCall: such a call may be the one that finds out.
func TestLostInAJudgedCall(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "fail nvmlDeviceGetSramEccErrorStatus gpu 0 GPU_IS_LOST")
	if s.checkFault(0) != nil {
		t.Error("a fault is found")
	}
	s.ageChecks(0, healthyCheckCallInterval)
	var lost bool
	for range len(checkCalls) {
		_, err := s.Check(s.id(0))
		lost = lost || errors.Is(err, device.ErrLost)
	}
	if !lost {
		t.Error("it is not lost")
	}
	s.clear("fail")
	s.set("fail nvmlDeviceGetSramEccErrorStatus gpu 0 UNKNOWN") // its own trouble
	s.ageChecks(0, healthyCheckCallInterval)
	for range len(checkCalls) {
		s.wantFault("a call that fails", 0, nil)
	}
}

// TestChecksKeepAReadingsCalls: between a reading and its processes a check may come.
func TestChecksKeepAReadingsCalls(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.values(0)
	g := s.gpu(0)
	left := g.processCalls
	s.ageChecks(0, healthyCheckCallInterval)
	s.checkFault(0)
	if g.processCalls != left {
		t.Errorf("%d calls are left, want %d", g.processCalls, left)
	}
}

// TestVitals tell of resets, across processes too, and of what the next one repairs.
func TestVitals(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 energy 9000")
	vitals := func(i int) device.ResetEvidence {
		v, err := s.Check(s.id(i))
		s.must(err)
		return v
	}
	if v := vitals(0); v != (device.ResetEvidence{EnergyCounter: 9000}) {
		t.Errorf("got %+v", v)
	}
	for pending, field := range map[string]string{"remapped_pending": "144", "retired_pending": "31"} {
		s.set("gpu 0 " + pending + " 1")
		g := s.gpu(0)
		g.checkFields.droppedSince = g.checkFields.droppedSince.Add(-confirmedRetryInterval)
		if v := vitals(0); !v.RepairPending {
			t.Errorf("%s: got %+v", pending, v)
		}
		s.set("fail field:" + field + " gpu 0 UNKNOWN")
		if v := vitals(0); !v.RepairPending {
			t.Errorf("%s could not be read: got %+v", pending, v)
		}
		s.clear("fail field:" + field)
		s.clear("gpu 0 " + pending)
		if v := vitals(0); v.RepairPending {
			t.Errorf("without %s: got %+v", pending, v)
		}
	}
	s.must(s.machine.Reset(0))
	if v := vitals(0); v.Resets != 1 || v.EnergyCounter >= 9000 {
		t.Errorf("after a reset: %+v", v)
	}
	s.set("gpu 1 energy none")
	s.Close()
	s.list(2)
	if v := vitals(0); v.Resets != 1 {
		t.Errorf("after a new start of the driver: %+v", v)
	}
	s.set("gpu 0 lost")
	if v, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) || v.Resets != 1 {
		t.Errorf("of one that is lost: %+v, %v", v, err)
	}
}

// TestChecksTable: rows have names, say what they find, and where they have it from.
func TestChecksTable(t *testing.T) {
	sources := map[string]string{
		"row_remap_failure": "field 145", "sram_threshold_exceeded": "nvmlDeviceGetSramEccErrorStatus",
		"unrepairable_memory": "nvmlDeviceGetUnrepairableMemoryFlag_v1", "recovery_action_…": "field 230",
		"fabric": "nvmlDeviceGetGpuFabricInfoV", "fabric_not_joined": "nvmlDeviceGetGpuFabricInfoV",
	}
	for _, c := range Checks() {
		if c.Source() != sources[c.Fault.Reason] || c.Condition == "" || c.Fault.Reason == "" || c.Fault.Action == "" {
			t.Errorf("%+v, want it from %q", c, sources[c.Fault.Reason])
		}
	}
	if n := len(Checks()); n != len(sources) {
		t.Errorf("%d rows, want %d", n, len(sources))
	}
}
