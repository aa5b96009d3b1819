package device_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// findRecord returns the record of a GPU, or of a MIG device of the GPU.
func findRecord(h device.HealthHistory, gpu device.GPU, id device.ID) device.HealthRecord {
	i := slices.IndexFunc(h.Records, func(r device.HealthRecord) bool { return r.GPU == gpu && r.Device == id })
	if i < 0 {
		return device.HealthRecord{}
	}
	return h.Records[i]
}

// TestHistoryOfHealthyGPUs checks that healthy GPUs have records, and that a
// history without changes is saved once.
func TestHistoryOfHealthyGPUs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		w := startMonitor(t, newMachine(2), nil, s.attach)
		w.statusesAfter(time.Hour)
		if s.saves != 1 {
			t.Errorf("got %d saves, want 1", s.saves)
		}
		w.SetCheckError(w.AllocatableIDs()[0], errUnknown)
		w.untilSuspect()
		w.stop()
		if r := findRecord(s.saved, w.GPUs()[1], ""); s.saves != 2 || len(s.saved.Records) != 2 || r.Reason != "" ||
			r.LastListed.Index != 1 || !r.GoneSince.IsZero() {
			t.Errorf("got %d saves and history %+v, want 2 saves and two healthy records", s.saves, s.saved)
		}
	})
}

// TestHistoryOfGPUAndMIGDevice tests the records of a GPU and of a MIG device.
func TestHistoryOfGPUAndMIGDevice(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil, s.attach)
		ids := w.AllocatableIDs()
		w.statusesAfter(time.Second)
		w.Fail(ids[1], "xid 999")
		w.Fail(ids[1], "xid 31")
		w.statusesAfter(500 * time.Millisecond)
		h := s.savedHistory()
		if s.urgentSaves != 1 {
			t.Errorf("got %d urgent saves, want one for Xid 999", s.urgentSaves)
		}
		if r := findRecord(h, gpu, ids[1]); len(h.Records) != 3 || r.Reason != "xid_999" || !r.NeedsReset ||
			r.ResetSeen || r.EnergyCounter == 0 || r.FailedResets.Reason != "xid_999" {
			t.Errorf("history with the MIG device: got %+v, want 3 records and a pending reset for xid_999", h)
		}
		if r := findRecord(h, gpu, ""); r.Reason != "" || len(r.Xids) != 2 {
			t.Errorf("record of the GPU: got %+v, want two Xids and no reason", r)
		}
		before := findRecord(h, gpu, ids[1]).EnergyCounter
		w.statusesAfter(61 * time.Second)
		if r := findRecord(s.savedHistory(), gpu, ids[1]); r.EnergyCounter <= before {
			t.Errorf("energy counter a minute later: got %d, want more than %d", r.EnergyCounter, before)
		}
		w.stop()

		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		statuses := w.statusesAfter(time.Minute)
		requireReasons(t, "in the next process", statuses, "", "", "xid_999", "")
		if len(statuses[0].Xids) != 2 {
			t.Errorf("got Xids %+v, want 31 and 999", statuses[0].Xids)
		}
		w.ResetGPU(ids[1])
		w.statusesAfter(time.Minute)
		if r := findRecord(s.savedHistory(), gpu, ids[1]); r.Reason != "" || r.FailedResets.Count != 1 {
			t.Errorf("record after the reset: got %+v, want one failed reset and no reason", r)
		}
	})
}

// TestGPULostBeforeStart checks that a GPU of the previous process that the
// listing lacks is published as gone.
func TestGPULostBeforeStart(t *testing.T) {
	for _, row := range []struct {
		name     string
		bad      func(*monitorFixture, device.ID)
		rebooted bool
		reason   string
	}{
		{"after Xid 79", failWith("xid 79"), false, "xid_79"},
		{"without an event", doNothing, false, "gone"},
		{"with a reboot", failWith("xid 79"), true, "gone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var s monitorRecorder
				var allocated atomic.Bool
				m := newMachine(3)
				id := m.AllocatableIDs()[1]
				start := func(rebooted bool) *monitorFixture {
					return startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
						w.options.History = s.savedHistory()
						w.options.History.Rebooted = rebooted
						w.options.IsAllocated = func(of device.ID) bool { return of == id && allocated.Load() }
					})
				}
				w := start(false)
				w.statusesAfter(time.Second)
				row.bad(w, id)
				w.statusesAfter(time.Second)
				w.stop()
				m.RemoveGPU(id)

				w = start(row.rebooted)
				statuses := w.statusesAfter(5 * time.Second)
				requireReasons(t, "in the next process", statuses, "", row.reason, "")
				if events := s.takeEvents(); row.reason == "gone" &&
					(len(events) == 0 || events[len(events)-1].Reason != "gone" ||
						len(events[len(events)-1].Affected) != 1) {
					t.Errorf("got incidents %+v, want the absent GPU's as the last", events)
				}
				if s := statuses[1]; !s.Gone || s.ID != id || s.Index != 1 || s.Model == "" || s.PCI == "" {
					t.Errorf("got %+v, want %s gone, with its index, model and PCI address", s, id)
				}
				w.statusesAfter(5 * time.Minute)
				w.stop()

				w = start(false)
				requireReasons(t, "minutes later, in another process", w.statusesAfter(time.Minute), "", row.reason, "")
				requireReasons(t, "gone for ten minutes", w.statusesAfter(5*time.Minute), "", "")
				w.stop()

				w = start(false)
				requireReasons(t, "in a process after that", w.statusesAfter(time.Minute), "", "")
				allocated.Store(true)
				requireReasons(t, "allocated", w.statusesAfter(11*time.Second), "", row.reason, "")
				requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", row.reason, "")
				m.ResetGPU(id)
				requireReasons(t, "back", w.statusesAfter(15*time.Second), "", "", "")
				w.stop()
			})
		})
	}
}

// TestHistoryOfAbsentGPU checks that the fault of an absent GPU is kept until
// the GPU returns, in this process or the next.
func TestHistoryOfAbsentGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		gpu, id := m.GPUs()[0], m.AllocatableIDs()[0]
		b := &hidingMachine{Machine: m}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b }, s.attach)
		w.statusesAfter(time.Second)
		m.Fail(id, "xid 95")
		w.statusesAfter(time.Second)
		b.hidden.Store(id)
		requireReasons(t, "gone for 15 minutes", w.statusesAfter(15*time.Minute), "")
		if r := findRecord(s.savedHistory(), gpu, ""); r.Reason != "xid_95" {
			t.Errorf("got record %+v, want reason xid_95", r)
		}
		b.hidden.Store(device.ID(""))
		requireReasons(t, "back", w.statusesAfter(time.Minute), "xid_95", "")
		b.hidden.Store(id)
		w.statusesAfter(15 * time.Minute)
		w.stop()

		w = startMonitor(t, m, func(device.Backend) device.Backend { return b }, s.attach,
			func(w *monitorFixture) { w.options.History = s.savedHistory() })
		requireReasons(t, "in the next process", w.statusesAfter(time.Minute), "")
		m.Fail(m.AllocatableIDs()[1], "lost") // causes a save
		w.statusesAfter(10 * time.Second)
		if r := findRecord(s.savedHistory(), gpu, ""); r.Reason != "xid_95" {
			t.Errorf("record in the next process: got %+v, want reason xid_95", r)
		}
		b.hidden.Store(device.ID(""))
		requireReasons(t, "back in the next process", w.statusesAfter(time.Minute), "xid_95", "lost")
		w.stop()
	})
}

// TestHistoryWithClockAhead checks that a clock that is a month ahead at the
// start deletes no record.
func TestHistoryWithClockAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(2)
		at := time.Now()
		time.Sleep(31 * 24 * time.Hour)
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
			w.options.History.Records = []device.HealthRecord{
				{GPU: m.GPUs()[0], HealthCause: device.HealthCause{
					Reason: "xid_95", NeedsReset: true, Since: at,
					FaultAt: at,
				}},
				{GPU: m.GPUs()[1], UnhealthyTimes: []time.Time{at}},
				{GPU: "GPU-absent", HealthCause: device.HealthCause{
					Reason: "xid_95", NeedsReset: true, Since: at,
					FaultAt: at,
				}},
			}
		})
		requireReasons(t, "GPUs that were always present", w.statusesAfter(time.Minute), "xid_95", "")
		w.stop()
		h := s.savedHistory()
		if len(h.Records) != 3 || findRecord(h, m.GPUs()[1], "").GPU == "" ||
			findRecord(h, "GPU-absent", "").Reason != "xid_95" {
			t.Errorf("got records %+v, want 3", h.Records)
		}
	})
}

// TestCountsStartAtZero checks that the counts of the next process are 0, with
// the times of this process.
func TestCountsStartAtZero(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, s.attach)
		w.statusesAfter(time.Second)
		w.Fail(id, "xid 95")
		at := time.Now()
		check := func(when string, flaps, count uint64) {
			t.Helper()
			status := w.statusesAfter(time.Second)[0]
			if len(status.Xids) != 1 || !status.Xids[0].Last.Equal(at) || status.Xids[0].Count != count ||
				status.Flaps != flaps {
				t.Errorf("%s: got %d flaps and Xids %+v, want %d flaps and %d of Xid 95 at %s", when, status.Flaps,
					status.Xids, flaps, count, at)
			}
		}
		check("first process", 1, 1)
		w.stop()
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		check("next process", 0, 0)
		w.Fail(id, "xid 95")
		at = time.Now()
		check("another Xid", 0, 1) // still unhealthy
	})
}

// TestHistoryWithClockSetBack checks that times of the future neither delay the
// recovery nor are published.
func TestHistoryWithClockSetBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		ahead := time.Now().Add(1000 * time.Hour)
		times := slices.Repeat([]time.Time{ahead}, 9)
		w := startMonitor(t, m, nil, func(w *monitorFixture) {
			w.options.History.Records = []device.HealthRecord{{
				GPU:         m.GPUs()[0],
				HealthCause: device.HealthCause{Reason: "lost", Since: ahead, FaultAt: ahead}, UnhealthyTimes: times,
			}}
		})
		defer w.stop()
		if s := w.statusesAfter(time.Millisecond)[0]; s.Reason != "lost" || s.Since.After(time.Now()) {
			t.Errorf("at first: got %q since %s, want lost, not in the future", s.Reason, s.Since)
		}
		requireReasons(t, "soon", w.statusesAfter(5*time.Second), "")
	})
}

// TestRebootCountsOnce checks that a reboot ends no fault that comes after it
// in the same process.
func TestRebootCountsOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		id := m.AllocatableIDs()[0]
		b := &hidingMachine{Machine: m}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b },
			func(w *monitorFixture) { w.options.History.Rebooted = true })
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(id, "xid 95")
		w.statusesAfter(time.Second)
		b.hidden.Store(id)
		requireReasons(t, "gone for 15 minutes", w.statusesAfter(15*time.Minute), "")
		w.SetCheckError(id, device.ErrLost)
		b.hidden.Store(device.ID(""))
		w.statusesAfter(15 * time.Second)
		w.SetCheckError(id, nil)
		requireReasons(t, "back, and checks pass", w.statusesAfter(time.Minute), "xid_95", "")
	})
}

// TestPendingRepairAcrossRestart checks that the next process waits for a
// pending repair, even after a reboot.
func TestPendingRepairAcrossRestart(t *testing.T) {
	for _, booted := range []bool{false, true} {
		testPendingRepair(t, booted)
	}
}

func testPendingRepair(t *testing.T, booted bool) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, s.attach)
		w.statusesAfter(time.Second)
		w.Fail(id, "xid 64")
		w.statusesAfter(time.Second)
		w.ResetGPU(id)
		w.SetRepairPending(id)
		w.statusesAfter(time.Minute)
		w.stop()
		m.SetCheckError(id, errUnknown)
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
			w.options.History = s.savedHistory()
			w.options.History.Rebooted = booted
		})
		defer w.stop()
		w.statusesAfter(3 * time.Second)
		w.SetCheckError(id, nil)
		w.SetRepairPending(id)
		if s := w.statusesAfter(time.Minute)[0]; s.Healthy {
			t.Error("healthy before the repair")
		}
		w.ResetGPU(id)
		requireReasons(t, "after the repair", w.statusesAfter(time.Minute), "")
	})
}

// TestResetOfAbsentMIGDevice checks that a reset of a GPU counts for its absent
// MIG devices, in this process and the next.
func TestResetOfAbsentMIGDevice(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			var s monitorRecorder
			m := newMachine(1)
			m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
			b := &hidingMachine{Machine: m}
			over := func(device.Backend) device.Backend { return b }
			w := startMonitor(t, m, over, s.attach)
			id := m.AllocatableIDs()[1]
			w.statusesAfter(time.Minute)
			w.Fail(id, "xid 999")
			w.statusesAfter(time.Second)
			b.hidden.Store(id)
			requireReasons(t, "while it is absent", w.statusesAfter(time.Minute), "", "")
			if restarted {
				w.stop()
				w = startMonitor(t, m, over, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
				w.statusesAfter(time.Second)
			}
			w.ResetGPU(device.ID(m.GPUs()[0]))
			w.statusesAfter(time.Hour)
			b.hidden.Store(device.ID(""))
			requireReasons(t, "back", w.statusesAfter(time.Minute), "", "", "")
			w.stop()
		})
	}
}

// TestLostHistoryIsSaved checks that Lost is saved until each device passes its checks.
func TestLostHistoryIsSaved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(1)
		m.SetDriverError(device.ErrNoDriver)
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History.Lost = true })
		if w.statusesAfter(time.Second); !s.savedHistory().Lost { // saved even if the process is killed now
			t.Error("Lost: got false before the checks, want true")
		}
		w.stop()
		m.SetDriverError(nil)
		w = startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		defer w.stop()
		if w.statusesAfter(1900*time.Millisecond) != nil {
			t.Error("published before the device passed its checks")
		}
		if requireReasons(t, "after three checks", w.statusesAfter(1500*time.Millisecond), ""); s.savedHistory().Lost {
			t.Error("Lost: got true after the checks, want false")
		}
	})
}

// TestLostHistoryWithOldRecords checks that a healthy record, which may be out
// of date, is checked, and that a recorded fault is kept.
func TestLostHistoryWithOldRecords(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		at := time.Now()
		w := startMonitor(t, m, nil, func(w *monitorFixture) {
			w.options.History = device.HealthHistory{Lost: true, Records: []device.HealthRecord{
				{GPU: m.GPUs()[0]},
				{GPU: m.GPUs()[1], HealthCause: device.HealthCause{
					Reason: "xid_95", NeedsReset: true, Since: at,
					FaultAt: at,
				}},
			}}
		})
		defer w.stop()
		if w.statusesAfter(1900*time.Millisecond) != nil {
			t.Error("published before the healthy GPU passed its checks")
		}
		requireReasons(t, "after three checks", w.statusesAfter(1500*time.Millisecond), "", "xid_95")
	})
}
