package device_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
)

// monitorRecorder records the events and the saved history of a Monitor.
type monitorRecorder struct {
	fails bool // nothing is on disk
	mu    sync.Mutex
	// All below are guarded by mu.
	events             []device.HealthEvent
	saved              device.HealthHistory
	saves, urgentSaves int
}

func (s *monitorRecorder) attach(w *monitorFixture) {
	w.options.OnHealthEvent, w.options.Store = s.record, s
}

func (s *monitorRecorder) record(e device.HealthEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *monitorRecorder) SaveHealth(h device.HealthHistory, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saved, s.saves = h, s.saves+1; urgent {
		s.urgentSaves++
	}
}

func (s *monitorRecorder) Stored() bool { return !s.fails }

// takeEvents returns the events since the previous call.
func (s *monitorRecorder) takeEvents() []device.HealthEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// savedHistory returns the saved history as the next process reads it.
func (s *monitorRecorder) savedHistory() device.HealthHistory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return reloaded(s.saved)
}

// reloaded returns a history from its JSON form.
func reloaded(saved device.HealthHistory) (h device.HealthHistory) {
	content, err := json.Marshal(saved)
	if err == nil {
		err = json.Unmarshal(content, &h)
	}
	if err != nil {
		panic(err)
	}
	return h
}

// healthPath returns the sequence of the first device's health states within d.
func (f *monitorFixture) healthPath(d time.Duration) string {
	const step = 50 * time.Millisecond
	var path []string
	for end := time.Now().Add(d); time.Now().Before(end); {
		statuses := f.statusesAfter(step)
		is := "nothing"
		if len(statuses) > 0 {
			is = statuses[0].Health.String()
		}
		if len(path) == 0 || path[len(path)-1] != is {
			path = append(path, is)
		}
	}
	return strings.Join(path, " ")
}

// newCheckRequestMachine returns a machine on which Xid 154 triggers a check.
func newCheckRequestMachine(n int) *sim.Machine {
	m := newMachine(n)
	m.SetXidClassifier(func(xid uint64) (e device.Event, alone bool) {
		if xid == 154 {
			return device.Event{Recovery: device.RecoveryChecksPass, Class: "asks"}, false
		}
		return sim.DefaultXidEvent(xid)
	})
	return m
}

// recoveryCase is a fault of a GPU, and its recovery.
type recoveryCase struct {
	name         string
	fail, repair func(*monitorFixture, device.ID)
	// The health states within a minute after fail, and after repair.
	failPath, repairPath string
	// The status between fail and repair.
	reason, action string
	flaps          uint64
}

func failWith(what string) func(*monitorFixture, device.ID) {
	return func(w *monitorFixture, id device.ID) { w.Fail(id, what) }
}

func failChecks(err error) func(*monitorFixture, device.ID) {
	return func(w *monitorFixture, id device.ID) { w.SetCheckError(id, err) }
}

func resetGPU(w *monitorFixture, id device.ID) { w.ResetGPU(id) }

func doNothing(*monitorFixture, device.ID) {}

var errUnknown = errors.New("UNKNOWN")

var recoveryCases = []recoveryCase{
	{"no recovery needed", failWith("xid 31"), doNothing, "healthy", "healthy", "", "", 0},
	{"a report to verify", failWith("xid 154"), doNothing, "suspect healthy", "healthy", "", "", 0},
	{"a report to verify, and a fault", func(w *monitorFixture, id device.ID) {
		w.SetCheckError(id, &device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
		w.Fail(id, "xid 154")
	}, failChecks(nil), "unhealthy", "unhealthy recovering healthy", "recovery_action_gpu_reset", "reset_gpu", 1},
	{"one check", func(w *monitorFixture, id device.ID) {
		w.SetCheckError(id, errUnknown)
		w.untilSuspect() // one check has failed
		w.SetCheckError(id, nil)
	}, doNothing, "suspect healthy", "healthy", "", "", 0},
	{
		"two checks", failChecks(errUnknown), failChecks(nil), "healthy suspect unhealthy",
		"unhealthy recovering healthy", "check_failed", "", 1,
	},
	{
		"a fault", failChecks(&device.Fault{Reason: "nvlink", Action: "inspect"}), failChecks(nil), "healthy unhealthy",
		"unhealthy recovering healthy", "nvlink", "inspect", 1,
	},
	{"a fault that lasts", failChecks(&device.Fault{
		Reason: "row_remap_failure", Action: "reset_gpu",
		NeedsReset: true,
	}), failChecks(nil), "healthy unhealthy", "unhealthy", "row_remap_failure", "reset_gpu", 1},
	{
		"a fault that lasts until a reset", failChecks(&device.Fault{
			Reason: "row_remap_failure", Action: "reset_gpu",
			NeedsReset: true,
		}), resetGPU, "healthy unhealthy", "unhealthy recovering healthy", "row_remap_failure",
		"reset_gpu", 1,
	},
	{
		"lost", failChecks(device.ErrLost), failChecks(nil), "healthy unhealthy", "unhealthy recovering healthy",
		"lost", "reboot", 1,
	},
	{
		"an Xid, by passed checks", failWith("xid 95"), failChecks(nil), "unhealthy", "unhealthy", "xid_95",
		"reset_gpu", 1,
	},
	{
		"an Xid, by a reset", failWith("xid 95"), resetGPU, "unhealthy", "unhealthy recovering healthy", "xid_95",
		"reset_gpu", 1,
	},
	{"an Xid soon after a reset", func(w *monitorFixture, id device.ID) {
		w.ResetGPU(id)
		w.Fail(id, "xid 95")
	}, resetGPU, "unhealthy", "unhealthy recovering healthy", "xid_95", "reset_gpu", 1},
	{"an Xid during a hang", func(w *monitorFixture, id device.ID) {
		w.HangGPU(id)
		w.statusesAfter(6 * time.Second) // a check hangs now
		w.Fail(id, "xid 95")
	}, resetGPU, "unhealthy", "recovering healthy", "xid_95", "reset_gpu", 1},
	{
		"an Xid of a GPU that is lost, by passed checks", failWith("xid 79"), failChecks(nil), "unhealthy", "unhealthy",
		"xid_79", "reboot", 1,
	},
	{
		"an Xid of a GPU that is lost, by a reset", failWith("xid 79"), resetGPU, "unhealthy",
		"unhealthy recovering healthy", "xid_79", "reboot", 1,
	},
	{"a repair is pending after the reset", failWith("xid 64"), func(w *monitorFixture, id device.ID) {
		w.ResetGPU(id)
		w.SetRepairPending(id)
	}, "unhealthy", "unhealthy", "xid_64", "reset_gpu", 1},
	{"the repair is made", failWith("xid 64"), func(w *monitorFixture, id device.ID) {
		w.ResetGPU(id)
		w.SetRepairPending(id)
		w.statusesAfter(time.Minute)
		w.ResetGPU(id)
	}, "unhealthy", "unhealthy recovering healthy", "xid_64", "reset_gpu", 1},
	{
		"a pending repair without a fault", func(w *monitorFixture, id device.ID) { w.SetRepairPending(id) }, doNothing,
		"healthy", "healthy", "", "", 0,
	},
	{
		"a hang", func(w *monitorFixture, id device.ID) { w.HangGPU(id) },
		func(w *monitorFixture, _ device.ID) { w.ReleaseHangs() }, "healthy unhealthy", "recovering healthy",
		"not_responding", "", 1,
	},
	{"a fault while recovering", func(w *monitorFixture, id device.ID) {
		w.Fail(id, "lost")
		w.statusesAfter(10 * time.Second)
		w.SetCheckError(id, nil)
		w.statusesAfter(1500 * time.Millisecond)
		w.SetCheckError(id, errUnknown) // while recovering, one failure is enough
	}, failChecks(nil), "recovering unhealthy", "unhealthy recovering healthy", "check_failed", "", 1},
}

// TestFirstCheckFailsWithoutReason lets the first check of a GPU fail without a
// reason. Only a second failure marks the GPU unhealthy, and the first
// publication waits for the second check.
func TestFirstCheckFailsWithoutReason(t *testing.T) {
	start := func(t *testing.T) *monitorFixture {
		m := newMachine(2)
		m.SetCheckError(m.AllocatableIDs()[0], errUnknown)
		w := startMonitor(t, m, nil)
		if statuses := w.statusesAfter(500 * time.Millisecond); statuses != nil {
			t.Errorf("after one check: got statuses with reasons %q, want none published", reasons(statuses))
		}
		return w
	}
	t.Run("once", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			w.SetCheckError(w.AllocatableIDs()[0], nil)
			if got := w.healthPath(time.Minute); got != "nothing suspect healthy" {
				t.Errorf("health path: got %q, want %q", got, "nothing suspect healthy")
			}
			if s := w.statusesAfter(0)[0]; s.Flaps != 0 {
				t.Errorf("got %d flaps, want 0", s.Flaps)
			}
		})
	})
	t.Run("late", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			m := newMachine(2)
			gpu := m.GPUs()[0]
			w := startMonitor(t, m, func(device.Backend) device.Backend { return &slowFailure{Machine: m, gpu: gpu} })
			defer w.stop()
			requireReasons(t, "after a second check", w.statusesAfter(10*time.Second), "", "")
		})
	})
	t.Run("twice", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			requireReasons(t, "after two checks", w.statusesAfter(2*time.Second), "check_failed", "")
		})
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

// TestRecovery runs each recoveryCase and checks that the second GPU is unaffected.
func TestRecovery(t *testing.T) {
	for _, row := range recoveryCases {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := startMonitor(t, newCheckRequestMachine(2), nil)
				defer w.stop()
				id := w.AllocatableIDs()[0]
				w.statusesAfter(time.Second)
				row.fail(w, id)
				if got := w.healthPath(10 * time.Minute); got != row.failPath {
					t.Errorf("health path: got %q, want %q", got, row.failPath)
				}
				if s := w.statusesAfter(0)[0]; s.Reason != row.reason || s.Action != row.action ||
					s.Flaps != row.flaps {
					t.Errorf("got reason %q, action %q, %d flaps; want %q, %q, %d", s.Reason, s.Action, s.Flaps,
						row.reason, row.action, row.flaps)
				}
				row.repair(w, id)
				if got := w.healthPath(time.Minute); got != row.repairPath {
					t.Errorf("health path after the repair: got %q, want %q", got, row.repairPath)
				}
				if other := w.statusesAfter(0)[1]; other.Health != device.Healthy || other.Flaps != 0 {
					t.Errorf("second GPU: got %s and %d flaps, want healthy and 0", other.Health, other.Flaps)
				}
			})
		})
	}
}

// TestRecoveringHasNoAction checks that a recovering GPU has no action: the
// operator has taken the action of the fault.
func TestRecoveringHasNoAction(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(1), nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(w.AllocatableIDs()[0], "xid 95")
		if s := w.statusesAfter(time.Second)[0]; s.Action != "reset_gpu" {
			t.Errorf("with the fault: got %+v, want action reset_gpu", s)
		}
		w.ResetGPU(w.AllocatableIDs()[0])
		if s := w.statusesAfter(1500 * time.Millisecond)[0]; s.Health != device.Recovering || s.Reason != "xid_95" ||
			s.Action != "" {
			t.Errorf("after the reset: got %+v, want recovering from xid_95 without an action", s)
		}
		if r := findRecord(s.savedHistory(), w.GPUs()[0], ""); r.Action != "reset_gpu" {
			t.Errorf("got record %+v, want action reset_gpu", r)
		}
	})
}

// TestRecoveryAcrossRestarts restarts the process during the fault and during
// the recovery.
func TestRecoveryAcrossRestarts(t *testing.T) {
	for _, row := range recoveryCases {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, s := newCheckRequestMachine(1), monitorRecorder{}
				id := m.AllocatableIDs()[0]
				w := startMonitor(t, m, nil, s.attach)
				w.statusesAfter(time.Second)
				row.fail(w, id)
				w.statusesAfter(time.Minute)
				w.stop()
				if row.reason == "not_responding" { // stop ended the hang
					m.HangGPU(id)
				}
				began := time.Now()
				w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
				status := w.statusesAfter(10 * time.Second)[0]
				if status.Reason != row.reason || status.Flaps != 0 || row.reason != "" && !status.Since.Before(began) {
					t.Errorf("in the next process: got %+v, want reason %q and no flaps", status, row.reason)
				}
				row.repair(w, id)
				w.statusesAfter(time.Second)
				w.stop() // while recovering
				w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
				w.statusesAfter(10 * time.Second)
				if got := w.statusesAfter(0)[0].Health.String(); !strings.HasSuffix(row.repairPath, got) {
					t.Errorf("in the third process: got %s, want the end of %q", got, row.repairPath)
				}
				w.stop()
			})
		})
	}
}

// TestReboot checks that a reboot counts as a reset of all GPUs. The first
// publication waits for the first check of recovering devices: from the
// kubelet's start until that publication, pods of the node fail.
func TestReboot(t *testing.T) {
	for _, row := range []struct {
		name  string
		bad   func(*monitorFixture, device.ID)
		boot  func(*sim.Machine, device.ID)
		want  string
		after time.Duration // maximum time of the first publication
	}{
		{"the fault is over", failWith("xid 79"), func(m *sim.Machine, id device.ID) { m.ResetGPU(id) }, "", 0},
		{"the fault is over, without an energy counter", failWith("xid 95"), func(*sim.Machine, device.ID) {}, "", 0},
		{
			"the fault is over, and needed no reset", failWith("lost"),
			func(m *sim.Machine, id device.ID) { m.ResetGPU(id) }, "", 0,
		},
		{"the GPU is still lost", failWith("xid 79"), func(*sim.Machine, device.ID) {}, "lost", time.Second},
		{
			"the GPU hangs", failWith("xid 95"), func(m *sim.Machine, id device.ID) { m.HangGPU(id) }, "not_responding",
			6 * time.Second,
		},
		{
			"a repair is pending", failWith("xid 95"), func(m *sim.Machine, id device.ID) { m.SetRepairPending(id) },
			"xid_95", time.Second,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, s := newMachine(2), monitorRecorder{}
				id := m.AllocatableIDs()[0]
				w := startMonitor(t, m, nil, s.attach)
				w.statusesAfter(time.Second)
				row.bad(w, id)
				w.statusesAfter(time.Minute)
				w.stop()
				row.boot(m, id)
				w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
					w.options.History = s.savedHistory()
					w.options.History.Rebooted = true
				})
				defer w.stop()
				first := func() (statuses []device.Status) {
					for began := time.Now(); statuses == nil && time.Since(began) < time.Minute; {
						statuses = w.statusesAfter(50 * time.Millisecond)
					}
					return statuses
				}
				began := time.Now()
				requireReasons(t, "in the first publication", first(), row.want, "")
				if took := time.Since(began); took > row.after+500*time.Millisecond {
					t.Errorf("first publication: got it after %s, want at most %s", took, row.after)
				}
			})
		})
	}
}

// TestLostHistory checks that each device must pass its checks before the first
// publication.
func TestLostHistory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, s := newMachine(3), monitorRecorder{}
		m.Fail(m.AllocatableIDs()[1], "lost")
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History.Lost = true })
		defer w.stop()
		if w.statusesAfter(1900*time.Millisecond) != nil {
			t.Error("published before each device passed its checks")
		}
		statuses := w.statusesAfter(1500 * time.Millisecond)
		requireReasons(t, "after three checks", statuses, "", "lost", "")
		if statuses[0].Flaps != 0 || statuses[1].Flaps != 1 {
			t.Errorf("got %d and %d flaps, want 0 and 1", statuses[0].Flaps, statuses[1].Flaps)
		}
		if events := s.takeEvents(); len(events) != 1 || events[0].Reason != "lost" {
			t.Errorf("got events %+v, want one with reason lost", events)
		}
	})
	t.Run("for thirty seconds", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			m := newMachine(2)
			f := &intermittentGPU{Machine: m, gpu: m.GPUs()[0]}
			w := startMonitor(t, m, func(device.Backend) device.Backend { return f },
				func(w *monitorFixture) { w.options.History.Lost = true })
			defer w.stop()
			if w.statusesAfter(29*time.Second) != nil {
				t.Error("published before the timeout")
			}
			requireReasons(t, "after thirty seconds", w.statusesAfter(2*time.Second), "unproven", "")
		})
	})
}

// intermittentGPU is a machine with a GPU on which every third check fails
// without a reason.
type intermittentGPU struct {
	*sim.Machine
	gpu    device.GPU
	mu     sync.Mutex
	checks int // guarded by mu
}

func (f *intermittentGPU) Check(gpu device.GPU) (device.ResetEvidence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if gpu == f.gpu {
		if f.checks++; f.checks%3 == 0 {
			return device.ResetEvidence{}, errUnknown
		}
	}
	return f.Machine.Check(gpu)
}

// TestRecoveryPeriod checks that the recovery period doubles with each flap
// within an hour, up to ten minutes.
func TestRecoveryPeriod(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, s := newMachine(1), monitorRecorder{}
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, s.attach)
		defer func() { w.stop() }()
		w.statusesAfter(time.Second)
		flaps := uint64(0)
		flap := func() time.Duration {
			w.Fail(id, "lost")
			w.statusesAfter(6 * time.Second)
			w.SetCheckError(id, nil)
			began := time.Now()
			for w.statusesAfter(100 * time.Millisecond)[0].Reason != "" {
			}
			if flaps++; w.statusesAfter(0)[0].Flaps != flaps {
				t.Errorf("got %d published flaps, want %d", w.statusesAfter(0)[0].Flaps, flaps)
			}
			return time.Since(began)
		}
		requirePeriod := func(want time.Duration) {
			t.Helper()
			if got := flap(); got < want-1500*time.Millisecond || got > want+3*time.Second {
				t.Errorf("recovery period of flap %d: got %s, want %s", flaps, got, want)
			}
		}
		for _, want := range []time.Duration{3, 6, 12, 24, 48, 96, 192, 384, 600, 600} {
			requirePeriod(want * time.Second)
		}
		w.stop()
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		flaps = 0
		w.statusesAfter(time.Second)
		requirePeriod(600 * time.Second)
		w.statusesAfter(2 * time.Hour)
		requirePeriod(3 * time.Second)
		w.statusesAfter(40 * time.Minute)
		requirePeriod(6 * time.Second)
		w.statusesAfter(40 * time.Minute)
		requirePeriod(6 * time.Second)
	})
}

// TestFailedResets checks that a hardware fault that comes back after two
// resets has the action replace.
func TestFailedResets(t *testing.T) {
	for _, row := range []struct {
		name   string
		bad    []func(*monitorFixture, device.ID) // each followed by a reset
		policy device.Policy
		pause  time.Duration // without a process, before the reset
		want   string        // action of the last fault
	}{
		{
			"twice",
			[]func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95")},
			device.PolicyDefault,
			time.Hour, "reset_gpu",
		},
		{
			"three times",
			[]func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95"), failWith("xid 95")},
			device.PolicyDefault, time.Hour, device.ActionReplace,
		},
		{"three times, off the bus", []func(*monitorFixture, device.ID){
			failWith("xid 79"), failWith("xid 79"),
			failWith("xid 79"),
		}, device.PolicyDefault, time.Hour, device.ActionReplace},
		{"a different fault in between", []func(*monitorFixture, device.ID){
			failWith("xid 95"), failWith("xid 48"),
			failWith("xid 95"), failWith("xid 95"),
		}, device.PolicyDefault, time.Hour, "reset_gpu"},
		{
			"weeks apart",
			[]func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95"), failWith("xid 95")},
			device.PolicyDefault, 8 * 24 * time.Hour, "reset_gpu",
		},
		{"lost, no reset needed", []func(*monitorFixture, device.ID){
			failWith("lost"), failWith("lost"),
			failWith("lost"),
		}, device.PolicyDefault, time.Hour, "reboot"},
		{"by policy alone", []func(*monitorFixture, device.ID){
			failWith("xid 31"), failWith("xid 31"),
			failWith("xid 31"),
		}, device.PolicyUnhealthy, time.Hour, ""},
	} {
		for _, restarts := range []bool{false, true} {
			if !restarts && row.pause > time.Hour {
				continue
			}
			t.Run(fmt.Sprintf("%s, restarts %v", row.name, restarts), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					m, s := newMachine(1), monitorRecorder{}
					id := m.AllocatableIDs()[0]
					prepare := func(w *monitorFixture) {
						s.attach(w)
						w.options.History = s.savedHistory()
						w.options.Policy = func(uint64) device.Policy { return row.policy }
					}
					w := startMonitor(t, m, nil, prepare)
					defer func() { w.stop() }()
					var last device.Status
					for _, bad := range row.bad {
						w.statusesAfter(time.Minute)
						bad(w, id)
						last = w.statusesAfter(time.Minute)[0]
						if restarts {
							w.stop()
							time.Sleep(row.pause)
						}
						m.ResetGPU(id)
						if restarts {
							w = startMonitor(t, m, nil, prepare)
						}
						if s := w.statusesAfter(time.Minute)[0]; s.Health != device.Healthy {
							t.Fatalf("health after a reset: %s", s.Health)
						}
					}
					if last.Healthy || last.Action != row.want {
						t.Errorf("final action: got %q, want %q", last.Action, row.want)
					}
				})
			})
		}
	}
	t.Run("without being healthy in between", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := startMonitor(t, newMachine(1), nil)
			defer w.stop()
			id := w.AllocatableIDs()[0]
			w.statusesAfter(time.Second)
			fault := &device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true}
			for _, want := range []string{"reset_gpu", "reset_gpu", device.ActionReplace} {
				w.ResetGPU(id)
				w.SetCheckError(id, fault)
				if s := w.statusesAfter(time.Minute)[0]; s.Reason != "row_remap_failure" || s.Action != want ||
					s.Flaps != 1 {
					t.Errorf("got action %q after %d flaps, want %q after 1", s.Action, s.Flaps, want)
				}
			}
		})
	})
}

// TestUnhealthyTimeout checks that MonitorOptions.UnhealthyTimeout delays the
// reason not_responding.
func TestUnhealthyTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil, func(w *monitorFixture) {
			w.options.UnhealthyTimeout = 3 * time.Minute
		})
		defer w.stop()
		w.statusesAfter(time.Second)
		w.HangGPU(w.AllocatableIDs()[1])
		requireReasons(t, "soon", w.statusesAfter(170*time.Second), "", "")
		requireReasons(t, "then", w.statusesAfter(20*time.Second), "", "not_responding")
		w.ReleaseHangs()
		requireReasons(t, "when the GPU responds again", w.statusesAfter(5*time.Second), "", "")
	})
}

// stalledGPU is a machine with a GPU whose checks return ErrStalled.
type stalledGPU struct {
	*sim.Machine
	gpu device.GPU
}

func (b stalledGPU) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if gpu == b.gpu {
		return device.ResetEvidence{}, device.ErrStalled
	}
	return b.Machine.Check(gpu)
}

// TestStalledChecks checks that a check with ErrStalled neither passes nor fails.
func TestStalledChecks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, func(device.Backend) device.Backend { return stalledGPU{m, m.GPUs()[0]} })
		defer w.stop()
		requireReasons(t, "before each GPU is assessed", w.statusesAfter(4*time.Second))
		requireReasons(t, "after the timeout", w.statusesAfter(2*time.Second), "not_responding", "")
	})
}
