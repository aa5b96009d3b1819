package collect_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestCheck(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			line string
			want string // text of the error; empty: healthy
			lost bool
			// of the fault
			reason, action string
		}{
			{"", "", false, "", ""},
			{"gpu 1 recovery_action 0", "", false, "", ""},
			{"gpu 1 recovery_action none", "", false, "", ""},
			{"gpu 1 recovery_action 1", "recovery_action_gpu_reset", false, "recovery_action_gpu_reset", "reset_gpu"},
			{"gpu 1 recovery_action 2", "recovery_action_node_reboot", false, "recovery_action_node_reboot", "reboot"},
			{"gpu 1 recovery_action 3", "recovery_action_drain_p2p", false, "recovery_action_drain_p2p", "drain_p2p"},
			{
				"gpu 1 recovery_action 4", "recovery_action_drain_and_reset", false, "recovery_action_drain_and_reset",
				"drain_and_reset",
			},
			{
				"gpu 1 recovery_action 5", "recover_imex_domain", false, "recovery_action_recover_imex_domain",
				"recover_imex_domain",
			},
			{"gpu 1 recovery_action 6", "recovery_action_bus_reset", false, "recovery_action_bus_reset", "reset_bus"},
			{
				"gpu 1 recovery_action 7", "recovery_action_system_reboot", false, "recovery_action_system_reboot",
				"reboot",
			},
			{"gpu 1 recovery_action 8", "", false, "", ""}, // not defined by NVML
			{"gpu 1 field 230 4294967296 u64", "", false, "", ""},
			{"gpu 1 field 230 4294967295 u32", "", false, "", ""},
			{"gpu 1 field 230 -1 i32", "", false, "", ""},
			{"gpu 1 lost", "GPU_IS_LOST", true, "", ""},
			{"fail nvmlDeviceGetFieldValues gpu 1 GPU_IS_LOST", "GPU_IS_LOST", true, "", ""},
			{"fail field:83 gpu 1 GPU_IS_LOST", "GPU_IS_LOST", true, "", ""},
			{
				"fail nvmlDeviceGetFieldValues gpu 1 RESET_REQUIRED", "RESET_REQUIRED", false, "reset_required",
				"reset_gpu",
			},
			{"fail field:230 gpu 1 RESET_REQUIRED", "RESET_REQUIRED", false, "reset_required", "reset_gpu"},
			{"fail nvmlDeviceGetFieldValues gpu 1 UNKNOWN", "nvmlDeviceGetFieldValues: UNKNOWN", false, "", ""},
			{"fail nvmlDeviceGetFieldValues gpu 1 NOT_SUPPORTED", "", false, "", ""},
			{"fail field:83 gpu 1 NOT_SUPPORTED", "", false, "", ""},
			{"fail field:83 gpu 1 INVALID_ARGUMENT", "", false, "", ""},
			{"fail field:230 gpu 1 UNKNOWN", "", false, "", ""},
			{"gpu 1 remapped_failure 1", "row_remap_failure", false, "row_remap_failure", "replace"},
			{"gpu 1 remapped_pending 1", "", false, "", ""}, // the rest of the memory is usable
			{"gpu 1 retired_pending 1", "", false, "", ""},
			{"gpu 1 link 0-17 off", "", false, "", ""}, // only the driver can interpret this
		} {
			s := newListedFixture(t, "gpus 3")
			id := s.id(1)
			if c.line != "" {
				s.set(c.line)
			}
			before := s.calls()
			_, err := s.Check(id)
			if n := s.calls().Since(before).GPUTotal(1); n > 1 {
				t.Errorf("%s: got %d calls, want at most 1", c.line, n)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) ||
				errors.Is(err, device.ErrLost) != c.lost {
				t.Errorf("%s: got %v, want %q, lost %v", c.line, err, c.want, c.lost)
			}
			var fault *device.Fault
			if errors.As(err, &fault) != (c.reason != "") || fault != nil &&
				*fault != (device.Fault{
					Reason: c.reason, Action: c.action,
					NeedsReset: c.reason == "row_remap_failure",
				}) {
				t.Errorf("%s: got fault %+v, want %q, %q", c.line, fault, c.reason, c.action)
			}
			if _, err := s.Check(s.id(2)); err != nil {
				t.Errorf("%s: other GPU: %v", c.line, err)
			}
		}
	})
}

// TestCheckWithoutFields has a GPU that supports none of the fields. The check
// still reports whether the GPU is present.
func TestCheckWithoutFields(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "fail field:83 gpu 0 NOT_SUPPORTED", "fail field:230 gpu 0 INVALID_ARGUMENT",
			"fail field:145 gpu 0 INVALID_ARGUMENT", "fail field:144 gpu 0 INVALID_ARGUMENT",
			"fail field:31 gpu 0 INVALID_ARGUMENT")
		for range 3 {
			if _, err := s.Check(s.id(0)); err != nil {
				t.Error(err)
			}
		}
		for _, line := range []string{
			"fail field:83 gpu 0 INVALID_ARGUMENT",
			"fail nvmlDeviceGetFieldValues gpu 0 INVALID_ARGUMENT",
		} {
			s.set(line) // a driver without these ids; the handle is valid
			if _, err := s.Check(s.id(0)); err != nil {
				t.Errorf("%s: got %v, want nil", line, err)
			}
			s.set("fail nvmlDeviceGetUUID gpu 0 INVALID_ARGUMENT")
			if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
				t.Errorf("%s, invalid handle: got %v, want ErrLost", line, err)
			}
			s.clear("fail nvmlDeviceGetUUID")
		}
		s.set("gpu 0 lost")
		if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
			t.Errorf("lost GPU: got %v, want ErrLost", err)
		}
	})
}

// TestUndefinedRecoveryAction has the driver return an action that NVML does
// not define. It is no fault, no report of the driver, and no label value.
func TestUndefinedRecoveryAction(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 recovery_action 1")
		if s.checkFault(0) == nil {
			t.Fatal("recovery action: got no fault")
		}
		s.set("gpu 0 recovery_action 8")
		s.wantFault("undefined", 0, nil)
		if s.gpu(0).ReportsRecovery.Load() {
			t.Error("ReportsRecovery with an undefined action: got true, want false")
		}
		readAll := func() map[string]float64 { // reads the slow fields as well
			time.Sleep(slowInterval)
			return s.values(0)
		}
		for name, v := range readAll() {
			if strings.HasPrefix(name, "nvidia_gpu_recovery_action") {
				t.Errorf("got %s %v, want no recovery action", name, v)
			}
		}
		s.set("gpu 0 recovery_action 2")
		s.wantFault("defined again", 0, &device.Fault{Reason: "recovery_action_node_reboot", Action: "reboot"})
		if v := readAll()[`nvidia_gpu_recovery_action{action="node_reboot"}`]; v != 1 {
			t.Errorf("recovery action: got %v, want 1", v)
		}
	})
}

// TestCheckedFieldsReturn lets a GPU deny the fields of checks briefly, as
// during a reset. They are read again afterwards.
func TestCheckedFieldsReturn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu 0 energy 9000")
		check := func() (uint64, error) { v, err := s.Check(s.id(0)); return v.Resets, err }
		before, err := check()
		s.must(err)
		for _, field := range []string{"83", "230", "145", "144", "31"} {
			s.set("fail field:" + field + " gpu 0 NOT_SUPPORTED")
		}
		_, err = check()
		s.must(err)
		s.clear("fail")
		s.set("gpu 0 energy 5", "gpu 0 recovery_action 1")
		resets, err := check()
		if _, isFault := errors.AsType[*device.Fault](err); !isFault || resets != before+1 {
			t.Errorf("after both were denied: got %d resets, %v, want %d and the recovery action", resets, err,
				before+1)
		}
		s.clear("gpu 0 recovery_action")
		s.set("fail field:230 gpu 0 NOT_SUPPORTED") // a single denial may be right
		_, err = check()
		s.must(err)
		s.clear("fail")
		s.set("gpu 0 recovery_action 1")
		time.Sleep(slowInterval)
		_, err = check()
		if _, isFault := errors.AsType[*device.Fault](err); !isFault {
			t.Errorf("half a minute later: got %v, want a fault", err)
		}
	})
}

// TestResets checks that each decrease of the energy counter counts, whether a
// check or a reading detects it.
func TestResets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu 0 energy 1000")
		resets := func() uint64 {
			v, err := s.Check(s.id(0))
			s.must(err)
			return v.Resets
		}
		first := resets()
		for i, energy := range []string{"2000", "2000", "3000"} {
			if s.set("gpu 0 energy " + energy); resets() != first {
				t.Errorf("step %d: got a reset, want none", i)
			}
		}
		s.set("gpu 0 energy 5")
		s.values(0) // a reading detects the reset as well
		s.set("gpu 0 energy 4000")
		if n := resets(); n != first+1 {
			t.Errorf("got %d resets, want 1", n-first)
		}
		s.set("gpu 0 energy 7")
		if n := resets(); n != first+2 {
			t.Errorf("got %d resets, want 2", n-first)
		}
		s.set("gpu 0 energy none")
		s.values(0)
		if n := resets(); n != first+2 {
			t.Errorf("without the counter: got %d resets, want 2", n-first)
		}
		if n, err := s.Check(s.id(1)); err != nil || n.Resets != 0 {
			t.Errorf("other GPU: got %d resets, %v, want 0", n.Resets, err)
		}
	})
}
