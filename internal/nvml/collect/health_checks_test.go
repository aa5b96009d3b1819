package collect_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
)

// checkFault checks a GPU and returns the fault; nil: none.
func (s *readerFixture) checkFault(i int) *device.Fault {
	s.Helper()
	_, err := s.Check(s.id(i))
	var fault *device.Fault
	if err != nil && !errors.As(err, &fault) {
		s.Errorf("check: %v", err)
	}
	return fault
}

func (s *readerFixture) wantFault(when string, i int, want *device.Fault) {
	s.Helper()
	if got := s.checkFault(i); (got == nil) != (want == nil) || got != nil && *got != *want {
		s.Errorf("%s: got %+v, want %+v", when, got, want)
	}
}

// TestChecksByCall tests the checks without a field. Each row has a case.
func TestChecksByCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
		for _, c := range collect.Checks() {
			line, ok := cases[c.Fault.Reason]
			if !ok {
				others := []string{"row_remap_failure", "recovery_action_…", "fabric_not_joined"}
				if !slices.Contains(others, c.Fault.Reason) {
					t.Errorf("test case for %s is missing", c.Fault.Reason)
				}
				continue
			}
			want := wants[c.Fault.Reason]
			if c.Fault != want {
				t.Errorf("%s: got fault %+v, want %+v", c.Fault.Reason, c.Fault, want)
			}
			testCheckByCall(t, metric.NewReadPlan(false, nil), c.Fault.Reason, &want, line.bad, line.good)
			// Checks are independent of the exported rows. A fault may also
			// precede the listing.
			nothing := metric.NewReadPlan(false, func(*device.Metric) bool { return false })
			testCheckByCall(t, nothing, c.Fault.Reason, &want, line.bad, line.good)
			newPlanFixture(t, nothing, "gpus 3", "gpu * model b200",
				line.bad).wantFault(c.Fault.Reason+" from the beginning", 1, &want)
		}
	})
}

func testCheckByCall(t *testing.T, plan *metric.ReadPlan, reason string, want *device.Fault, bad, good string) {
	t.Helper()
	s := newPlanFixture(t, plan, "gpus 3", "gpu * model b200")
	s.wantFault(reason+" at first", 1, nil)
	s.set(bad)
	s.wantFault(reason+" at once", 1, nil) // no check yet
	before := s.calls()
	time.Sleep(slowInterval)
	s.wantFault(reason+" half a minute later", 1, want)
	if n := s.calls().Since(before).GPUTotal(1); n > 6 { // the fields, a call for each fault, a sample
		t.Errorf("%s: got %d calls, want at most 6", reason, n)
	}
	s.wantFault(reason+" of another GPU", 2, nil)
	before = s.calls()
	s.wantFault(reason+" again", 1, want)
	if n := s.calls().Since(before).GPUTotal(1); n != 1 {
		t.Errorf("%s: calls of a check: got %d, want 1", reason, n)
	}
	s.set(good)
	time.Sleep(slowInterval)
	s.wantFault(reason+" after its end", 1, nil)
}

// TestChecksByReading checks that checks use the values of a collection, and
// need no call of their own.
func TestChecksByReading(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 sram_threshold 1")
		s.wantFault("from the check", 0, &device.Fault{Reason: "sram_threshold_exceeded", Action: "replace"})
		s.set("gpu 0 sram_threshold 0")
		time.Sleep(slowInterval)
		for range 5 {
			s.values(0)
		}
		before := s.calls()
		s.wantFault("from the collection", 0, nil)
		if n := s.calls().Since(before).Count("nvmlDeviceGetSramEccErrorStatus", 0); n != 0 {
			t.Errorf("calls of the check: got %d, want 0", n)
		}
	})
}

// TestFaultsOutlastMissingValues checks that a fault lasts while the GPU no
// longer reports the value, through a reset and a restart of the driver.
func TestFaultsOutlastMissingValues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu 0 remapped_failure 1", "gpu 0 energy 9000")
		failed := &device.Fault{Reason: "row_remap_failure", Action: "replace", NeedsReset: true}
		s.wantFault("reported", 0, failed)
		s.set("fail field:145 gpu 0 NOT_SUPPORTED") // as on a partitioned GPU
		s.wantFault("not reported", 0, failed)
		s.set("gpu 0 energy 5")
		s.wantFault("after a reset", 0, failed)
		s.Close()
		s.list(2)
		s.wantFault("after a restart of the driver", 0, failed)
		s.wantFault("the other GPU", 1, nil)
		s.clear("fail")
		s.clear("gpu 0 remapped_failure")
		s.Close()
		s.list(2)
		s.wantFault("repaired", 0, nil)

		s.set("gpu 1 recovery_action 1")
		if s.checkFault(1) == nil {
			t.Error("recovery action: got no fault")
		}
		s.set("fail field:230 gpu 1 UNKNOWN") // without a value
		if s.checkFault(1) == nil {
			t.Error("unreadable recovery action: got no fault, want the fault to last")
		}
		s.clear("fail field:230")
		s.set("fail field:230 gpu 1 NOT_SUPPORTED") // the driver's own action, ends with its value
		s.wantFault("without a recovery action", 1, nil)
	})
}

// TestFaultKeepsReadings checks that a fault does not stop the readings of a
// GPU that responds.
func TestFaultKeepsReadings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 remapped_failure 1")
		count := len(s.values(0))
		for range 3 {
			if s.checkFault(0) == nil {
				t.Error("got no fault")
			}
			if n := len(s.values(0)); n < count {
				t.Errorf("got %d values, want %d", n, count)
			}
		}
	})
}

// TestFabric checks that a GPU gets time to join the fabric. A GPU that cannot
// use the fabric never has the fault.
func TestFabric(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		notJoined := &device.Fault{Reason: "fabric_not_joined", Action: "inspect"}
		for _, c := range []struct {
			lines []string
			want  *device.Fault
		}{
			{[]string{"gpu 0 fabric_state 1"}, notJoined},
			{[]string{"gpu 0 fabric_state 2"}, notJoined},
			{[]string{"gpu 0 fabric_state 2", "gpu 0 fabric_status 999"}, notJoined}, // meaningless before the join
			{[]string{"gpu 0 fabric_state 0"}, nil},
			{[]string{"gpu 0 fabric_state 3"}, nil},
			// works, slower
			{[]string{"gpu 0 fabric_state 3", "gpu 0 fabric_health 0x1165", "gpu 0 fabric_summary 2"}, nil},
			{[]string{"gpu 0 fabric_state 7"}, nil},
			{[]string{"gpu 0 fabric_state none"}, nil},
			{[]string{"gpu 0 fabric_state 1", "gpu 0 link 0-17 none"}, nil},
			{[]string{"gpu 0 fabric_state 1", "gpu 0 mig_mode 1"}, nil},
		} {
			s := newListedFixture(t, append([]string{"gpus 1", "gpu 0 model h100"}, c.lines...)...)
			s.wantFault(c.lines[0]+" at first", 0, nil)
			time.Sleep(5*time.Minute - time.Second)
			s.wantFault(c.lines[0]+" for minutes", 0, nil)
			time.Sleep(time.Second)
			s.wantFault(c.lines[0]+" for five minutes", 0, c.want)
			s.set("gpu 0 fabric_state 3", "gpu 0 fabric_status 0")
			time.Sleep(slowInterval)
			s.checkFault(0)
			s.wantFault(c.lines[0]+" joined", 0, nil)
			s.set("gpu 0 fabric_state 1")
			time.Sleep(slowInterval)
			s.wantFault(c.lines[0]+" not joined again", 0, nil)
		}
	})
}

// TestFabricAfterFailure checks that the evidence of a check lasts through a
// failure, also without collections.
func TestFabricAfterFailure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 fabric_state 1")
		s.wantFault("at first", 0, nil)
		s.set("fail nvmlDeviceGetFieldValues gpu 0 UNKNOWN")
		if _, err := s.Check(s.id(0)); err == nil {
			t.Error("Check: got no error")
		}
		s.clear("fail")
		time.Sleep(5 * time.Minute)
		s.checkFault(0)
		s.wantFault("for five minutes", 0, &device.Fault{Reason: "fabric_not_joined", Action: "inspect"})
	})
}

// TestLostDuringHealthCall checks that a call of a check may be the first to
// find that the GPU is lost.
func TestLostDuringHealthCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1")
		s.wantFault("at first", 0, nil)
		s.set("fail nvmlDeviceGetSramEccErrorStatus gpu 0 GPU_IS_LOST")
		time.Sleep(slowInterval)
		if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
			t.Errorf("Check: got %v, want ErrLost", err)
		}
		s.set("fail nvmlDeviceGetSramEccErrorStatus gpu 0 UNKNOWN") // a failure of the call itself
		s.wantFault("a call that fails", 0, nil)
	})
}

// TestResetEvidence checks that evidence shows resets, across processes too,
// and pending repairs.
func TestResetEvidence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu 0 energy 9000")
		evidence := func(i int) device.ResetEvidence {
			v, err := s.Check(s.id(i))
			s.must(err)
			return v
		}
		if v := evidence(0); v != (device.ResetEvidence{EnergyCounter: 9000}) {
			t.Errorf("got %+v, want only the energy counter", v)
		}
		for pending, field := range map[string]string{"remapped_pending": "144", "retired_pending": "31"} {
			s.set("gpu 0 " + pending + " 1")
			time.Sleep(confirmedInterval)
			if v := evidence(0); !v.RepairPending {
				t.Errorf("%s: got %+v, want a pending repair", pending, v)
			}
			s.set("fail field:" + field + " gpu 0 UNKNOWN")
			if v := evidence(0); !v.RepairPending {
				t.Errorf("%s unreadable: got %+v, want a pending repair", pending, v)
			}
			s.clear("fail field:" + field)
			s.clear("gpu 0 " + pending)
			if v := evidence(0); v.RepairPending {
				t.Errorf("without %s: got %+v, want no pending repair", pending, v)
			}
		}
		s.must(s.machine.Reset(0))
		if v := evidence(0); v.Resets != 1 || v.EnergyCounter >= 9000 {
			t.Errorf("after a reset: got %+v, want one reset", v)
		}
		s.set("gpu 1 energy none")
		s.Close()
		s.list(2)
		if v := evidence(0); v.Resets != 1 {
			t.Errorf("after a restart of the driver: got %+v, want one reset", v)
		}
		s.set("gpu 0 lost")
		if v, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) || v.Resets != 1 {
			t.Errorf("lost GPU: got %+v, %v, want ErrLost and one reset", v, err)
		}
	})
}

// TestChecksTable checks that rows have names, faults and sources.
func TestChecksTable(t *testing.T) {
	sources := map[string]string{
		"row_remap_failure": "field 145", "sram_threshold_exceeded": "nvmlDeviceGetSramEccErrorStatus",
		"unrepairable_memory": "nvmlDeviceGetUnrepairableMemoryFlag_v1", "recovery_action_…": "field 230",
		"fabric": "nvmlDeviceGetGpuFabricInfoV", "fabric_not_joined": "nvmlDeviceGetGpuFabricInfoV",
	}
	for _, c := range collect.Checks() {
		if c.Source() != sources[c.Fault.Reason] || c.Condition == "" || c.Fault.Reason == "" || c.Fault.Action == "" {
			t.Errorf("got %+v, want source %q", c, sources[c.Fault.Reason])
		}
	}
	if n := len(collect.Checks()); n != len(sources) {
		t.Errorf("got %d rows, want %d", n, len(sources))
	}
}
