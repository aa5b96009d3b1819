package device_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// kernelEvent is what the kernel's log tells of an Xid.
func kernelEvent(gpu device.GPU, xid uint64) device.Event {
	e := device.Event{GPU: gpu, Xid: xid, Action: "reset_gpu", Source: "kmsg"}
	if xid == 95 {
		e.Recovery = device.RecoveryAfterReset
	}
	return e
}

// xidCount is how often the board says that there was an Xid.
func xidCount(s device.Status, xid uint64) uint64 {
	for _, x := range s.Xids {
		if x.Code == xid {
			return x.Count
		}
	}
	return 0
}

// TestTwoSources count nothing twice, and nothing is lost where one is silent.
func TestTwoSources(t *testing.T) {
	storm := make([]string, 0, 1900)
	for range 1000 {
		storm = append(storm, "kernel")
	}
	for range 900 { // it misses some
		storm = append(storm, "driver")
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(storm), func(i, j int) { storm[i], storm[j] = storm[j], storm[i] })
	for _, row := range []struct {
		name, script string // who tells, and pauses
		count        uint64
		witnesses    string // of what was passed on
	}{
		{"the driver first", "driver kernel", 1, "driver"},
		{"the kernel first", "kernel driver", 1, "driver"},
		{"the kernel long before", "kernel 2s driver", 1, "kmsg"},
		{"the driver long before", "driver 9s kernel", 1, "driver"},
		{"the driver alone", "driver driver 1m driver", 3, "driver driver driver"},
		{"the kernel alone", "kernel kernel 1m kernel", 3, "kmsg kmsg kmsg"},
		{"the driver saw one more", "driver kernel driver", 2, "driver driver"},
		{"the kernel saw one more", "driver kernel kernel 1s", 2, "driver kmsg"},
		{"who was behind begins anew", "driver driver 11s kernel", 3, "driver driver kmsg"},
		{"and so does the driver", "kernel 11s driver", 2, "kmsg driver"},
		{"both again, after a while", "driver kernel 1m kernel driver 1m driver kernel", 3, "driver driver driver"},
		{"a storm", strings.Join(storm, " "), 1000, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
						w.monitor.Report(kernelEvent(gpu, 31), time.Now())
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
					t.Errorf("%d were counted, want %d", got, row.count)
				}
				var witnesses []string
				told := s.takeEvents()
				for _, o := range told {
					if o.Source == "" {
						o.Source = "driver"
					}
					witnesses = append(witnesses, o.Source)
				}
				if got := strings.Join(witnesses, " "); uint64(len(told)) != row.count || row.witnesses != "" && got != row.witnesses {
					t.Errorf("passed on were %d, by %q; want %q", len(told), got, row.witnesses)
				}
			})
		})
	}
}

// TestTheKernelWhereTheDriverIsSilent has a verdict by it alone.
func TestTheKernelWhereTheDriverIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		gpu := w.GPUs()[0]
		w.monitor.Report(kernelEvent(gpu, 13), time.Now()) // before anything is known
		if got := xidCount(w.statusesAfter(2 * time.Second)[0], 13); got != 1 {
			t.Errorf("%d were counted of what came first", got)
		}
		w.monitor.Report(kernelEvent(gpu, 95), time.Now())
		requireReasons(t, "at once", w.statusesAfter(100*time.Millisecond), "")
		requireReasons(t, "when the driver has had its say", w.statusesAfter(time.Second), "xid_95")
		w.ResetGPU(device.ID(gpu))
		requireReasons(t, "after a reset", w.statusesAfter(4*time.Second), "")
		w.monitor.Report(kernelEvent("GPU-that-is-not-there", 95), time.Now())
		requireReasons(t, "after one of a stranger", w.statusesAfter(2*time.Second), "")
	})
}

// TestWhenTheKernelSaidIt is when it happened, whoever has the GPU by the time it is believed.
func TestWhenTheKernelSaidIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(1), nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		at := time.Now()
		w.monitor.Report(kernelEvent(w.GPUs()[0], 95), time.Now())
		w.statusesAfter(2 * time.Second)
		if told := s.takeEvents(); len(told) != 1 || !told[0].At.Equal(at) {
			t.Errorf("told was %+v, want it to be of %s", told, at)
		}
	})
}

// TestWhatIsPastIsHistory: an Xid from before the start has the GPU checked and is passed on
// with its time. It is not counted, since an alert would take it for a new one.
func TestWhatIsPastIsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(1), nil, s.attach)
		gpu := w.GPUs()[0]
		w.statusesAfter(time.Second)
		at := time.Now().Add(-5 * time.Minute)
		past := kernelEvent(gpu, 95)
		past.Historical, past.Recovery = true, device.RecoveryChecksPass
		w.monitor.Report(past, at)
		status := w.statusesAfter(time.Second)[0]
		if status.Health != device.Suspect || len(status.Xids) != 0 {
			t.Errorf("it is %+v", status)
		}
		if told := s.takeEvents(); len(told) != 1 || !told[0].Historical || !told[0].At.Equal(at) || told[0].MarkedUnhealthy {
			t.Errorf("told was %+v", told)
		}
		w.stop()
		if r := findRecord(s.savedHistory(), gpu, ""); len(r.Xids) != 1 || r.Xids[0].Count != 0 || !r.Xids[0].LastHistorical.Equal(at) {
			t.Errorf("remembered is %+v", r)
		}

		w = startMonitor(t, newMachine(1), nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		if status := w.statusesAfter(time.Second)[0]; len(status.Xids) != 0 {
			t.Errorf("in the next process it is %+v", status)
		}
		w.Fail(device.ID(gpu), "xid 95")
		now := time.Now()
		status = w.statusesAfter(time.Second)[0]
		if len(status.Xids) != 1 || status.Xids[0].Count != 1 || !status.Xids[0].Last.Equal(now) {
			t.Errorf("after a new one it is %+v", status)
		}
		w.monitor.Report(past, at)
		if status := w.statusesAfter(time.Second)[0]; status.Xids[0].Count != 1 || !status.Xids[0].Last.Equal(now) {
			t.Errorf("after another of the past it is %+v", status)
		}
	})
}

// TestTheDriverNamesTheSlice also where the kernel is quicker, which does not.
func TestTheDriverNamesTheSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		id := w.AllocatableIDs()[1]
		e := kernelEvent(w.GPUs()[0], 999)
		e.Recovery = device.RecoveryAfterReset
		w.monitor.Report(e, time.Now())
		w.statusesAfter(100 * time.Millisecond)
		w.Fail(id, "xid 999")
		requireReasons(t, "then", w.statusesAfter(2*time.Second), "", "", "xid_999")
		if told := s.takeEvents(); len(told) != 1 || len(told[0].Affected) != 1 || told[0].Affected[0].ID != id || !told[0].MarkedUnhealthy {
			t.Errorf("told was %+v", told)
		}
	})
}

// TestADriverThatWasNotHeard may have all of it still to tell, however late.
func TestADriverThatWasNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hand := make(chan struct{}, 1)
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return blockableWait{b, hand} })
		defer w.stop()
		gpu := w.GPUs()[0]
		w.statusesAfter(time.Second)
		hand <- struct{}{}
		w.statusesAfter(time.Minute)
		for range 3 {
			w.monitor.Report(kernelEvent(gpu, 95), time.Now())
			w.Fail(device.ID(gpu), "xid 95")
		}
		if s := w.statusesAfter(time.Second)[0]; s.Reason != "xid_95" || xidCount(s, 95) != 3 {
			t.Errorf("by the kernel alone it is %q, with %d", s.Reason, xidCount(s, 95))
		}
		w.statusesAfter(10 * time.Minute)
		<-hand
		if got := xidCount(w.statusesAfter(5 * time.Second)[0], 95); got != 3 {
			t.Errorf("%d were counted when the driver had told them too", got)
		}
		w.Fail(device.ID(gpu), "xid 95")
		if got := xidCount(w.statusesAfter(5 * time.Second)[0], 95); got != 4 {
			t.Errorf("%d were counted after another one", got)
		}
	})
}

// TestReportsAreBounded by kinds and never by number, whoever reports.
func TestReportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		gpu := w.GPUs()[0]
		w.statusesAfter(time.Second)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10_000 {
					w.monitor.Report(kernelEvent(gpu, 31), time.Now())
				}
			})
		}
		all.Wait()
		if got := xidCount(w.statusesAfter(2 * time.Second)[0], 31); got != 80_000 {
			t.Errorf("%d were counted", got)
		}
		for xid := range uint64(1000) {
			w.monitor.Report(kernelEvent(gpu, 1000+xid), time.Now())
		}
		if s := w.statusesAfter(2 * time.Second)[0]; len(s.Xids) > 256 || w.log.count("kernel log events dropped") != 1 {
			t.Errorf("%d kinds are counted, and said was %v", len(s.Xids), w.log.counts)
		}
		w.monitor.Report(kernelEvent(gpu, 95), time.Now())
		requireReasons(t, "one that is not counted", w.statusesAfter(2*time.Second), "xid_95")
	})
}

// TestPolicy is asked at each report.
func TestPolicy(t *testing.T) {
	for _, row := range []struct {
		xid     string
		policy  device.Policy
		reason  string
		told    int
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
			synctest.Test(t, func(t *testing.T) {
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
				if status.Reason != row.reason || (status.Health == device.Suspect) != row.suspect || len(w.statusesAfter(time.Second)[0].Xids) != 1 {
					t.Errorf("it is %+v", status)
				}
				told := s.takeEvents()
				if len(told) != row.told || row.told > 0 && told[0].MarkedUnhealthy != (row.reason != "") || w.log.count("driver event") != row.lines {
					t.Errorf("told was %+v, and said %v", told, w.log.counts)
				}
				if row.reason != "" {
					w.ResetGPU(w.AllocatableIDs()[0])
					requireReasons(t, "after a reset", w.statusesAfter(5*time.Second), "")
				}
			})
		})
	}
}

// TestWhatHappensIsTold with whom it hit, and before the Board shows it.
func TestWhatHappensIsTold(t *testing.T) {
	fails := func(what string) func(*monitorFixture) {
		return func(w *monitorFixture) { w.Fail(w.AllocatableIDs()[1], what) }
	}
	for _, row := range []struct {
		name string
		bad  func(*monitorFixture)
		want []string // reason, class and devices that are hit; "!" where it condemns
	}{
		{"an application's Xid of a slice", fails("xid 31"), []string{"xid_31 1g.10gb/1"}},
		{"an Xid that condemns a slice", fails("xid 999"), []string{"xid_999! 1g.10gb/1"}},
		{"one of the hardware", fails("xid 95"), []string{"xid_95! GPU 1g.10gb/0 1g.10gb/1"}},
		{"one to look into", fails("xid 154"), []string{"xid_154 asks GPU 1g.10gb/0 1g.10gb/1"}},
		{"twice", func(w *monitorFixture) {
			w.Fail(w.AllocatableIDs()[1], "xid 95")
			w.Fail(w.AllocatableIDs()[1], "xid 95")
		}, []string{"xid_95! GPU 1g.10gb/0 1g.10gb/1", "xid_95 GPU 1g.10gb/0 1g.10gb/1"}},
		{"off the bus", fails("xid 79"), []string{"xid_79! GPU 1g.10gb/0 1g.10gb/1"}},
		{"lost", fails("lost"), []string{"lost! GPU 1g.10gb/0 1g.10gb/1"}},
		{"a check", fails("odd"), []string{"check_failed! GPU 1g.10gb/0 1g.10gb/1"}},
		{"a hang", func(w *monitorFixture) { w.HangGPU(w.AllocatableIDs()[1]) }, []string{"not_answering! GPU 1g.10gb/0 1g.10gb/1"}},
		{"a reconfiguration", func(w *monitorFixture) { w.Partition(w.GPUs()[0], "2g.20gb") }, nil},
		{"the mode is turned off", func(w *monitorFixture) { w.Unpartition(w.GPUs()[0]) }, nil},
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
			synctest.Test(t, func(t *testing.T) {
				var s monitorRecorder
				m := newCheckRequestMachine(2)
				m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
				early := true
				w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
					told := w.options.OnHealthEvent
					w.options.OnHealthEvent = func(o device.HealthEvent) {
						statuses, _ := w.inventory.Get()
						early = early && !slices.ContainsFunc(statuses, func(s device.Status) bool { return s.Reason == o.Reason && o.MarkedUnhealthy })
						told(o)
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
						t.Errorf("it is %+v", o)
					}
				}
				if !slices.Equal(got, row.want) {
					t.Errorf("told was %q, want %q", got, row.want)
				}
				if !early {
					t.Error("the board knew it first")
				}
			})
		})
	}
}

// TestAStormIsToldInFull: ten thousand reports in ten seconds are each counted and passed
// on, and cost few posts and little to remember.
func TestAStormIsToldInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(2), nil, s.attach)
		defer w.stop()
		id := w.AllocatableIDs()[0]
		w.statusesAfter(time.Second)
		posts := 0
		_, changed := w.inventory.Get()
		for n := range 10_000 {
			w.Fail(id, []string{"xid 31", "xid 95"}[n%2])
			w.statusesAfter(time.Millisecond)
			select {
			case <-changed:
				posts++
				_, changed = w.inventory.Get()
			default:
			}
		}
		status := w.statusesAfter(time.Second)[0]
		if told := s.takeEvents(); len(told) != 10_000 || xidCount(status, 31) != 5000 || xidCount(status, 95) != 5000 || status.Flaps != 1 {
			t.Errorf("%d were passed on, and it is %+v", len(told), status)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if posts > 50 || s.saves > 500 {
			t.Errorf("%d posts, and remembered %d times", posts, s.saves)
		}
	})
}

// TestTheLastWord of the kernel is heard, though the driver's is still waited for when the
// process ends: to the next one it is past, and condemns nobody.
func TestTheLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		w := startMonitor(t, m, nil, s.attach)
		w.statusesAfter(time.Second)
		w.monitor.Report(kernelEvent(m.GPUs()[0], 95), time.Now())
		w.statusesAfter(100 * time.Millisecond)
		w.stop()
		if r := findRecord(s.savedHistory(), m.GPUs()[0], ""); r.Reason != "xid_95" || len(r.Xids) != 1 {
			t.Errorf("at the end it is %+v", r)
		}
		if told := s.takeEvents(); len(told) != 1 {
			t.Errorf("told was %+v", told)
		}
	})
}
