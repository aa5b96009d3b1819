package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// wantFault checks a GPU, which must have the fault; the zero Fault is none.
func (s *fixture) wantFault(when string, i int, want device.Fault) {
	s.Helper()
	_, err := s.Check(s.id(i))
	var got device.Fault
	if fault, ok := errors.AsType[*device.Fault](err); ok {
		got = *fault
	} else if err != nil {
		s.Errorf("%s: check: %v", when, err)
	}
	expect.Equal(s, got, want, when)
}

var healthy device.Fault

// TestChecks lists the sources and results of all checks. Each is at work with
// any rows, and from the beginning or after the interval of slow values.
func TestChecks(t *testing.T) {
	const fabric = "nvmlDeviceGetGpuFabricInfoV"
	cases := map[string]struct{ source, action, bad, good string }{
		"row_remap_failure":       {"field 145", "replace", "remapped_failure 1", "remapped_failure 0"},
		"sram_threshold_exceeded": {"nvmlDeviceGetSramEccErrorStatus", "replace", "sram_threshold 1", "sram_threshold 0"},
		"unrepairable_memory":     {"nvmlDeviceGetUnrepairableMemoryFlag_v1", "replace", "unrepairable 1", "unrepairable 0"},
		"recovery_action_…":       {"field 230", "as the driver reports", "recovery_action 8", "recovery_action 0"},
		"fabric":                  {fabric, "reset_gpu", "fabric_status 999", "fabric_status 0"},
		"fabric_not_joined":       {fabric, "inspect", "fabric_state 0", "fabric_state 3"},
		"fabric_not_ready":        {"nvmlDeviceGetNvLinkState", "inspect", "fabric_state 0", "fabric_state 3"},
	}
	for _, c := range collect.Checks() {
		row := cases[c.Fault.Reason]
		if c.Source() != row.source || c.Fault.Action != row.action || c.Condition == "" {
			t.Errorf("%+v: got source %s, want %+v", c, c.Source(), row)
		}
		if row.bad == "recovery_action 8" || row.bad == "fabric_state 0" { // see below
			continue
		}
		for _, reads := range []func(*device.Metric) bool{nil, func(*device.Metric) bool { return false }} {
			bubble.Test(t, func(t *testing.T) {
				s := newFixture(t, nvml.Options{Reads: reads}, "gpus 3", "gpu * model b200", "gpu 0 "+row.bad)
				s.list(3)
				s.wantFault("from the beginning", 0, c.Fault)
				s.wantFault("at first", 1, healthy)
				s.set("gpu 1 " + row.bad)
				time.Sleep(slowInterval)
				before := s.calls()
				s.wantFault("later", 1, c.Fault)
				if n := s.calls().Since(before).GPUTotal(1); n > 6 { // the fields, a call for each fault, a sample
					t.Errorf("%s: got %d calls, want at most 6", c.Fault.Reason, n)
				}
				before = s.calls()
				s.wantFault("again", 1, c.Fault)
				expect.Equal(t, s.calls().Since(before).GPUTotal(1), 1, c.Fault.Reason, "calls of a check")
				s.wantFault("another GPU", 2, healthy)
				s.set("gpu 1 " + row.good)
				time.Sleep(slowInterval)
				if reads == nil {
					s.values(1) // a collection reads the same values
				}
				s.wantFault("after its end", 1, healthy)
			})
		}
	}
	expect.Equal(t, len(collect.Checks()), len(cases), "rows")
}

func TestCheckErrors(t *testing.T) {
	const fields, unknown = "fail nvmlDeviceGetFieldValues gpu 1 ", "nvmlDeviceGetFieldValues: UNKNOWN"
	recovery := func(reason, action string) device.Fault {
		return device.Fault{Reason: "recovery_action_" + reason, Action: action}
	}
	reset := device.Fault{Reason: "reset_required", Action: "reset_gpu"}
	for _, c := range []struct {
		line  string
		fault device.Fault
		err   string // without a fault
	}{
		{"gpu 1 recovery_action 0", healthy, ""},
		{"gpu 1 recovery_action none", healthy, ""},
		{"gpu 1 recovery_action 1", recovery("gpu_reset", "reset_gpu"), ""},
		{"gpu 1 recovery_action 2", recovery("node_reboot", "reboot"), ""},
		{"gpu 1 recovery_action 3", recovery("drain_p2p", "drain_p2p"), ""},
		{"gpu 1 recovery_action 4", recovery("drain_and_reset", "drain_and_reset"), ""},
		{"gpu 1 recovery_action 5", recovery("recover_imex_domain", "recover_imex_domain"), ""},
		{"gpu 1 recovery_action 6", recovery("bus_reset", "reset_bus"), ""},
		{"gpu 1 recovery_action 7", recovery("system_reboot", "reboot"), ""},
		{"gpu 1 recovery_action 8", healthy, ""}, // not defined by NVML
		{"gpu 1 field 230 4294967296 u64", healthy, ""},
		{"gpu 1 field 230 4294967295 u32", healthy, ""},
		{"gpu 1 field 230 -1 i32", healthy, ""},
		{"gpu 1 lost", healthy, "GPU_IS_LOST"},
		{fields + "GPU_IS_LOST", healthy, "GPU_IS_LOST"},
		{"fail field:83 gpu 1 GPU_IS_LOST", healthy, "GPU_IS_LOST"},
		{fields + "RESET_REQUIRED", reset, ""},
		{"fail field:230 gpu 1 RESET_REQUIRED", reset, ""},
		{fields + "UNKNOWN", healthy, unknown},
		{fields + "TIMEOUT", healthy, "TIMEOUT"},
		{fields + "NO_PERMISSION", healthy, "NO_PERMISSION"},
		{fields + "DRIVER_NOT_LOADED", healthy, "DRIVER_NOT_LOADED"},
		{fields + "LIB_RM_VERSION_MISMATCH", healthy, "LIB_RM_VERSION_MISMATCH"},
		{fields + "INSUFFICIENT_RESOURCES", healthy, "INSUFFICIENT_RESOURCES"},
		{fields + "UNINITIALIZED", healthy, "UNINITIALIZED"},
		{fields + "NOT_SUPPORTED", healthy, ""},
		{"fail field:83 gpu 1 NOT_SUPPORTED", healthy, ""},
		{"fail field:83 gpu 1 INVALID_ARGUMENT", healthy, ""},
		{"fail field:230 gpu 1 UNKNOWN", healthy, ""},
		{"gpu 1 remapped_failure 1", device.Fault{Reason: "row_remap_failure", Action: "replace", NeedsReset: true}, ""},
		{"gpu 1 remapped_pending 1", healthy, ""}, // the rest of the memory is usable
		{"gpu 1 retired_pending 1", healthy, ""},
		{"gpu 1 link 0-17 off", healthy, ""}, // only the driver can interpret this
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 3")
			s.set(c.line)
			before := s.calls()
			if c.err == "" {
				s.wantFault(c.line, 1, c.fault)
			} else {
				_, err := s.Check(s.id(1))
				driverFault := !slices.Contains([]string{"TIMEOUT", "GPU_IS_LOST", unknown}, c.err)
				if err == nil || !strings.Contains(err.Error(), c.err) ||
					errors.Is(err, device.ErrLost) != (c.err == "GPU_IS_LOST") ||
					errors.Is(err, device.ErrDriverFault) != driverFault {
					t.Errorf("%s: got %v, want %s, a fault of the driver: %v", c.line, err, c.err, driverFault)
				}
			}
			if n := s.calls().Since(before).GPUTotal(1); n > 1 {
				t.Errorf("%s: got %d calls, want at most 1", c.line, n)
			}
			s.wantFault(c.line+": other GPU", 2, healthy)
		})
	}
}

// TestCheckWithoutFields has a GPU that supports none of the fields. The check
// still reports whether the GPU is present.
func TestCheckWithoutFields(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "fail field:83 gpu 0 NOT_SUPPORTED", "fail field:230 gpu 0 INVALID_ARGUMENT",
			"fail field:145 gpu 0 INVALID_ARGUMENT", "fail field:144 gpu 0 INVALID_ARGUMENT",
			"fail field:31 gpu 0 INVALID_ARGUMENT")
		for _, line := range []string{
			"confidential off", "fail field:83 gpu 0 INVALID_ARGUMENT", // a driver without these ids
			"fail nvmlDeviceGetFieldValues gpu 0 INVALID_ARGUMENT",
		} {
			s.set(line)
			s.wantFault(line, 0, healthy) // the handle is valid
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

// TestUnreadableChecks lets the GPU no longer report a fault. A fault stands
// until a value without fault, through a reset and a restart of the driver; the
// driver's recovery action ends with its report. Readings continue.
func TestUnreadableChecks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		failed := device.Fault{Reason: "row_remap_failure", Action: "replace", NeedsReset: true}
		reset := device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"}
		s := newListedFixture(t, "gpus 2", "gpu 0 remapped_failure 1", "gpu 0 energy 9000")
		count := len(s.values(0))
		s.wantFault("reported", 0, failed)
		s.set("fail field:145 gpu 0 NOT_SUPPORTED") // as on a partitioned GPU
		s.wantFault("not reported", 0, failed)
		s.set("gpu 0 energy 5")
		s.wantFault("after a reset", 0, failed)
		if n := len(s.values(0)); n < count-5 {
			t.Errorf("with a fault: got %d values, want %d", n, count)
		}
		s.Close()
		s.list(2)
		s.wantFault("after a restart of the driver", 0, failed)
		s.wantFault("the other GPU", 1, healthy)
		s.clear("fail")
		s.clear("gpu 0 remapped_failure")
		s.Close()
		s.list(2)
		s.wantFault("repaired", 0, healthy)

		s.set("gpu 1 recovery_action 1")
		s.wantFault("recovery action", 1, reset)
		s.set("fail field:230 gpu 1 UNKNOWN")
		s.wantFault("unreadable recovery action", 1, reset)
		s.set("fail field:230 gpu 1 NOT_SUPPORTED")
		s.wantFault("without a recovery action", 1, healthy)
		s.clear("fail")
		time.Sleep(deniedInterval)
		s.wantFault("after a stray denial", 1, reset)
		s.set("gpu 1 recovery_action 8")
		s.wantFault("undefined action", 1, healthy)
		time.Sleep(slowInterval)
		for name := range s.values(1) {
			if strings.HasPrefix(name, "nvidia_gpu_recovery_action") {
				t.Errorf("undefined action: got %s", name)
			}
		}
		s.set("fail nvmlDeviceGetSramEccErrorStatus gpu 1 GPU_IS_LOST") // found by a call of a check
		time.Sleep(slowInterval)
		if _, err := s.Check(s.id(1)); !errors.Is(err, device.ErrLost) {
			t.Errorf("Check: got %v, want ErrLost", err)
		}
		s.set("fail nvmlDeviceGetSramEccErrorStatus gpu 1 UNKNOWN") // a failure of the call itself
		s.wantFault("a call that fails", 1, healthy)
	})
}

// TestFabric checks that a GPU gets five minutes to join the fabric, also
// through a failure. A GPU that cannot use the fabric never has the fault.
func TestFabric(t *testing.T) {
	notJoined := device.Fault{Reason: "fabric_not_joined", Action: "inspect"}
	for _, c := range []struct {
		lines string
		want  device.Fault
	}{
		{"fabric_state 1", notJoined},
		{"fabric_state 2", notJoined},
		{"fabric_state 2,fabric_status 999", notJoined}, // meaningless before the join
		{"fabric_state 0", healthy},
		{"fabric_state 3", healthy},
		{"fabric_state 3,fabric_health 0x1165,fabric_summary 2", healthy}, // works, slower
		{"fabric_state 7", healthy},
		{"fabric_state none", healthy},
		{"fabric_state 1,link 0-17 none", healthy},
		{"fabric_state 1,mig_mode 1", healthy},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newFixture(t, nvml.Options{}, "gpus 1", "gpu 0 model h100")
			for line := range strings.SplitSeq(c.lines, ",") {
				s.set("gpu 0 " + line)
			}
			s.list(-1)
			s.wantFault(c.lines+" at first", 0, healthy)
			s.set("fail nvmlDeviceGetFieldValues gpu 0 UNKNOWN")
			if _, err := s.Check(s.id(0)); err == nil {
				t.Error("failing check: got no error")
			}
			s.clear("fail")
			time.Sleep(5*time.Minute - time.Second)
			s.wantFault(c.lines+" for minutes", 0, healthy)
			time.Sleep(time.Second)
			s.wantFault(c.lines+" for five minutes", 0, c.want)
			s.set("gpu 0 fabric_state 3", "gpu 0 fabric_status 0")
			time.Sleep(deniedInterval)
			s.wantFault(c.lines+" joined", 0, healthy)
			s.set("gpu 0 fabric_state 1")
			time.Sleep(slowInterval)
			s.wantFault(c.lines+" not joined again", 0, healthy)
		})
	}
}

// TestFabricManager checks that GPUs before Hopper are unhealthy five minutes after none has an active NVLink, only on a node with NVSwitches.
func TestFabricManager(t *testing.T) {
	notReady := device.Fault{Reason: "fabric_not_ready", Action: "inspect"}
	for _, c := range []struct {
		name, class, vendor, lines string
		off                        bool
		want                       device.Fault
	}{
		{"links down", "0x068000", "0x10de", "gpu * link 0-17 off", false, notReady},
		{"check off", "0x068000", "0x10de", "gpu * link 0-17 off", true, healthy},
		{"no NVSwitch", "0x060400", "0x10de", "gpu * link 0-17 off", false, healthy},
		{"another bridge", "0x068000", "0x8086", "gpu * link 0-17 off", false, healthy},
		{"no link", "0x068000", "0x10de", "gpu * link 0-17 none", false, healthy},
		{"links up", "0x068000", "0x10de", "gpu * link 0-17 switch", false, healthy},
		{"a GPU with links", "0x068000", "0x10de", "gpu * link 0-17 off,gpu 1 link 3 switch", false, healthy},
		{"partitioned", "0x068000", "0x10de", "gpu * link 0-17 off,gpu 0 mig_mode 1", false, healthy},
		{"the other is partitioned", "0x068000", "0x10de", "gpu * link 0-17 off,gpu 1 mig_mode 1", false, healthy},
		{"a partitioned GPU with links", "0x068000", "0x10de", "gpus 3,gpu * model a100,gpu * link 0-17 off,gpu 2 link 3 switch,gpu 2 mig_mode 1", false, healthy},
		{"vGPU host", "0x068000", "0x10de", "gpu * link 0-17 off,gpu * virtualization 3", false, healthy},
		{"passthrough", "0x068000", "0x10de", "gpu * link 0-17 off,gpu * virtualization 1", false, notReady},
		{"NVLinks disabled", "0x068000", "0x10de", "gpu * link 0-17 off", false, healthy},
		{"Hopper", "0x068000", "0x10de", "gpu * model h100,gpu * link 0-17 off", false, healthy},
		{"a failing call", "0x068000", "0x10de", "gpu * link 0-17 off,fail nvmlDeviceGetNvLinkState gpu 0 UNKNOWN", false, healthy},
	} {
		bubble.Test(t, func(t *testing.T) {
			sys := t.TempDir()
			bridge := filepath.Join(sys, "bus/pci/devices/0000:c4:00.0")
			require.NoError(t, os.MkdirAll(bridge, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(bridge, "class"), []byte(c.class+"\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(bridge, "vendor"), []byte(c.vendor+"\n"), 0o600))
			proc := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(proc, "driver/nvidia"), 0o755))
			disabled := map[bool]string{false: "NvLinkDisable: 0\n", true: "NvLinkDisable: 1\n"}[c.name == "NVLinks disabled"]
			require.NoError(t, os.WriteFile(filepath.Join(proc, "driver/nvidia/params"), []byte("EnableMSI: 1\n"+disabled), 0o600))
			s := newFixture(t, nvml.Options{SysRoot: sys, ProcRoot: proc, CheckFabricManager: !c.off}, "gpus 2", "gpu * model a100")
			s.set(strings.Split(c.lines, ",")...)
			s.list(-1)
			checkOthers := func() {
				for _, d := range s.devices {
					if d.WholeGPU() && d.Index > 0 {
						_, _ = s.Check(d.GPU)
					}
				}
			}
			want := func(what string, want device.Fault) {
				t.Helper()
				s.wantFault(what+" on the other GPU", 1, want)
				s.wantFault(what, 0, want)
			}
			s.wantFault(c.name+" at first", 0, healthy)
			checkOthers()
			time.Sleep(5*time.Minute - time.Second)
			s.wantFault(c.name+" for minutes", 0, healthy)
			checkOthers()
			time.Sleep(time.Minute)
			checkOthers()
			s.wantFault(c.name+" for five minutes", 0, c.want)
			s.clear("fail")
			s.set("gpu * link 0-17 switch")
			time.Sleep(deniedInterval)
			checkOthers()
			want(c.name+" started", healthy)
		})
	}
}

// TestFabricFaultEnds checks that the fault of inactive NVLinks ends with its evidence, and with a reset.
func TestFabricFaultEnds(t *testing.T) {
	notReady := device.Fault{Reason: "fabric_not_ready", Action: "inspect"}
	for _, c := range []struct{ name, change string }{
		{"failing call", "fail nvmlDeviceGetNvLinkState gpu 0 UNKNOWN"},
		{"failing check of the other GPU", "fail nvmlDeviceGetFieldValues gpu 1 UNKNOWN"},
		{"partitioned", "gpu 0 mig_mode 1"},
		{"the other GPU is delisted", "gpus 1"},
		{"active", "gpu 1 link 0-17 switch"},
		{"reset", "gpu 0 energy 5"},
	} {
		bubble.Test(t, func(t *testing.T) {
			sys := t.TempDir()
			bridge := filepath.Join(sys, "bus/pci/devices/0000:c4:00.0")
			require.NoError(t, os.MkdirAll(bridge, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(bridge, "class"), []byte("0x068000\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(bridge, "vendor"), []byte("0x10de\n"), 0o600))
			s := newFixture(t, nvml.Options{SysRoot: sys, CheckFabricManager: true},
				"gpus 2", "gpu * model a100", "gpu * link 0-17 off", "gpu 0 energy 9000")
			check := func() {
				_, _ = s.Check(s.id(0))
				if len(s.devices) > 1 {
					_, _ = s.Check(s.id(1))
				}
			}
			s.list(-1)
			check()
			time.Sleep(5 * time.Minute)
			check()
			s.wantFault(c.name+": before", 0, notReady)
			s.set(c.change)
			s.list(-1)
			time.Sleep(deniedInterval)
			check()
			s.wantFault(c.name, 0, healthy)
		})
	}
}

// TestResetEvidence checks that evidence shows pending repairs and resets,
// across restarts of the driver too. A check or a reading detects a reset, also
// after a denial.
func TestResetEvidence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu 0 energy 9000")
		want := func(what string, want device.ResetEvidence) {
			t.Helper()
			if got, err := s.Check(s.id(0)); err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
			}
		}
		want("at first", device.ResetEvidence{EnergyCounter: 9000})
		for pending, field := range map[string]string{"remapped_pending": "144", "retired_pending": "31"} {
			s.set("gpu 0 " + pending + " 1")
			time.Sleep(deniedInterval)
			want(pending, device.ResetEvidence{EnergyCounter: 9000, RepairPending: true})
			s.set("fail field:" + field + " gpu 0 UNKNOWN")
			want(pending+" unreadable", device.ResetEvidence{EnergyCounter: 9000, RepairPending: true})
			s.clear("fail")
			s.clear("gpu 0 " + pending)
			want("without "+pending, device.ResetEvidence{EnergyCounter: 9000})
		}
		for i, energy := range []uint64{5, 4000, 7, 7, 3} {
			s.set(fmt.Sprintf("gpu 0 energy %d", energy))
			if i%2 == 0 {
				s.values(0) // detects the reset as well
			}
			want("reset", device.ResetEvidence{EnergyCounter: energy, Resets: []uint64{1, 1, 2, 2, 3}[i]})
		}
		s.set("gpu 0 energy none")
		want("without the counter", device.ResetEvidence{EnergyCounter: 3, Resets: 3})
		s.set("gpu 0 energy 2")
		s.Close()
		s.list(2)
		want("after a restart of the driver", device.ResetEvidence{EnergyCounter: 2, Resets: 4})
		for _, field := range []string{"83", "230", "145", "144", "31"} { // as during a reset
			s.set("fail field:" + field + " gpu 0 NOT_SUPPORTED")
		}
		s.set("gpu 0 energy 1")
		want("denied fields", device.ResetEvidence{EnergyCounter: 2, Resets: 4})
		s.clear("fail")
		want("all fields again at once", device.ResetEvidence{EnergyCounter: 1, Resets: 5})
		s.set("gpu 0 lost")
		if v, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) || v.Resets != 5 {
			t.Errorf("lost GPU: got %+v, %v, want ErrLost and five resets", v, err)
		}
		expect.Equal(t, s.resets(1), 0, "other GPU resets")
	})
}
