package health_test

import (
	"context"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestLinks checks that links are read once for each set of GPUs, and again
// while some are missing.
func TestLinks(t *testing.T) {
	runScenarios(t, []scenario{
		{"of each set of GPUs", 2, `1s; links 2 1; partition g0 1g.10gb; 20m; links 2 1
			add; 11s; links 6 2; remove g1; 11s; links 2 3`},
		{"of a lost GPU", 3, `fail d0 lost; start; 30s; links 4 1; reset d0; 31s; links 6 2`},
	})
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		want := device.Link{A: m.GPUs()[0], B: m.GPUs()[1], NVLinks: 18, Path: device.PathSystem}
		if got := w.monitor.Links()[0]; got != want {
			t.Errorf("got link %+v, want %+v", got, want)
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
		close(b.done)
		w.statusesAfter(time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverUp || w.monitor.Links() == nil {
			t.Errorf("driver after the hang: got %+v, want up with links", d)
		}
		w.stop()
	})
}
