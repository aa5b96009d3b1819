package device_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// monitorRecorder is what a Monitor has told.
type monitorRecorder struct {
	exported atomic.Pointer[device.HealthHistory] // by ExportedCounts; nil: what was saved last
	mu       sync.Mutex
	// All below are guarded by mu.
	events []device.HealthEvent
	saved  device.HealthHistory
	saves  int // it was handed over
}

func (s *monitorRecorder) attach(w *monitorFixture) {
	w.options.OnHealthEvent, w.options.Store = s.record, s
}

func (s *monitorRecorder) record(e device.HealthEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *monitorRecorder) Save(h device.HealthHistory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved, s.saves = h, s.saves+1
}

func (s *monitorRecorder) ExportedCounts() *device.HealthHistory {
	if h := s.exported.Load(); h != nil {
		return h
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.saved
	return &h
}

// takeEvents are the occurrences since it was last asked.
func (s *monitorRecorder) takeEvents() []device.HealthEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.events
	s.events = nil
	return told
}

func (s *monitorRecorder) savedHistory() device.HealthHistory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved
}

// healthPath is where the first device stands, one after the other, for as long as d.
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

// newCheckRequestMachine is a machine on which Xid 154 asks for checks.
func newCheckRequestMachine(n int) *sim.Machine {
	m := newMachine(n)
	before := m.ClassifyXid
	m.ClassifyXid = func(xid uint64) (e device.Event, alone bool) {
		if xid == 154 {
			return device.Event{Recovery: device.RecoveryChecksPass, Class: "asks"}, false
		}
		return before(xid)
	}
	return m
}

// recoveryCase is what goes wrong with a GPU, and how it goes on.
type recoveryCase struct {
	name         string
	fail, repair func(*monitorFixture, device.ID)
	// Where it stands in the minutes after the one, and then after the other.
	failPath, repairPath string
	// reason and action are what is said in between; flaps is how often it turned unhealthy.
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

// recoveryCases are the ways to recover, by the class of what happened.
var recoveryCases = []recoveryCase{
	{"by itself", failWith("xid 31"), doNothing, "healthy", "healthy", "", "", 0},
	{"a report to look into", failWith("xid 154"), doNothing, "suspect healthy", "healthy", "", "", 0},
	{"a report to look into, which says why", func(w *monitorFixture, id device.ID) {
		w.SetCheckError(id, &device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
		w.Fail(id, "xid 154")
	}, failChecks(nil), "unhealthy", "unhealthy recovering healthy", "recovery_action_gpu_reset", "reset_gpu", 1},
	{"one check", func(w *monitorFixture, id device.ID) {
		w.SetCheckError(id, errUnknown)
		w.untilSuspect() // one has failed
		w.SetCheckError(id, nil)
	}, doNothing, "suspect healthy", "healthy", "", "", 0},
	{"two checks", failChecks(errUnknown), failChecks(nil), "healthy suspect unhealthy", "unhealthy recovering healthy", "check_failed", "", 1},
	{"a fault", failChecks(&device.Fault{Reason: "nvlink", Action: "inspect"}), failChecks(nil), "healthy unhealthy", "unhealthy recovering healthy", "nvlink", "inspect", 1},
	{"a fault that lasts", failChecks(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true}), failChecks(nil), "healthy unhealthy", "unhealthy", "row_remap_failure", "reset_gpu", 1},
	{"a fault that lasts until a reset", failChecks(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true}), resetGPU, "healthy unhealthy", "unhealthy recovering healthy", "row_remap_failure", "reset_gpu", 1},
	{"lost", failChecks(device.ErrLost), failChecks(nil), "healthy unhealthy", "unhealthy recovering healthy", "lost", "reboot", 1},
	{"an Xid, by a check", failWith("xid 95"), failChecks(nil), "unhealthy", "unhealthy", "xid_95", "reset_gpu", 1},
	{"an Xid, by a reset", failWith("xid 95"), resetGPU, "unhealthy", "unhealthy recovering healthy", "xid_95", "reset_gpu", 1},
	{"an Xid of one that is lost by it, which is there again", failWith("xid 79"), failChecks(nil), "unhealthy", "unhealthy", "xid_79", "reboot", 1},
	{"an Xid of one that is lost by it, by a reset", failWith("xid 79"), resetGPU, "unhealthy", "unhealthy recovering healthy", "xid_79", "reboot", 1},
	{"a repair still waits after the reset", failWith("xid 64"), func(w *monitorFixture, id device.ID) {
		w.ResetGPU(id)
		w.SetRepairPending(id)
	}, "unhealthy", "unhealthy", "xid_64", "reset_gpu", 1},
	{"the repair is made", failWith("xid 64"), func(w *monitorFixture, id device.ID) {
		w.ResetGPU(id)
		w.SetRepairPending(id)
		w.statusesAfter(time.Minute)
		w.ResetGPU(id)
	}, "unhealthy", "unhealthy recovering healthy", "xid_64", "reset_gpu", 1},
	{"a repair that waits, and no fault", func(w *monitorFixture, id device.ID) { w.SetRepairPending(id) }, doNothing, "healthy", "healthy", "", "", 0},
	{"a hang", func(w *monitorFixture, id device.ID) { w.HangGPU(id) }, func(w *monitorFixture, _ device.ID) { w.ReleaseHangs() }, "healthy unhealthy", "recovering healthy", "not_answering", "", 1},
	{"a relapse", func(w *monitorFixture, id device.ID) {
		w.Fail(id, "lost")
		w.statusesAfter(10 * time.Second)
		w.SetCheckError(id, nil)
		w.statusesAfter(1500 * time.Millisecond)
		w.SetCheckError(id, errUnknown) // on probation one is enough
	}, failChecks(nil), "recovering unhealthy", "unhealthy recovering healthy", "check_failed", "", 1},
}

// TestTheFirstCheckFailsSoftly has a GPU's very first check fail without a reason. A second
// one has to fail as well before the GPU is unhealthy, and the first post waits for it.
func TestTheFirstCheckFailsSoftly(t *testing.T) {
	start := func(t *testing.T) *monitorFixture {
		m := newMachine(2)
		m.SetCheckError(m.AllocatableIDs()[0], errUnknown)
		w := startMonitor(t, m, nil)
		if statuses := w.statusesAfter(500 * time.Millisecond); statuses != nil {
			t.Errorf("after one check the board has %q", reasons(statuses))
		}
		return w
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			w.SetCheckError(w.AllocatableIDs()[0], nil)
			if got := w.healthPath(time.Minute); got != "nothing suspect healthy" {
				t.Errorf("it goes %q", got)
			}
			if s := w.statusesAfter(0)[0]; s.Flaps != 0 {
				t.Errorf("it counts %d flaps", s.Flaps)
			}
		})
	})
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(2)
			gpu := m.GPUs()[0]
			w := startMonitor(t, m, func(device.Backend) device.Backend { return &slowFailure{Machine: m, gpu: gpu} })
			defer w.stop()
			requireReasons(t, "after a second check", w.statusesAfter(10*time.Second), "", "")
		})
	})
	t.Run("twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			requireReasons(t, "after two checks", w.statusesAfter(2*time.Second), "check_failed", "")
		})
	})
}

// slowFailure is a machine on which the first check of a GPU takes almost as long as it may
// and fails, and the second takes a second.
type slowFailure struct {
	*sim.Machine
	gpu    device.GPU
	checks int // the Monitor begins the next check of a GPU after the end of the one before
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

// TestRecoveryByClass has each other GPU know nothing of it.
func TestRecoveryByClass(t *testing.T) {
	for _, row := range recoveryCases {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startMonitor(t, newCheckRequestMachine(2), nil)
				defer w.stop()
				id := w.AllocatableIDs()[0]
				w.statusesAfter(time.Second)
				row.fail(w, id)
				if got := w.healthPath(10 * time.Minute); got != row.failPath {
					t.Errorf("it goes %q, want %q", got, row.failPath)
				}
				if s := w.statusesAfter(0)[0]; s.Reason != row.reason || s.Action != row.action || s.Flaps != row.flaps {
					t.Errorf("it is %q and wants %q, after %d flaps", s.Reason, s.Action, s.Flaps)
				}
				row.repair(w, id)
				if got := w.healthPath(time.Minute); got != row.repairPath {
					t.Errorf("then it goes %q, want %q", got, row.repairPath)
				}
				if other := w.statusesAfter(0)[1]; other.Health != device.Healthy || other.Flaps != 0 {
					t.Errorf("the other is %s, after %d flaps", other.Health, other.Flaps)
				}
			})
		})
	}
}

// TestProbationWantsNothing: what the fault asked for was done by then, and is not to be done
// again.
func TestProbationWantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(1), nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(w.AllocatableIDs()[0], "xid 95")
		if s := w.statusesAfter(time.Second)[0]; s.Action != "reset_gpu" {
			t.Errorf("with the fault it is %+v", s)
		}
		w.ResetGPU(w.AllocatableIDs()[0])
		if s := w.statusesAfter(1500 * time.Millisecond)[0]; s.Health != device.Recovering || s.Reason != "xid_95" || s.Action != "" {
			t.Errorf("after the reset it is %+v", s)
		}
		if r := findRecord(s.savedHistory(), w.GPUs()[0], ""); r.Action != "reset_gpu" {
			t.Errorf("its record is %+v", r)
		}
	})
}

// TestRestartForgetsNothing has the process end at the worst time, each time.
func TestRestartForgetsNothing(t *testing.T) {
	for _, row := range recoveryCases {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := newCheckRequestMachine(1), monitorRecorder{}
				id := m.AllocatableIDs()[0]
				w := startMonitor(t, m, nil, s.attach)
				w.statusesAfter(time.Second)
				row.fail(w, id)
				w.statusesAfter(time.Minute)
				w.stop()
				if row.reason == "not_answering" { // stop has ended the hang
					m.HangGPU(id)
				}
				began := time.Now()
				w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
				status := w.statusesAfter(10 * time.Second)[0]
				if status.Reason != row.reason || status.Flaps != row.flaps || row.reason != "" && !status.Since.Before(began) {
					t.Errorf("in the next process it is %+v", status)
				}
				row.repair(w, id)
				w.statusesAfter(time.Second)
				w.stop() // on probation
				w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
				w.statusesAfter(10 * time.Second)
				if got := w.statusesAfter(0)[0].Health.String(); !strings.HasSuffix(row.repairPath, got) {
					t.Errorf("in the one after that it is %s", got)
				}
				w.stop()
			})
		})
	}
}

// TestAResetBetweenProcesses is told by the odometer alone.
func TestAResetBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(2), monitorRecorder{}
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, s.attach)
		w.statusesAfter(time.Hour)
		w.Fail(id, "xid 95")
		w.statusesAfter(time.Hour)
		w.stop()
		m.ResetGPU(id)
		time.Sleep(90 * time.Minute) // less than since the first process began, and more than until the fault
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		if got := w.healthPath(10 * time.Second); got != "recovering healthy" && got != "unhealthy recovering healthy" {
			t.Errorf("it goes %q", got)
		}
	})
}

// TestABoot is a reset of all that is in the node. The first post waits for those that it
// may have mended.
func TestABoot(t *testing.T) {
	for _, row := range []struct {
		name  string
		bad   func(*monitorFixture, device.ID)
		boot  func(*sim.Machine, device.ID)
		want  string
		after time.Duration // by when
	}{
		{"it helps", failWith("xid 79"), func(m *sim.Machine, id device.ID) { m.ResetGPU(id) }, "", 3 * time.Second},
		{"it helps one without an odometer", failWith("xid 95"), func(*sim.Machine, device.ID) {}, "", 3 * time.Second},
		{"it is as lost as before", failWith("xid 79"), func(*sim.Machine, device.ID) {}, "lost", time.Second},
		{"it hangs", failWith("xid 95"), func(m *sim.Machine, id device.ID) { m.HangGPU(id) }, "not_answering", 6 * time.Second},
		{"a repair still waits", failWith("xid 95"), func(m *sim.Machine, id device.ID) { m.SetRepairPending(id) }, "xid_95", time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				requireReasons(t, "in the first post", first(), row.want, "")
				if took := time.Since(began); took > row.after+500*time.Millisecond {
					t.Errorf("it came after %s", took)
				}
			})
		})
	}
}

// TestNothingCanBeTold has each device prove itself before it is first told of: neither
// condemned nor trusted.
func TestNothingCanBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(3), monitorRecorder{}
		m.Fail(m.AllocatableIDs()[1], "lost")
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History.Lost = true })
		defer w.stop()
		if w.statusesAfter(1900*time.Millisecond) != nil {
			t.Error("something was posted before each device has proved itself")
		}
		statuses := w.statusesAfter(1500 * time.Millisecond)
		requireReasons(t, "after three checks", statuses, "", "lost", "")
		if statuses[0].Flaps != 0 || statuses[1].Flaps != 1 {
			t.Errorf("there were %d and %d flaps", statuses[0].Flaps, statuses[1].Flaps)
		}
		if told := s.takeEvents(); len(told) != 1 || told[0].Reason != "lost" {
			t.Errorf("told was %+v", told)
		}
	})
	t.Run("for thirty seconds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(2)
			f := &intermittentGPU{Machine: m, gpu: m.GPUs()[0]}
			w := startMonitor(t, m, func(device.Backend) device.Backend { return f }, func(w *monitorFixture) { w.options.History.Lost = true })
			defer w.stop()
			if w.statusesAfter(29*time.Second) != nil {
				t.Error("something was posted")
			}
			requireReasons(t, "after them", w.statusesAfter(2*time.Second), "unproven", "")
		})
	})
}

// intermittentGPU is a machine one of whose GPUs fails each third check in a way that does not
// count by itself.
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

// TestFlappingIsDamped: each turn within an hour has it tried for twice as long, up to ten
// minutes; and quiet hours are rewarded.
func TestFlappingIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
				t.Errorf("after %d flaps %d are shown", flaps, w.statusesAfter(0)[0].Flaps)
			}
			return time.Since(began)
		}
		tried := func(want time.Duration) {
			t.Helper()
			if got := flap(); got < want-1500*time.Millisecond || got > want+3*time.Second {
				t.Errorf("flap %d: it was tried for %s, want %s", flaps, got, want)
			}
		}
		for _, want := range []time.Duration{3, 6, 12, 24, 48, 96, 192, 384, 600, 600} {
			tried(want * time.Second)
		}
		w.stop()
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		w.statusesAfter(time.Second)
		tried(600 * time.Second)
		w.statusesAfter(2 * time.Hour)
		tried(3 * time.Second)
		w.statusesAfter(40 * time.Minute)
		tried(6 * time.Second)
		w.statusesAfter(40 * time.Minute)
		tried(6 * time.Second)
	})
}

// TestResetsInVain ask for another GPU, where it is the GPU that they did not mend.
func TestResetsInVain(t *testing.T) {
	for _, row := range []struct {
		name   string
		bad    []func(*monitorFixture, device.ID) // a reset follows each
		policy device.Policy
		pause  time.Duration // without a process, before the reset
		want   string        // the last one's action
	}{
		{"twice", []func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95")}, device.PolicyDefault, time.Hour, "reset_gpu"},
		{"three times", []func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95"), failWith("xid 95")}, device.PolicyDefault, time.Hour, device.ActionReplace},
		{"three times, off the bus", []func(*monitorFixture, device.ID){failWith("xid 79"), failWith("xid 79"), failWith("xid 79")}, device.PolicyDefault, time.Hour, device.ActionReplace},
		{"another one in between", []func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 48"), failWith("xid 95"), failWith("xid 95")}, device.PolicyDefault, time.Hour, "reset_gpu"},
		{"weeks apart", []func(*monitorFixture, device.ID){failWith("xid 95"), failWith("xid 95"), failWith("xid 95")}, device.PolicyDefault, 8 * 24 * time.Hour, "reset_gpu"},
		{"lost, which needs none", []func(*monitorFixture, device.ID){failWith("lost"), failWith("lost"), failWith("lost")}, device.PolicyDefault, time.Hour, "reboot"},
		{"by policy alone", []func(*monitorFixture, device.ID){failWith("xid 31"), failWith("xid 31"), failWith("xid 31")}, device.PolicyUnhealthy, time.Hour, ""},
	} {
		for _, restarts := range []bool{false, true} {
			if !restarts && row.pause > time.Hour {
				continue
			}
			t.Run(fmt.Sprintf("%s, restarts %v", row.name, restarts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
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
							t.Fatalf("a reset leaves it %s", s.Health)
						}
					}
					if last.Healthy || last.Action != row.want {
						t.Errorf("at last it wants %q, want %q", last.Action, row.want)
					}
				})
			})
		}
	}
	t.Run("without being well in between", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := startMonitor(t, newMachine(1), nil)
			defer w.stop()
			id := w.AllocatableIDs()[0]
			w.statusesAfter(time.Second)
			fault := &device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true}
			for _, want := range []string{"reset_gpu", "reset_gpu", device.ActionReplace} {
				w.ResetGPU(id)
				w.SetCheckError(id, fault)
				if s := w.statusesAfter(time.Minute)[0]; s.Reason != "row_remap_failure" || s.Action != want || s.Flaps != 1 {
					t.Errorf("it wants %q after %d flaps, want %q", s.Action, s.Flaps, want)
				}
			}
		})
	})
}

// TestHangsAfter takes as long as it is told to.
func TestHangsAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil, func(w *monitorFixture) { w.options.UnhealthyTimeout = 3 * time.Minute })
		defer w.stop()
		w.statusesAfter(time.Second)
		w.HangGPU(w.AllocatableIDs()[1])
		requireReasons(t, "soon", w.statusesAfter(170*time.Second), "", "")
		requireReasons(t, "then", w.statusesAfter(20*time.Second), "", "not_answering")
		w.ReleaseHangs()
		requireReasons(t, "when it answers again", w.statusesAfter(5*time.Second), "", "")
	})
}

// unansweredCheck is a machine whose checks say that another call hangs.
type unansweredCheck struct {
	*sim.Machine
	gpu device.GPU
}

func (b unansweredCheck) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if gpu == b.gpu {
		return device.ResetEvidence{}, device.ErrStalled
	}
	return b.Machine.Check(gpu)
}

// TestACheckThatAsksNothing is no failed check, and no answer either.
func TestACheckThatAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, func(device.Backend) device.Backend { return unansweredCheck{m, m.GPUs()[0]} })
		defer w.stop()
		requireReasons(t, "before each has a verdict", w.statusesAfter(4*time.Second))
		requireReasons(t, "after it", w.statusesAfter(2*time.Second), "not_answering", "")
	})
}
