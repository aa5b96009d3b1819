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
		if device.NewMonitor(m, device.NewReaders(m), &device.Inventory{},
			device.MonitorOptions{Log: slog.New(slog.DiscardHandler)}).Links() != nil {
			t.Error("Links before the first reading: want nil")
		}
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		if links := w.monitor.Links(); len(links) != 2 ||
			links[0] != (device.Link{A: m.GPUs()[0], B: m.GPUs()[1], NVLinks: 18, Path: device.PathSystem}) {
			t.Errorf("got links %+v, want one connection over 18 NVLinks in both directions", links)
		}
		m.Partition(m.GPUs()[0], "1g.10gb")
		w.statusesAfter(time.Hour)
		if n := m.LinkReads(); n != 1 {
			t.Errorf("got %d readings, want 1", n)
		}
		m.AddGPU()
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 2 || len(w.monitor.Links()) != 6 {
			t.Errorf("with an added GPU: got %d readings and %+v, want 2 readings and 6 links", n, w.monitor.Links())
		}
		m.RemoveGPU(device.ID(m.GPUs()[1]))
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 3 || len(w.monitor.Links()) != 2 {
			t.Errorf("with a removed GPU: got %d readings and %+v, want 3 readings and 2 links", n, w.monitor.Links())
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
			t.Errorf("got %d links of healthy GPUs after %d readings, want 4 after 1", n, m.LinkReads())
		}
		m.ResetGPU(m.AllocatableIDs()[0])
		w.statusesAfter(31 * time.Second)
		if n := len(w.monitor.Links()); n != 6 || m.LinkReads() != 2 {
			t.Errorf("a minute later: got %d links after %d readings, want 6 after 2", n, m.LinkReads())
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

// TestLinksHang checks that only listings wait while Links hangs.
func TestLinksHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := hangingLinks{m, make(chan struct{})}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		requireReasons(t, "at first", w.statusesAfter(time.Second), "", "")
		w.Fail(m.AllocatableIDs()[1], "xid 95")
		requireReasons(t, "after a fault", w.statusesAfter(time.Second), "", "xid_95")
		w.statusesAfter(30 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotResponding {
			t.Errorf("driver: got %+v, want not responding", d)
		}
		if err := withTimeout(5*time.Second, w.monitor.Release); err == nil {
			t.Error("Release during a call: got nil, want an error")
		}
		close(b.done)
		w.statusesAfter(time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverUp || w.monitor.Links() == nil {
			t.Errorf("driver after the hang: got %+v, want up with links", d)
		}
		w.stop()
	})
}
