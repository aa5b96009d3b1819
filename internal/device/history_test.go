package device_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// record finds what is remembered of a GPU, or of a slice of it.
func record(h device.History, gpu device.GPU, id device.ID) device.Record {
	i := slices.IndexFunc(h.Records, func(r device.Record) bool { return r.GPU == gpu && r.Device == id })
	if i < 0 {
		return device.Record{}
	}
	return h.Records[i]
}

// TestTheSoundAreRemembered as being there, and nothing is handed over while nothing happens.
func TestTheSoundAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		w := watch(t, machine(2), nil, s.listen)
		w.after(time.Hour)
		if s.times != 1 {
			t.Errorf("it was handed over %d times", s.times)
		}
		w.Ail(w.IDs()[0], errOdd)
		w.suspect()
		w.stop()
		if r := record(s.kept, w.GPUs()[1], ""); s.times != 2 || len(s.kept.Records) != 2 || r.Reason != "" || r.Listed.Index != 1 || !r.Gone.IsZero() {
			t.Errorf("at the end it was handed over %d times, and is %+v", s.times, s.kept)
		}
	})
}

// TestWhatIsRemembered of a GPU and of a slice by itself.
func TestWhatIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(2)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1g.10gb", "1g.10gb")
		w := watch(t, m, nil, s.listen)
		ids := w.IDs()
		w.after(time.Second)
		w.Fail(ids[1], "xid 999")
		w.Fail(ids[1], "xid 31")
		w.after(500 * time.Millisecond)
		h := s.history()
		if r := record(h, gpu, ids[1]); len(h.Records) != 3 || r.Reason != "xid_999" || !r.ByReset || r.Reset || r.Flaps != 1 || r.Odometer == 0 || r.Again.Reason != "xid_999" {
			t.Errorf("of the slice it is %+v", h)
		}
		if r := record(h, gpu, ""); r.Reason != "" || len(r.Xids) != 2 {
			t.Errorf("of its GPU it is %+v", r)
		}
		before := record(h, gpu, ids[1]).Odometer
		w.after(61 * time.Second)
		if r := record(s.history(), gpu, ids[1]); r.Odometer <= before {
			t.Errorf("a minute later its odometer is %d, and was %d", r.Odometer, before)
		}
		w.stop()

		w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
		defer w.stop()
		statuses := w.after(time.Minute)
		want(t, "in the next process", statuses, "", "", "xid_999", "")
		if countOf(statuses[0], 999) != 1 || countOf(statuses[0], 31) != 1 {
			t.Errorf("its counts are %+v", statuses[0].Xids)
		}
		w.Fail(ids[0], "xid 31")
		if got := countOf(w.after(time.Second)[0], 31); got != 2 {
			t.Errorf("after another one they are %d", got)
		}
		w.Recover(ids[1])
		w.after(time.Minute)
		if r := record(s.history(), gpu, ids[1]); r.Reason != "" || r.Flaps != 1 || r.Again.Resets != 1 {
			t.Errorf("when it was reset it is %+v", r)
		}
	})
}

// TestAGPUThatIsLostBeforeTheStart was there in the process before, and the listing lacks it.
// It is on the Board, unhealthy, as one that vanishes while a process runs.
func TestAGPUThatIsLostBeforeTheStart(t *testing.T) {
	for _, row := range []struct {
		name     string
		bad      func(*watched, device.ID)
		rebooted bool
		reason   string
	}{
		{"after Xid 79", fails("xid 79"), false, "xid_79"},
		{"without a word", nothing, false, "gone"},
		{"with a boot", fails("xid 79"), true, "gone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s witnessed
				var held atomic.Bool
				m := machine(3)
				id := m.IDs()[1]
				start := func(rebooted bool) *watched {
					return watch(t, m, nil, s.listen, func(w *watched) {
						w.monitor.Remembered = s.history()
						w.monitor.Remembered.Rebooted = rebooted
						w.monitor.Held = func(of device.ID) bool { return of == id && held.Load() }
					})
				}
				w := start(false)
				w.after(time.Second)
				row.bad(w, id)
				w.after(time.Second)
				w.stop()
				m.Remove(id)

				w = start(row.rebooted)
				statuses := w.after(5 * time.Second)
				want(t, "in the next process", statuses, "", row.reason, "")
				if told := s.told(); row.reason == "gone" && (len(told) == 0 || told[len(told)-1].Reason != "gone" || len(told[len(told)-1].Hit) != 1) {
					t.Errorf("the incidents are %+v, want the last to be that of the absent GPU", told)
				}
				if s := statuses[1]; !s.Gone || s.ID != id || s.Index != 1 || s.Model == "" || s.PCI == "" {
					t.Errorf("it is %+v", s)
				}
				w.after(5 * time.Minute)
				w.stop()

				w = start(false)
				want(t, "minutes later, in another process", w.after(time.Minute), "", row.reason, "")
				want(t, "when nobody has held it for ten minutes", w.after(5*time.Minute), "", "")
				w.stop()

				w = start(false)
				want(t, "in a process after that", w.after(time.Minute), "", "")
				held.Store(true)
				want(t, "when it is held", w.after(11*time.Second), "", row.reason, "")
				want(t, "an hour later", w.after(time.Hour), "", row.reason, "")
				m.Recover(id)
				want(t, "when it is back", w.after(15*time.Second), "", "", "")
				w.stop()
			})
		})
	}
}

// TestTheAbsentAreRemembered: one that is not listed may come back, in this process or the
// next, and what was wrong with it has not gone by that.
func TestTheAbsentAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(2)
		gpu, id := m.GPUs()[0], m.IDs()[0]
		b := &hiding{Machine: m}
		w := watch(t, m, func(device.Backend) device.Backend { return b }, s.listen)
		w.after(time.Second)
		m.Fail(id, "xid 95")
		w.after(time.Second)
		b.hidden.Store(id)
		want(t, "when it has been gone for long", w.after(15*time.Minute), "")
		if r := record(s.history(), gpu, ""); r.Reason != "xid_95" {
			t.Errorf("it is %+v", r)
		}
		b.hidden.Store(device.ID(""))
		want(t, "when it is back", w.after(time.Minute), "xid_95", "")
		b.hidden.Store(id)
		w.after(15 * time.Minute)
		w.stop()

		w = watch(t, m, func(device.Backend) device.Backend { return b }, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
		want(t, "in the next process", w.after(time.Minute), "")
		m.Fail(m.IDs()[1], "lost") // so that something is handed over
		w.after(10 * time.Second)
		if r := record(s.history(), gpu, ""); r.Reason != "xid_95" {
			t.Errorf("then it is %+v", r)
		}
		b.hidden.Store(device.ID(""))
		want(t, "when it is back there", w.after(time.Minute), "xid_95", "lost")
		w.stop()
	})
}

// TestAClockThatIsAhead by a month when the process starts erases no record: an absent GPU may
// come back, and the counts of a healthy one go on.
func TestAClockThatIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(2)
		at := time.Now()
		time.Sleep(31 * 24 * time.Hour)
		w := watch(t, m, nil, s.listen, func(w *watched) {
			w.monitor.Remembered.Records = []device.Record{
				{GPU: m.GPUs()[0], Reason: "xid_95", ByReset: true, Since: at, At: at},
				{GPU: m.GPUs()[1], Flaps: 3, Turns: []time.Time{at}},
				{GPU: "GPU-absent", Reason: "xid_95", ByReset: true, Since: at, At: at},
			}
		})
		want(t, "what was there all the time", w.after(time.Minute), "xid_95", "")
		w.stop()
		h := s.history()
		if len(h.Records) != 3 || record(h, m.GPUs()[1], "").Flaps != 3 || record(h, "GPU-absent", "").Reason != "xid_95" {
			t.Errorf("remembered is %+v", h.Records)
		}
	})
}

// TestTheOldestAbsentRecordsAreForgotten if there are too many.
func TestTheOldestAbsentRecordsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(2)
		b := &hiding{Machine: m}
		w := watch(t, m, func(device.Backend) device.Backend { return b }, s.listen, func(w *watched) {
			for n := range 300 {
				at := time.Now().Add(-time.Duration(n) * time.Hour)
				w.monitor.Remembered.Records = append(w.monitor.Remembered.Records,
					device.Record{GPU: device.GPU(fmt.Sprintf("GPU-absent-%d", n)), Reason: "lost", Since: at, At: at})
			}
		})
		w.after(time.Second)
		m.Fail(m.IDs()[0], "xid 95")
		w.after(time.Second)
		b.hidden.Store(m.IDs()[0])
		w.after(15 * time.Minute)
		w.stop()
		h := s.history()
		if len(h.Records) != 256+1 || record(h, m.GPUs()[0], "").Reason != "xid_95" ||
			record(h, "GPU-absent-254", "").Reason == "" || record(h, "GPU-absent-255", "").Reason != "" {
			t.Errorf("%d are remembered, and not the newest", len(h.Records))
		}
	})
}

// TestACountIsShownWhenItIsStored, so that none falls when the process is killed. Health and the
// time of an Xid do not wait for the disk.
func TestACountIsShownWhenItIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		var stored atomic.Pointer[device.History]
		m := machine(1)
		gpu, id := m.GPUs()[0], m.IDs()[0]
		earlier := device.History{Records: []device.Record{{GPU: gpu, Flaps: 7, Xids: []device.Xid{{Code: 31, Count: 5, Last: time.Now()}}}}}
		stored.Store(&earlier)
		w := watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered, w.monitor.Counted = earlier, stored.Load })
		defer w.stop()
		check := func(when string, flaps, xid31, xid95 uint64) device.Status {
			t.Helper()
			is := w.after(time.Second)[0]
			if is.Flaps != flaps || countOf(is, 31) != xid31 || countOf(is, 95) != xid95 {
				t.Errorf("%s there are %d flaps and Xids %v", when, is.Flaps, is.Xids)
			}
			return is
		}
		check("at first", 7, 5, 0)
		w.Fail(id, "xid 31")
		w.Fail(id, "xid 95")
		if is := check("while the disk hangs", 7, 5, 0); is.Healthy || is.Reason != "xid_95" || len(is.Xids) != 2 || is.Xids[1].Last.IsZero() {
			t.Errorf("while the disk hangs it is %+v", is)
		}
		h := s.history()
		stored.Store(&h)
		check("when it was stored", 8, 6, 1)
	})
}

// TestAClockThatWasSet makes no device unhealthy for ever, and no time of the future is shown.
func TestAClockThatWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		ahead := time.Now().Add(1000 * time.Hour)
		turns := slices.Repeat([]time.Time{ahead}, 9)
		w := watch(t, m, nil, func(w *watched) {
			w.monitor.Remembered.Records = []device.Record{{GPU: m.GPUs()[0], Reason: "lost", Since: ahead, At: ahead, Flaps: 9, Turns: turns}}
		})
		defer w.stop()
		if s := w.after(time.Millisecond)[0]; s.Reason != "lost" || s.Since.After(time.Now()) {
			t.Errorf("at first it is %q since %s", s.Reason, s.Since)
		}
		want(t, "soon", w.after(5*time.Second), "")
	})
}

// TestABootIsOver: what comes after it in the same process is not mended by it, nor by
// answering again.
func TestABootIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		id := m.IDs()[0]
		b := &hiding{Machine: m}
		w := watch(t, m, func(device.Backend) device.Backend { return b }, func(w *watched) { w.monitor.Remembered.Rebooted = true })
		defer w.stop()
		w.after(time.Second)
		w.Fail(id, "xid 95")
		w.after(time.Second)
		b.hidden.Store(id)
		want(t, "when it has been gone for long", w.after(15*time.Minute), "")
		w.Ail(id, device.ErrLost)
		b.hidden.Store(device.ID(""))
		w.after(15 * time.Second)
		w.Ail(id, nil)
		want(t, "when it is back, and answers", w.after(time.Minute), "xid_95", "")
	})
}

// TestARepairThatStillWaits is waited for by the next process, whatever its first check
// says, also where the node was booted.
func TestARepairThatStillWaits(t *testing.T) {
	for _, booted := range []bool{false, true} {
		testRepairThatStillWaits(t, booted)
	}
}

func testRepairThatStillWaits(t *testing.T, booted bool) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(1)
		id := m.IDs()[0]
		w := watch(t, m, nil, s.listen)
		w.after(time.Second)
		w.Fail(id, "xid 64")
		w.after(time.Second)
		w.Recover(id)
		w.Await(id)
		w.after(time.Minute)
		w.stop()
		m.Ail(id, errOdd)
		w = watch(t, m, nil, s.listen, func(w *watched) {
			w.monitor.Remembered = s.history()
			w.monitor.Remembered.Rebooted = booted
		})
		defer w.stop()
		w.after(3 * time.Second)
		w.Ail(id, nil)
		w.Await(id)
		if s := w.after(time.Minute)[0]; s.Healthy {
			t.Error("when it answers it is trusted")
		}
		w.Recover(id)
		want(t, "when it is repaired", w.after(time.Minute), "")
	})
}

// TestAResetOfASliceThatIsAbsent mends it, too, in this process and in the next.
func TestAResetOfASliceThatIsAbsent(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var s witnessed
			m := machine(1)
			m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
			b := &hiding{Machine: m}
			over := func(device.Backend) device.Backend { return b }
			w := watch(t, m, over, s.listen)
			id := m.IDs()[1]
			w.after(time.Minute)
			w.Fail(id, "xid 999")
			w.after(time.Second)
			b.hidden.Store(id)
			want(t, "while it is absent", w.after(time.Minute), "", "")
			if restarted {
				w.stop()
				w = watch(t, m, over, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
				w.after(time.Second)
			}
			w.Recover(device.ID(m.GPUs()[0]))
			w.after(time.Hour)
			b.hidden.Store(device.ID(""))
			want(t, "when it is back", w.after(time.Minute), "", "", "")
			w.stop()
		})
	}
}

// TestAnOldVerdictOutlivesAnAbsence: how old a fault is says nothing of for how long the GPU
// has been away.
func TestAnOldVerdictOutlivesAnAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(2)
		gpu, id := m.GPUs()[0], m.IDs()[0]
		s.kept.Records = []device.Record{{GPU: gpu, Reason: "xid_95", ByReset: true, Since: time.Now(), At: time.Now()}}
		time.Sleep(31 * 24 * time.Hour)
		b := &hiding{Machine: m}
		// process has one run for a while, and returns what is on the board at its end.
		process := func(d time.Duration) []device.Status {
			w := watch(t, m, func(device.Backend) device.Backend { return b }, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
			defer w.stop()
			return w.after(d)
		}
		want(t, "at first", process(time.Minute), "xid_95", "")
		b.hidden.Store(id)
		want(t, "while it is absent", process(15*time.Minute), "")
		b.hidden.Store(device.ID(""))
		want(t, "when it is back", process(time.Minute), "xid_95", "")
	})
}

// TestWhatCannotBeToldIsHandedOn until each device has proved itself: a process that has seen
// none of them has forgotten nothing.
func TestWhatCannotBeToldIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s witnessed
		m := machine(1)
		m.Unload(device.ErrNoDriver)
		w := watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered.Lost = true })
		if w.after(time.Second); !s.history().Lost { // it may be killed now
			t.Error("nobody was told")
		}
		w.stop()
		m.Unload(nil)
		w = watch(t, m, nil, s.listen, func(w *watched) { w.monitor.Remembered = s.history() })
		defer w.stop()
		if w.after(1900*time.Millisecond) != nil {
			t.Error("something was posted before the device has proved itself")
		}
		if want(t, "after three checks", w.after(1500*time.Millisecond), ""); s.history().Lost {
			t.Error("it is not over")
		}
	})
}

// TestAHealthyRecordThatIsOld is not trusted: what an earlier process found later could not be
// stored. A known verdict stands.
func TestAHealthyRecordThatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		at := time.Now()
		w := watch(t, m, nil, func(w *watched) {
			w.monitor.Remembered = device.History{Lost: true, Records: []device.Record{
				{GPU: m.GPUs()[0], Flaps: 3},
				{GPU: m.GPUs()[1], Reason: "xid_95", ByReset: true, Since: at, At: at},
			}}
		})
		defer w.stop()
		if w.after(1900*time.Millisecond) != nil {
			t.Error("something was posted before the healthy GPU passed its checks")
		}
		statuses := w.after(1500 * time.Millisecond)
		if want(t, "after three checks", statuses, "", "xid_95"); statuses[0].Flaps != 3 {
			t.Errorf("its flaps are %d", statuses[0].Flaps)
		}
	})
}
