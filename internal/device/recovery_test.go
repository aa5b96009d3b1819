package device_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// witnessed is what a Monitor has told.
type witnessed struct {
	mu sync.Mutex
	// All below are guarded by mu.
	happened []device.Occurrence
	kept     device.History
	times    int // it was handed over
}

func (s *witnessed) listen(w *watched) {
	w.monitor.Happened = func(o device.Occurrence) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.happened = append(s.happened, o)
	}
	w.monitor.Remember = func(h device.History) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept, s.times = h, s.times+1
	}
}

// told are the occurrences since it was last asked.
func (s *witnessed) told() []device.Occurrence {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.happened
	s.happened = nil
	return told
}

func (s *witnessed) history() device.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// path is where the first device stands, one after the other, for as long as d.
func (w *watched) path(d time.Duration) string {
	const step = 50 * time.Millisecond
	var path []string
	for end := time.Now().Add(d); time.Now().Before(end); {
		statuses := w.after(step)
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

// knowing is a machine on which Xid 154 asks for checks.
func knowing(n int) *sim.Machine {
	m := machine(n)
	before := m.Means
	m.Means = func(xid uint64) (e device.Event, alone bool) {
		if xid == 154 {
			return device.Event{Heals: device.ByCheck, Class: "asks"}, false
		}
		return before(xid)
	}
	return m
}

// course is what goes wrong with a GPU, and how it goes on.
type course struct {
	name      string
	bad, mend func(*watched, device.ID)
	// Where it stands in the minutes after the one, and then after the other.
	ill, well string
	// reason and action are what is said in between; flaps is how often it turned unhealthy.
	reason, action string
	flaps          uint64
}

func fails(what string) func(*watched, device.ID) {
	return func(w *watched, id device.ID) { w.Fail(id, what) }
}

func ails(err error) func(*watched, device.ID) {
	return func(w *watched, id device.ID) { w.Ail(id, err) }
}

func resets(w *watched, id device.ID) { w.Recover(id) }

func nothing(*watched, device.ID) {}

var errOdd = errors.New("UNKNOWN")

// courses are the ways to recover, by the class of what happened.
var courses = []course{
	{"by itself", fails("xid 31"), nothing, "well", "well", "", "", 0},
	{"a report to look into", fails("xid 154"), nothing, "suspect well", "well", "", "", 0},
	{"a report to look into, which says why", func(w *watched, id device.ID) {
		w.Ail(id, &device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
		w.Fail(id, "xid 154")
	}, ails(nil), "unhealthy", "unhealthy probation well", "recovery_action_gpu_reset", "reset_gpu", 1},
	{"one check", func(w *watched, id device.ID) {
		w.Ail(id, errOdd)
		w.suspect() // one has failed
		w.Ail(id, nil)
	}, nothing, "suspect well", "well", "", "", 0},
	{"two checks", ails(errOdd), ails(nil), "well suspect unhealthy", "unhealthy probation well", "check_failed", "", 1},
	{"a fault", ails(&device.Fault{Reason: "nvlink", Action: "inspect"}), ails(nil), "well unhealthy", "unhealthy probation well", "nvlink", "inspect", 1},
	{"a fault that lasts", ails(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", ByReset: true}), ails(nil), "well unhealthy", "unhealthy", "row_remap_failure", "reset_gpu", 1},
	{"a fault that lasts until a reset", ails(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", ByReset: true}), resets, "well unhealthy", "unhealthy probation well", "row_remap_failure", "reset_gpu", 1},
	{"lost", ails(device.ErrLost), ails(nil), "well unhealthy", "unhealthy probation well", "lost", "reboot", 1},
	{"an Xid, by a check", fails("xid 95"), ails(nil), "unhealthy", "unhealthy", "xid_95", "reset_gpu", 1},
	{"an Xid, by a reset", fails("xid 95"), resets, "unhealthy", "unhealthy probation well", "xid_95", "reset_gpu", 1},
	{"an Xid of one that is lost by it, which is there again", fails("xid 79"), ails(nil), "unhealthy", "unhealthy", "xid_79", "reboot", 1},
	{"an Xid of one that is lost by it, by a reset", fails("xid 79"), resets, "unhealthy", "unhealthy probation well", "xid_79", "reboot", 1},
	{"a repair still waits after the reset", fails("xid 64"), func(w *watched, id device.ID) {
		w.Recover(id)
		w.Await(id)
	}, "unhealthy", "unhealthy", "xid_64", "reset_gpu", 1},
	{"the repair is made", fails("xid 64"), func(w *watched, id device.ID) {
		w.Recover(id)
		w.Await(id)
		w.after(time.Minute)
		w.Recover(id)
	}, "unhealthy", "unhealthy probation well", "xid_64", "reset_gpu", 1},
	{"a repair that waits, and no fault", func(w *watched, id device.ID) { w.Await(id) }, nothing, "well", "well", "", "", 0},
	{"a hang", func(w *watched, id device.ID) { w.Stall(id) }, func(w *watched, _ device.ID) { w.Release() }, "well unhealthy", "probation well", "not_answering", "", 1},
	{"a relapse", func(w *watched, id device.ID) {
		w.Fail(id, "lost")
		w.after(10 * time.Second)
		w.Ail(id, nil)
		w.after(1500 * time.Millisecond)
		w.Ail(id, errOdd) // on probation one is enough
	}, ails(nil), "probation unhealthy", "unhealthy probation well", "check_failed", "", 1},
}

// TestTheFirstCheckFailsSoftly has a GPU's very first check fail without a reason. A second
// one has to fail as well before the GPU is unhealthy, and the first post waits for it.
func TestTheFirstCheckFailsSoftly(t *testing.T) {
	start := func(t *testing.T) *watched {
		m := machine(2)
		m.Ail(m.IDs()[0], errOdd)
		w := watch(t, m, nil)
		if statuses := w.after(500 * time.Millisecond); statuses != nil {
			t.Errorf("after one check the board has %q", reasons(statuses))
		}
		return w
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			w.Ail(w.IDs()[0], nil)
			if got := w.path(time.Minute); got != "nothing suspect well" {
				t.Errorf("it goes %q", got)
			}
			if s := w.after(0)[0]; s.Flaps != 0 {
				t.Errorf("it counts %d flaps", s.Flaps)
			}
		})
	})
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := machine(2)
			gpu := m.GPUs()[0]
			w := watch(t, m, func(device.Backend) device.Backend { return &slowToFail{Machine: m, gpu: gpu} })
			defer w.stop()
			want(t, "after a second check", w.after(10*time.Second), "", "")
		})
	})
	t.Run("twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			defer w.stop()
			want(t, "after two checks", w.after(2*time.Second), "check_failed", "")
		})
	})
}

// slowToFail is a machine on which the first check of a GPU takes almost as long as it may
// and fails, and the second takes a second.
type slowToFail struct {
	*sim.Machine
	gpu    device.GPU
	checks int // the Monitor begins the next check of a GPU after the end of the one before
}

func (s *slowToFail) Check(gpu device.GPU) (device.Vitals, error) {
	if gpu != s.gpu {
		return s.Machine.Check(gpu)
	}
	switch s.checks++; s.checks {
	case 1:
		time.Sleep(4900 * time.Millisecond)
		return device.Vitals{}, errOdd
	case 2:
		time.Sleep(time.Second)
	}
	return s.Machine.Check(gpu)
}

// TestRecoveryByClass has each other GPU know nothing of it.
func TestRecoveryByClass(t *testing.T) {
	for _, row := range courses {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, knowing(2), nil)
				defer w.stop()
				id := w.IDs()[0]
				w.after(time.Second)
				row.bad(w, id)
				if got := w.path(10 * time.Minute); got != row.ill {
					t.Errorf("it goes %q, want %q", got, row.ill)
				}
				if s := w.after(0)[0]; s.Reason != row.reason || s.Action != row.action || s.Flaps != row.flaps {
					t.Errorf("it is %q and wants %q, after %d flaps", s.Reason, s.Action, s.Flaps)
				}
				row.mend(w, id)
				if got := w.path(time.Minute); got != row.well {
					t.Errorf("then it goes %q, want %q", got, row.well)
				}
				if other := w.after(0)[1]; other.Health != device.Well || other.Flaps != 0 {
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
		var s witnessed
		w := watch(t, machine(1), nil, s.listen)
		defer w.stop()
		w.after(time.Second)
		w.Fail(w.IDs()[0], "xid 95")
		if s := w.after(time.Second)[0]; s.Action != "reset_gpu" {
			t.Errorf("with the fault it is %+v", s)
		}
		w.Recover(w.IDs()[0])
		if s := w.after(1500 * time.Millisecond)[0]; s.Health != device.Probation || s.Reason != "xid_95" || s.Action != "" {
			t.Errorf("after the reset it is %+v", s)
		}
		if r := record(s.history(), w.GPUs()[0], ""); r.Action != "reset_gpu" {
			t.Errorf("its record is %+v", r)
		}
	})
}

// TestRestartForgetsNothing has the process end at the worst time, each time.
func TestRestartForgetsNothing(t *testing.T) {
	for _, row := range courses {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := knowing(1), witnessed{}
				id := m.IDs()[0]
				w := watch(t, m, nil, s.listen)
				w.after(time.Second)
				row.bad(w, id)
				w.after(time.Minute)
				w.stop()
				if row.reason == "not_answering" { // stop has ended the hang
					m.Stall(id)
				}
				began := time.Now()
				w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
				status := w.after(10 * time.Second)[0]
				if status.Reason != row.reason || status.Flaps != row.flaps || row.reason != "" && !status.Since.Before(began) {
					t.Errorf("in the next process it is %+v", status)
				}
				row.mend(w, id)
				w.after(time.Second)
				w.stop() // on probation
				w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
				w.after(10 * time.Second)
				if got := w.after(0)[0].Health.String(); !strings.HasSuffix(row.well, got) {
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
		m, s := machine(2), witnessed{}
		id := m.IDs()[0]
		w := watch(t, m, nil, s.listen)
		w.after(time.Hour)
		w.Fail(id, "xid 95")
		w.after(time.Hour)
		w.stop()
		m.Recover(id)
		time.Sleep(90 * time.Minute) // less than since the first process began, and more than until the fault
		w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
		defer w.stop()
		if got := w.path(10 * time.Second); got != "probation well" && got != "unhealthy probation well" {
			t.Errorf("it goes %q", got)
		}
	})
}

// TestABoot is a reset of all that is in the node. The first post waits for those that it
// may have mended.
func TestABoot(t *testing.T) {
	for _, row := range []struct {
		name  string
		bad   func(*watched, device.ID)
		boot  func(*sim.Machine, device.ID)
		want  string
		after time.Duration // by when
	}{
		{"it helps", fails("xid 79"), func(m *sim.Machine, id device.ID) { m.Recover(id) }, "", 3 * time.Second},
		{"it helps one without an odometer", fails("xid 95"), func(*sim.Machine, device.ID) {}, "", 3 * time.Second},
		{"it is as lost as before", fails("xid 79"), func(*sim.Machine, device.ID) {}, "lost", time.Second},
		{"it hangs", fails("xid 95"), func(m *sim.Machine, id device.ID) { m.Stall(id) }, "not_answering", 6 * time.Second},
		{"a repair still waits", fails("xid 95"), func(m *sim.Machine, id device.ID) { m.Await(id) }, "xid_95", time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := machine(2), witnessed{}
				id := m.IDs()[0]
				w := watch(t, m, nil, s.listen)
				w.after(time.Second)
				row.bad(w, id)
				w.after(time.Minute)
				w.stop()
				row.boot(m, id)
				w = watch(t, m, nil, s.listen, func(w *watched) {
					w.monitor.Remembered = s.history()
					w.monitor.Remembered.Rebooted = true
				})
				defer w.stop()
				first := func() (statuses []device.Status) {
					for began := time.Now(); statuses == nil && time.Since(began) < time.Minute; {
						statuses = w.after(50 * time.Millisecond)
					}
					return statuses
				}
				began := time.Now()
				want(t, "in the first post", first(), row.want, "")
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
		m, s := machine(3), witnessed{}
		m.Fail(m.IDs()[1], "lost")
		w := watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered.Lost = true })
		defer w.stop()
		if w.after(1900*time.Millisecond) != nil {
			t.Error("something was posted before each device has proved itself")
		}
		statuses := w.after(1500 * time.Millisecond)
		want(t, "after three checks", statuses, "", "lost", "")
		if statuses[0].Flaps != 0 || statuses[1].Flaps != 1 {
			t.Errorf("there were %d and %d flaps", statuses[0].Flaps, statuses[1].Flaps)
		}
		if told := s.told(); len(told) != 1 || told[0].Reason != "lost" {
			t.Errorf("told was %+v", told)
		}
	})
	t.Run("for thirty seconds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := machine(2)
			f := &fickle{Machine: m, gpu: m.GPUs()[0]}
			w := watch(t, m, func(device.Backend) device.Backend { return f }, func(w *watched) { w.monitor.Remembered.Lost = true })
			defer w.stop()
			if w.after(29*time.Second) != nil {
				t.Error("something was posted")
			}
			want(t, "after them", w.after(2*time.Second), "unproven", "")
		})
	})
}

// fickle is a machine one of whose GPUs fails each third check in a way that does not
// count by itself.
type fickle struct {
	*sim.Machine
	gpu    device.GPU
	mu     sync.Mutex
	checks int // guarded by mu
}

func (f *fickle) Check(gpu device.GPU) (device.Vitals, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if gpu == f.gpu {
		if f.checks++; f.checks%3 == 0 {
			return device.Vitals{}, errOdd
		}
	}
	return f.Machine.Check(gpu)
}

// TestFlappingIsDamped: each turn within an hour has it tried for twice as long, up to ten
// minutes; and quiet hours are rewarded.
func TestFlappingIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := machine(1), witnessed{}
		id := m.IDs()[0]
		w := watch(t, m, nil, s.listen)
		defer func() { w.stop() }()
		w.after(time.Second)
		flaps := uint64(0)
		flap := func() time.Duration {
			w.Fail(id, "lost")
			w.after(6 * time.Second)
			w.Ail(id, nil)
			began := time.Now()
			for w.after(100 * time.Millisecond)[0].Reason != "" {
			}
			if flaps++; w.after(0)[0].Flaps != flaps {
				t.Errorf("after %d flaps %d are shown", flaps, w.after(0)[0].Flaps)
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
		w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
		w.after(time.Second)
		tried(600 * time.Second)
		w.after(2 * time.Hour)
		tried(3 * time.Second)
		w.after(40 * time.Minute)
		tried(6 * time.Second)
		w.after(40 * time.Minute)
		tried(6 * time.Second)
	})
}

// TestResetsInVain ask for another GPU, where it is the GPU that they did not mend.
func TestResetsInVain(t *testing.T) {
	for _, row := range []struct {
		name   string
		bad    []func(*watched, device.ID) // a reset follows each
		policy device.Policy
		pause  time.Duration // without a process, before the reset
		want   string        // the last one's action
	}{
		{"twice", []func(*watched, device.ID){fails("xid 95"), fails("xid 95")}, device.ByTable, time.Hour, "reset_gpu"},
		{"three times", []func(*watched, device.ID){fails("xid 95"), fails("xid 95"), fails("xid 95")}, device.ByTable, time.Hour, device.Replace},
		{"three times, off the bus", []func(*watched, device.ID){fails("xid 79"), fails("xid 79"), fails("xid 79")}, device.ByTable, time.Hour, device.Replace},
		{"another one in between", []func(*watched, device.ID){fails("xid 95"), fails("xid 48"), fails("xid 95"), fails("xid 95")}, device.ByTable, time.Hour, "reset_gpu"},
		{"weeks apart", []func(*watched, device.ID){fails("xid 95"), fails("xid 95"), fails("xid 95")}, device.ByTable, 8 * 24 * time.Hour, "reset_gpu"},
		{"lost, which needs none", []func(*watched, device.ID){fails("lost"), fails("lost"), fails("lost")}, device.ByTable, time.Hour, "reboot"},
		{"by policy alone", []func(*watched, device.ID){fails("xid 31"), fails("xid 31"), fails("xid 31")}, device.Condemn, time.Hour, ""},
	} {
		for _, restarts := range []bool{false, true} {
			if !restarts && row.pause > time.Hour {
				continue
			}
			t.Run(fmt.Sprintf("%s, restarts %v", row.name, restarts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m, s := machine(1), witnessed{}
					id := m.IDs()[0]
					prepare := func(w *watched) {
						s.listen(w)
						w.monitor.Remembered = s.history()
						w.monitor.Policy = func(uint64) device.Policy { return row.policy }
					}
					w := watch(t, m, nil, prepare)
					defer func() { w.stop() }()
					var last device.Status
					for _, bad := range row.bad {
						w.after(time.Minute)
						bad(w, id)
						last = w.after(time.Minute)[0]
						if restarts {
							w.stop()
							time.Sleep(row.pause)
						}
						m.Recover(id)
						if restarts {
							w = watch(t, m, nil, prepare)
						}
						if s := w.after(time.Minute)[0]; s.Health != device.Well {
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
			w := watch(t, machine(1), nil)
			defer w.stop()
			id := w.IDs()[0]
			w.after(time.Second)
			fault := &device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", ByReset: true}
			for _, want := range []string{"reset_gpu", "reset_gpu", device.Replace} {
				w.Recover(id)
				w.Ail(id, fault)
				if s := w.after(time.Minute)[0]; s.Reason != "row_remap_failure" || s.Action != want || s.Flaps != 1 {
					t.Errorf("it wants %q after %d flaps, want %q", s.Action, s.Flaps, want)
				}
			}
		})
	})
}

// TestHangsAfter takes as long as it is told to.
func TestHangsAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), nil, func(w *watched) { w.monitor.UnhealthyAfter = 3 * time.Minute })
		defer w.stop()
		w.after(time.Second)
		w.Stall(w.IDs()[1])
		want(t, "soon", w.after(170*time.Second), "", "")
		want(t, "then", w.after(20*time.Second), "", "not_answering")
		w.Release()
		want(t, "when it answers again", w.after(5*time.Second), "", "")
	})
}

// busied is a machine whose checks say that another call hangs.
type busied struct {
	*sim.Machine
	gpu device.GPU
}

func (b busied) Check(gpu device.GPU) (device.Vitals, error) {
	if gpu == b.gpu {
		return device.Vitals{}, device.ErrStalled
	}
	return b.Machine.Check(gpu)
}

// TestACheckThatAsksNothing is no failed check, and no answer either.
func TestACheckThatAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		w := watch(t, m, func(device.Backend) device.Backend { return busied{m, m.GPUs()[0]} })
		defer w.stop()
		want(t, "before each has a verdict", w.after(4*time.Second))
		want(t, "after it", w.after(2*time.Second), "not_answering", "")
	})
}
