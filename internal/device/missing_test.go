package device_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestMissing checks which GPUs are missing while they are gone, and in later processes.
func TestMissing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		m := newMachine(3)
		id := m.AllocatableIDs()[1]
		start := func() *monitorFixture {
			return startMonitor(t, m, nil, s.attach, func(w *monitorFixture) { w.options.History = s.savedHistory() })
		}
		want := func(w *monitorFixture, event string, after time.Duration, want ...device.ID) {
			t.Helper()
			time.Sleep(after)
			var got []device.ID
			for _, d := range w.monitor.Missing() {
				got = append(got, d.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", event, got, want)
			}
		}
		w := start()
		want(w, "all listed", time.Minute)
		m.RemoveGPU(id)
		want(w, "removed", 11*time.Second, id)
		want(w, "no longer in the inventory", time.Hour, id)
		if statuses, _ := w.inventory.Get(); len(statuses) != 2 {
			t.Errorf("after an hour: got %d devices, want 2", len(statuses))
		}
		w.stop()

		m.SetDriverError(errors.New("no driver"))
		w = start()
		want(w, "next process without a driver", time.Minute, m.AllocatableIDs()...)
		w.stop()
		m.SetDriverError(nil)
		w = start()
		want(w, "next process", time.Minute, id)
		w.stop()
		for i := range s.saved.Records {
			if r := &s.saved.Records[i]; !r.GoneSince.IsZero() {
				r.GoneSince = r.GoneSince.Add(-24 * time.Hour)
			}
		}
		w = start()
		want(w, "gone for a day before this process", time.Minute)
		w.stop()
	})
}

// TestForget checks that a GPU that is gone can be forgotten, unless a container has it.
func TestForget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		var allocated atomic.Bool
		m := newMachine(2)
		id := m.AllocatableIDs()[1]
		w := startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
			w.options.IsAllocated = func(of device.ID) bool { return of == id && allocated.Load() }
		})
		w.statusesAfter(time.Second)
		if err := w.monitor.Forget(t.Context(), id); err == nil {
			t.Error("a listed GPU was forgotten")
		}
		m.RemoveGPU(id)
		allocated.Store(true)
		w.statusesAfter(time.Minute)
		if err := w.monitor.Forget(t.Context(), id); err == nil {
			t.Error("an allocated GPU was forgotten")
		}
		allocated.Store(false)
		if err := w.monitor.Forget(t.Context(), id); err != nil {
			t.Error(err)
		}
		if statuses, _ := w.inventory.Get(); len(statuses) != 1 || len(w.monitor.Missing()) > 0 ||
			len(s.savedHistory().Records) != 1 {
			t.Errorf("after forget: got %d devices, missing %v and history %+v", len(statuses), w.monitor.Missing(),
				s.savedHistory())
		}
		if err := w.monitor.Forget(t.Context(), id); !errors.Is(err, device.ErrUnknownDevice) {
			t.Errorf("forgotten twice: got %v", err)
		}
		w.stop()
	})
}

// TestForgetWithMIG checks that a GPU is not forgotten while a container has
// one of its MIG devices, also in the next process.
func TestForgetWithMIG(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s monitorRecorder
		var allocated atomic.Value // of device.ID
		m := newMachine(2)
		gpu := device.ID(m.GPUs()[1])
		m.Partition(m.GPUs()[1], "1g.10gb", "1g.10gb")
		mig := m.AllocatableIDs()[2]
		start := func() *monitorFixture {
			return startMonitor(t, m, nil, s.attach, func(w *monitorFixture) {
				w.options.History = s.savedHistory()
				w.options.IsAllocated = func(id device.ID) bool { return id == allocated.Load() }
			})
		}
		wantAllocated := func(w *monitorFixture, when string) {
			t.Helper()
			w.statusesAfter(time.Hour)
			if err := w.monitor.Forget(t.Context(), gpu); err == nil || errors.Is(err, device.ErrUnknownDevice) {
				t.Errorf("%s: got %v, want an error about an allocated device", when, err)
			}
		}
		w := start()
		w.statusesAfter(time.Second)
		w.retire(t, mig, "fan") // so that the history has the MIG device
		m.RemoveGPU(gpu)
		allocated.Store(mig)
		wantAllocated(w, "gone")
		w.stop()
		w = start()
		wantAllocated(w, "in the next process")
		allocated.Store(device.ID(""))
		if err := w.monitor.Forget(t.Context(), gpu); err != nil || len(s.savedHistory().Records) != 1 {
			t.Errorf("no longer allocated: got %v and history %+v", err, s.savedHistory())
		}
		w.stop()
	})
}
