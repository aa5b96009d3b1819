package device_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
)

// kernelEvent returns the event of an Xid in the kernel log.
func kernelEvent(gpu device.GPU, xid uint64) device.Event {
	e := device.Event{GPU: gpu, Xid: xid, Action: "reset_gpu", Source: "kmsg"}
	if xid == 95 {
		e.Recovery = device.RecoveryAfterReset
	}
	return e
}

// xidCount returns the published count of an Xid.
func xidCount(s device.Status, xid uint64) uint64 {
	for _, x := range s.Xids {
		if x.Code == xid {
			return x.Count
		}
	}
	return 0
}

// report reports equal events of the kernel log.
func (w *monitorFixture) report(t *testing.T, e device.Event, count int) {
	t.Helper()
	if err := w.monitor.Report(t.Context(), e, count, time.Now()); err != nil {
		t.Error(err)
	}
}

// TestTwoSources checks that an event counts once, whether one source reports it
// or both.
func TestTwoSources(t *testing.T) {
	storm := slices.Repeat([]string{"kernel", "driver", "driver"}, 1000)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(storm), func(i, j int) { storm[i], storm[j] = storm[j], storm[i] })
	for _, row := range []struct {
		name, script string // reports by source, and pauses
		count        uint64
		sources      string // of the events passed on
	}{
		{"the driver first", "driver kernel", 1, "driver"},
		{"the kernel log first", "kernel driver", 1, "kmsg"},
		{"the kernel log long before", "kernel 9s driver", 1, "kmsg"},
		{"the driver long before", "driver 9s kernel", 1, "driver"},
		{"the driver alone", "driver driver 1m driver", 3, "driver driver driver"},
		{"the kernel log alone", "kernel kernel 1m kernel", 3, "kmsg kmsg kmsg"},
		{"another one by the driver", "driver kernel driver", 2, "driver driver"},
		{"another one in the kernel log later", "driver kernel 11s kernel", 2, "driver kmsg"},
		{"another one by the driver later", "kernel 11s driver", 2, "kmsg driver"},
		{"both sources, three times", "driver kernel 1m kernel driver 1m driver kernel", 3, "driver kmsg driver"},
		{"a storm", "driver " + strings.Join(storm, " "), 2001, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var s monitorRecorder
				w := startMonitor(t, newMachine(2), nil, s.attach)
				defer w.stop()
				gpu := w.GPUs()[1]
				w.statusesAfter(time.Second)
				for what := range strings.FieldsSeq(row.script) {
					switch what {
					case "driver":
						w.Fail(device.ID(gpu), "xid 31")
						synctest.Wait()
					case "kernel":
						w.report(t, kernelEvent(gpu, 31), 1)
					default:
						pause, err := time.ParseDuration(what)
						if err != nil {
							t.Fatal(err)
						}
						time.Sleep(pause)
					}
				}
				statuses := w.statusesAfter(2 * time.Second)
				if got := xidCount(statuses[1], 31); got != row.count || xidCount(statuses[0], 31) != 0 {
					t.Errorf("got %d counted events, want %d", got, row.count)
				}
				var sources []string
				events := s.takeEvents()
				for _, o := range events {
					if o.Source == "" {
						o.Source = "driver"
					}
					sources = append(sources, o.Source)
				}
				got := strings.Join(sources, " ")
				if uint64(len(events)) != row.count || row.sources != "" && got != row.sources {
					t.Errorf("got %d events from %q, want %d from %q", len(events), got, row.count, row.sources)
				}
			})
		})
	}
}

// TestSeverity checks that nonfatal Xids count, but not as the latest severe
// one. Only the kernel log has the severity of some Xids; without the kernel
// log, a fault that the next check finds decides.
func TestSeverity(t *testing.T) {
	for _, row := range []struct {
		name, script string // reports, checks that fail, and pauses
		count        uint64
		severe       time.Duration // time of the last severe Xid; negative: none
	}{
		{"driver alone", "driver", 1, -1},
		{"driver, then a fault", "driver fault", 1, 0},
		{"driver, then a fault a minute later", "driver 1m fault", 1, -1},
		{"driver first, nonfatal", "driver nonfatal", 1, -1},
		{"driver first, fatal", "driver fatal", 1, 0},
		{"kernel log first, nonfatal", "nonfatal driver", 1, -1},
		{"kernel log first, fatal", "fatal driver", 1, 0},
		{"kernel log alone, nonfatal", "nonfatal", 1, -1},
		{"kernel log alone, fatal", "fatal", 1, 0},
		{"fatal, then nonfatal", "driver fatal 1m driver nonfatal", 2, 0},
		{"nonfatal, then fatal", "driver nonfatal 1m driver fatal", 2, time.Minute},
		{"two at once", "driver driver nonfatal fatal", 2, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var s monitorRecorder
				m := newMachine(1)
				m.SetXidClassifier(func(xid uint64) (device.Event, bool) {
					return device.Event{
						Class: "undecided", Recovery: device.RecoveryChecksPass,
						Severity: device.SeverityUndecided,
					}, false
				})
				w := startMonitor(t, m, nil, s.attach)
				gpu := w.GPUs()[0]
				w.statusesAfter(time.Second)
				begin := time.Now()
				for what := range strings.FieldsSeq(row.script) {
					e := device.Event{GPU: gpu, Xid: 145, Class: "undecided", Source: "kmsg"}
					switch what {
					case "driver":
						w.Fail(device.ID(gpu), "xid 145")
						synctest.Wait()
					case "nonfatal":
						e.Severity = device.SeverityNonfatal
						w.report(t, e, 1)
					case "fatal":
						w.report(t, e, 1)
					case "fault":
						w.SetCheckError(device.ID(gpu),
							&device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
					default:
						pause, err := time.ParseDuration(what)
						if err != nil {
							t.Fatal(err)
						}
						time.Sleep(pause)
					}
				}
				check := func(when string, x device.Xid, count uint64) {
					t.Helper()
					got := time.Duration(-1)
					if at := x.LastSevere(); !at.IsZero() {
						got = at.Sub(begin).Truncate(time.Second)
					}
					if x.Count != count || got != row.severe {
						t.Errorf("%s: got %d Xids, the last severe one after %s; want %d, %s", when, x.Count, got,
							count, row.severe)
					}
				}
				check("status", w.statusesAfter(8 * time.Second)[0].Xids[0], row.count)
				w.stop()
				check("saved", findRecord(s.savedHistory(), gpu, "").Xids[0], 0)
			})
		})
	}
}

// TestKernelLogAlone checks that an event of only the kernel log marks a GPU unhealthy.
func TestKernelLogAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		gpu := w.GPUs()[0]
		w.report(t, kernelEvent(gpu, 13), 1) // before the first listing
		if got := xidCount(w.statusesAfter(2 * time.Second)[0], 13); got != 1 {
			t.Errorf("got %d counted events from before the first listing, want 1", got)
		}
		w.report(t, kernelEvent(gpu, 95), 1)
		requireReasons(t, "a second Xid", w.statusesAfter(time.Second), "xid_95")
		w.ResetGPU(device.ID(gpu))
		requireReasons(t, "after a reset", w.statusesAfter(4*time.Second), "")
		w.report(t, kernelEvent("GPU-that-is-not-there", 95), 1)
		requireReasons(t, "after an event of an unknown GPU", w.statusesAfter(2*time.Second), "")
	})
}

// TestHistoricalEvent reports an Xid from before the start. It triggers a check
// and is passed on with its time, but not counted: an alert would take it for a
// new Xid.
func TestHistoricalEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(1), nil, s.attach)
		gpu := w.GPUs()[0]
		w.statusesAfter(time.Second)
		at := time.Now().Add(-5 * time.Minute)
		past := kernelEvent(gpu, 95)
		past.Historical, past.Recovery = true, device.RecoveryChecksPass
		if err := w.monitor.Report(t.Context(), past, 1, at); err != nil {
			t.Error(err)
		}
		status := w.statusesAfter(time.Second)[0]
		if status.Health != device.Suspect || len(status.Xids) != 0 {
			t.Errorf("status: got %+v, want suspect without Xids", status)
		}
		if events := s.takeEvents(); len(events) != 1 || !events[0].Historical || !events[0].At.Equal(at) ||
			events[0].MarkedUnhealthy {
			t.Errorf("got events %+v, want one historical event at %s", events, at)
		}
		w.stop()
		if r := findRecord(s.savedHistory(), gpu, ""); len(r.Xids) != 1 || r.Xids[0].Count != 0 ||
			!r.Xids[0].LastHistorical.Equal(at) {
			t.Errorf("got record %+v, want one historical Xid at %s", r, at)
		}

		w = startMonitor(t, newMachine(1), nil, s.attach,
			func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		if status := w.statusesAfter(time.Second)[0]; len(status.Xids) != 0 {
			t.Errorf("in the next process: got %+v, want no Xids", status)
		}
		w.Fail(device.ID(gpu), "xid 95")
		now := time.Now()
		status = w.statusesAfter(time.Second)[0]
		if len(status.Xids) != 1 || status.Xids[0].Count != 1 || !status.Xids[0].Last.Equal(now) {
			t.Errorf("after a new Xid: got %+v, want one Xid at %s", status, now)
		}
		if err := w.monitor.Report(t.Context(), past, 1, at); err != nil {
			t.Error(err)
		}
		if status := w.statusesAfter(time.Second)[0]; status.Xids[0].Count != 1 || !status.Xids[0].Last.Equal(now) {
			t.Errorf("after another historical Xid: got %+v, want one Xid at %s", status, now)
		}
	})
}

// TestTwoSourcesOfMIGDevices checks that the kernel log's report of a MIG device
// is no duplicate of the driver's report of another one.
func TestTwoSourcesOfMIGDevices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(w.AllocatableIDs()[1], "xid 999")
		requireReasons(t, "the driver", w.statusesAfter(time.Second), "", "", "xid_999")
		e := kernelEvent(w.GPUs()[0], 999)
		e.Recovery = device.RecoveryAfterReset
		w.report(t, e, 1)
		requireReasons(t, "the kernel log without a device", w.statusesAfter(time.Second), "", "", "xid_999")
		e.Device = w.AllocatableIDs()[0]
		w.report(t, e, 1)
		requireReasons(t, "the kernel log", w.statusesAfter(time.Second), "", "xid_999", "xid_999")
		if events := s.takeEvents(); len(events) != 2 {
			t.Errorf("got events %+v, want two", events)
		}
	})
}

// TestEventsAreBounded checks that the kinds of events are bounded, and their
// count is not. An event beyond the limit marks a device unhealthy.
func TestEventsAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		gpu := w.GPUs()[0]
		w.statusesAfter(time.Second)
		w.report(t, kernelEvent(gpu, 31), 80_000)
		if got := xidCount(w.statusesAfter(2 * time.Second)[0], 31); got != 80_000 {
			t.Errorf("got %d counted events, want 80000", got)
		}
		for xid := range uint64(1000) {
			w.report(t, kernelEvent(gpu, 1000+xid), 1)
		}
		if s := w.statusesAfter(2 * time.Second)[0]; len(s.Xids) != 256 {
			t.Errorf("got %d kinds of events, want 256", len(s.Xids))
		}
		w.report(t, kernelEvent(gpu, 95), 1)
		requireReasons(t, "an Xid that is not counted", w.statusesAfter(2*time.Second), "xid_95")
	})
}

// TestPolicy changes the policy while the Monitor runs.
func TestPolicy(t *testing.T) {
	for _, row := range []struct {
		xid     string
		policy  device.Policy
		reason  string
		events  int
		lines   int
		suspect bool
	}{
		{"xid 31", device.PolicyDefault, "", 1, 1, false},
		{"xid 31", device.PolicyIgnore, "", 0, 0, false},
		{"xid 31", device.PolicyWarn, "", 1, 1, false},
		{"xid 31", device.PolicyUnhealthy, "xid_31", 1, 1, false},
		{"xid 95", device.PolicyDefault, "xid_95", 1, 1, false},
		{"xid 95", device.PolicyIgnore, "", 0, 0, false},
		{"xid 95", device.PolicyWarn, "", 1, 1, false},
		{"xid 95", device.PolicyUnhealthy, "xid_95", 1, 1, false},
		{"xid 154", device.PolicyDefault, "", 1, 1, true},
		{"xid 154", device.PolicyIgnore, "", 0, 0, false},
		{"xid 154", device.PolicyWarn, "", 1, 1, false},
	} {
		t.Run(fmt.Sprint(row.xid, " ", row.policy), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var s monitorRecorder
				var mu sync.Mutex
				policy := device.PolicyDefault
				w := startMonitor(t, newCheckRequestMachine(1), nil, s.attach, func(w *monitorFixture) {
					w.options.Policy = func(uint64) device.Policy {
						mu.Lock()
						defer mu.Unlock()
						return policy
					}
				})
				defer w.stop()
				w.statusesAfter(time.Second)
				mu.Lock()
				policy = row.policy // while it runs
				mu.Unlock()
				w.Fail(w.AllocatableIDs()[0], row.xid)
				status := w.statusesAfter(100 * time.Millisecond)[0]
				if status.Reason != row.reason || (status.Health == device.Suspect) != row.suspect ||
					len(w.statusesAfter(time.Second)[0].Xids) != 1 {
					t.Errorf("got %+v, want reason %q and suspect %v", status, row.reason, row.suspect)
				}
				events := s.takeEvents()
				if len(events) != row.events || row.events > 0 && events[0].MarkedUnhealthy != (row.reason != "") ||
					w.log.count("driver event") != row.lines {
					t.Errorf("got events %+v and log %v, want %d events and %d messages", events, w.log.counts,
						row.events, row.lines)
				}
				if row.reason != "" {
					w.ResetGPU(w.AllocatableIDs()[0])
					requireReasons(t, "after a reset", w.statusesAfter(5*time.Second), "")
				}
			})
		})
	}
}

// TestHealthEvents checks that events name the affected devices and precede the
// result in the Inventory.
func TestHealthEvents(t *testing.T) {
	fails := func(what string) func(*monitorFixture) {
		return func(w *monitorFixture) { w.Fail(w.AllocatableIDs()[1], what) }
	}
	for _, row := range []struct {
		name string
		bad  func(*monitorFixture)
		want []string // reason, class and affected devices; "!" if marked unhealthy
	}{
		{"an application's Xid of a MIG device", fails("xid 31"), []string{"xid_31 1g.10gb/1"}},
		{"an Xid that marks a MIG device unhealthy", fails("xid 999"), []string{"xid_999! 1g.10gb/1"}},
		{"an Xid of the hardware", fails("xid 95"), []string{"xid_95! GPU 1g.10gb/0 1g.10gb/1"}},
		{"an Xid to verify", fails("xid 154"), []string{"xid_154 asks GPU 1g.10gb/0 1g.10gb/1"}},
		{"twice", func(w *monitorFixture) {
			w.Fail(w.AllocatableIDs()[1], "xid 95")
			w.Fail(w.AllocatableIDs()[1], "xid 95")
		}, []string{"xid_95! GPU 1g.10gb/0 1g.10gb/1", "xid_95 GPU 1g.10gb/0 1g.10gb/1"}},
		{"off the bus", fails("xid 79"), []string{"xid_79! GPU 1g.10gb/0 1g.10gb/1"}},
		{"lost", fails("lost"), []string{"lost! GPU 1g.10gb/0 1g.10gb/1"}},
		{"a check", fails("odd"), []string{"check_failed! GPU 1g.10gb/0 1g.10gb/1"}},
		{"GPUs that are not ready", func(w *monitorFixture) {
			for _, gpu := range w.GPUs() {
				w.SetCheckError(device.ID(gpu), &device.Fault{Reason: "confidential_computing", External: true})
			}
			requireReasons(t, "not ready", w.statusesAfter(10*time.Second), "confidential_computing",
				"confidential_computing", "confidential_computing", "confidential_computing")
			for _, gpu := range w.GPUs() {
				w.SetCheckError(device.ID(gpu), nil)
			}
			requireReasons(t, "ready", w.statusesAfter(5*time.Second), "", "", "", "")
		}, nil},
		{
			"a hang", func(w *monitorFixture) { w.HangGPU(w.AllocatableIDs()[1]) },
			[]string{"not_responding! GPU 1g.10gb/0 1g.10gb/1"},
		},
		{"a reconfiguration", func(w *monitorFixture) { w.Partition(w.GPUs()[0], "2g.20gb") }, nil},
		{"MIG mode is turned off", func(w *monitorFixture) { w.Unpartition(w.GPUs()[0]) }, nil},
		{"a release", func(w *monitorFixture) {
			if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
				panic(err)
			}
			w.statusesAfter(time.Minute)
			if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
				panic(err)
			}
		}, nil},
		{"the driver is unloaded and loaded", func(w *monitorFixture) {
			w.SetDriverError(errUnknown)
			w.statusesAfter(100 * time.Millisecond)
			w.SetDriverError(nil)
		}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var s monitorRecorder
				m := newCheckRequestMachine(2)
				m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
				early := true
				w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
					record := w.options.OnHealthEvent
					w.options.OnHealthEvent = func(o device.HealthEvent) {
						statuses, _ := w.inventory.Get()
						early = early && !slices.ContainsFunc(statuses,
							func(s device.Status) bool { return s.Reason == o.Reason && o.MarkedUnhealthy })
						record(o)
					}
				})
				defer w.stop()
				w.statusesAfter(time.Second)
				row.bad(w)
				w.statusesAfter(time.Minute)
				var got []string
				for _, o := range s.takeEvents() {
					text := o.Reason
					if o.MarkedUnhealthy {
						text += "!"
					}
					if o.Class != "" {
						text += " " + o.Class
					}
					for _, d := range o.Affected {
						if d.WholeGPU() {
							text += " GPU"
							continue
						}
						text += fmt.Sprintf(" %s/%d", d.Profile, d.MIGDeviceIndex)
					}
					got = append(got, text)
					if o.GPU != m.GPUs()[0] || time.Since(o.At) > time.Minute {
						t.Errorf("got %+v, want GPU %s and a time within the last minute", o, m.GPUs()[0])
					}
				}
				if !slices.Equal(got, row.want) {
					t.Errorf("got events %q, want %q", got, row.want)
				}
				if !early {
					t.Error("the Inventory was updated before the event was passed on")
				}
			})
		})
	}
}

// TestXidStorm reports ten thousand Xids in ten seconds. Each is counted and
// passed on, with few checks, publications, saves and log lines.
func TestXidStorm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		var checks atomic.Int64
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend {
			return countingChecks{b, &checks}
		}, s.attach)
		defer w.stop()
		id := w.AllocatableIDs()[0]
		w.statusesAfter(time.Second)
		checks.Store(0)
		publications := 0
		_, changed := w.inventory.Get()
		for n := range 10_000 {
			w.Fail(id, []string{"xid 31", "xid 95"}[n%2])
			w.statusesAfter(time.Millisecond)
			if pubsub.IsClosed(changed) {
				publications++
				_, changed = w.inventory.Get()
			}
		}
		s.mu.Lock()
		saves := s.saves
		s.mu.Unlock()
		if n := checks.Load(); n < 10 || n > 250 || publications < 10 || publications > 50 || saves > 50 {
			t.Errorf("got %d checks, %d publications and %d saves, want at most 250, 50 and 50", n, publications, saves)
		}
		if n := w.log.count("driver event"); n < 2 || n > 4 {
			t.Errorf("got %d log lines about events, want 2 to 4", n)
		}
		status := w.statusesAfter(time.Second)[0]
		events := s.takeEvents()
		if len(events) != 10_000 || xidCount(status, 31) != 5000 || xidCount(status, 95) != 5000 || status.Flaps != 1 {
			t.Errorf("got %d events and status %+v, want 10000 events, 5000 of each Xid and one flap", len(events),
				status)
		}
	})
}

// TestKernelLogEventAtEndOfRun checks that the last events of the kernel log
// are saved, though the driver may still report them.
func TestKernelLogEventAtEndOfRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		w := startMonitor(t, m, nil, s.attach)
		w.statusesAfter(time.Second)
		w.report(t, kernelEvent(m.GPUs()[0], 95), 1)
		w.statusesAfter(100 * time.Millisecond)
		w.stop()
		if r := findRecord(s.savedHistory(), m.GPUs()[0], ""); r.Reason != "xid_95" || len(r.Xids) != 1 {
			t.Errorf("record at the end: got %+v, want reason xid_95 and one Xid", r)
		}
		if events := s.takeEvents(); len(events) != 1 {
			t.Errorf("got events %+v, want one", events)
		}
	})
}
