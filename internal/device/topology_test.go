package device_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func TestMonitorReadsTheLinksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		if device.NewMonitor(m, device.NewReaders(m), &device.Inventory{}, device.MonitorOptions{}).Links() != nil {
			t.Error("there are links before anybody has read them")
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
			t.Errorf("they were read %d times", n)
		}
		m.AddGPU()
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 2 || len(w.monitor.Links()) != 6 {
			t.Errorf("with one GPU more they were read %d times, %+v", n, w.monitor.Links())
		}
		m.RemoveGPU(device.ID(m.GPUs()[1]))
		w.statusesAfter(11 * time.Second)
		if n := m.LinkReads(); n != 3 || len(w.monitor.Links()) != 2 {
			t.Errorf("with one less they were read %d times, %+v", n, w.monitor.Links())
		}
	})
}

func TestMonitorReadsTheLinksAgainThatItMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(3)
		m.Fail(m.AllocatableIDs()[0], "lost")
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(30 * time.Second)
		if n := len(w.monitor.Links()); n != 4 || m.LinkReads() != 1 {
			t.Errorf("%d links of those that are well, read %d times", n, m.LinkReads())
		}
		m.ResetGPU(m.AllocatableIDs()[0])
		w.statusesAfter(31 * time.Second)
		if n := len(w.monitor.Links()); n != 6 || m.LinkReads() != 2 {
			t.Errorf("%d links a minute later, read %d times", n, m.LinkReads())
		}
	})
}

// hangingLinks is a Backend whose links are never told.
type hangingLinks struct {
	device.Backend
	done chan struct{}
}

func (s hangingLinks) Links(context.Context) ([]device.Link, error) {
	<-s.done
	return []device.Link{}, nil
}

// TestMonitorSaysSoWhenTheLinksHang has health go on meanwhile: only listings wait.
func TestMonitorSaysSoWhenTheLinksHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := hangingLinks{m, make(chan struct{})}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		requireReasons(t, "at first", w.statusesAfter(time.Second), "", "")
		w.Fail(m.AllocatableIDs()[1], "xid 95")
		requireReasons(t, "a failure", w.statusesAfter(time.Second), "", "xid_95")
		w.statusesAfter(30 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotAnswering {
			t.Errorf("the driver is %+v", d)
		}
		if err := withTimeout(5*time.Second, w.monitor.Release); err == nil {
			t.Error("the driver was released beneath a call")
		}
		close(b.done)
		w.statusesAfter(time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverUp || w.monitor.Links() == nil {
			t.Errorf("after the hang the driver is %+v", d)
		}
		w.stop()
	})
}
