package device_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestLinksAreReadOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		if device.NewMonitor(m, device.NewReaders(m), &device.Inventory{}, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)}).Links() != nil {
			t.Error("links before the first reading")
		}
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		if links := w.monitor.Links(); len(links) != 2 || links[0] != (device.Link{A: m.GPUs()[0], B: m.GPUs()[1], NVLinks: 18, Path: device.PathSystem}) {
			t.Errorf("got %+v", links)
		}
		m.Partition(m.GPUs()[0], "1g.10gb")
		w.statusesAfter(time.Hour)
		if n := m.LinkReads(); n != 1 {
			t.Errorf("%d readings, want 1", n)
		}
		m.AddGPU()
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 2 || len(w.monitor.Links()) != 6 {
			t.Errorf("with an added GPU: %d readings, %+v", n, w.monitor.Links())
		}
		m.RemoveGPU(device.ID(m.GPUs()[1]))
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 3 || len(w.monitor.Links()) != 2 {
			t.Errorf("with a removed GPU: %d readings, %+v", n, w.monitor.Links())
		}
	})
}

func TestMissingLinksAreReadAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(3)
		m.Fail(m.AllocatableIDs()[0], "lost")
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(30 * time.Second)
		if n := len(w.monitor.Links()); n != 4 || m.LinkReads() != 1 {
			t.Errorf("%d links of healthy GPUs after %d readings, want 4 after 1", n, m.LinkReads())
		}
		m.ResetGPU(m.AllocatableIDs()[0])
		w.statusesAfter(31 * time.Second)
		if n := len(w.monitor.Links()); n != 6 || m.LinkReads() != 2 {
			t.Errorf("%d links a minute later after %d readings, want 6 after 2", n, m.LinkReads())
		}
	})
}

// hangingLinks is a Backend whose Links hangs.
type hangingLinks struct {
	device.Backend
	done chan struct{}
}

func (s hangingLinks) Links(context.Context) ([]device.Link, error) {
	<-s.done
	return []device.Link{}, nil
}

// TestLinksHang: while Links hangs, only listings wait.
func TestLinksHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := hangingLinks{m, make(chan struct{})}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		requireReasons(t, "at first", w.statusesAfter(time.Second), "", "")
		w.Fail(m.AllocatableIDs()[1], "xid 95")
		requireReasons(t, "a failure", w.statusesAfter(time.Second), "", "xid_95")
		w.statusesAfter(30 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotResponding {
			t.Errorf("driver %+v", d)
		}
		if err := withTimeout(5*time.Second, w.monitor.Release); err == nil {
			t.Error("the driver was released during a call")
		}
		close(b.done)
		w.statusesAfter(time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverUp || w.monitor.Links() == nil {
			t.Errorf("driver after the hang: %+v", d)
		}
		w.stop()
	})
}
