package health_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestMIGLayouts(t *testing.T) { runScenarioFile(t, "mig_layouts") }

// FuzzAffectedDevices compares faults, resets and MIG layouts in any order with
// a model: a GPU's fault affects all its MIG devices, and a MIG device's fault
// only that device.
func FuzzAffectedDevices(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		script := make([]byte, 30)
		for i := range script {
			script[i] = byte(random.IntN(256))
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 60 { // each step takes simulated minutes
			script = script[:60]
		}
		bubble.Test(t, func(t *testing.T) { runPartitionScript(t, script) })
	})
}

// expectedReasons is the model: the reasons of GPUs and MIG devices that wait
// for a reset.
type expectedReasons struct {
	gpus       map[device.GPU]string
	migDevices map[device.ID]string
}

var partitionLayouts = [][]string{
	{"1g.10gb", "1g.10gb"},
	{"1c.3g.40gb", "2c.3g.40gb", "1g.10gb"},
	{"7g.80gb"},
	{},
	{"1g.10gb", "", "1g.10gb"},
}

func runPartitionScript(t *testing.T, script []byte) {
	m := newMachine(2)
	w := startMonitor(t, m, nil)
	defer w.stop()
	expect := expectedReasons{gpus: map[device.GPU]string{}, migDevices: map[device.ID]string{}}
	w.statusesAfter(time.Second)
	for step := 0; step+1 < len(script); step += 2 {
		action, arg := script[step]%6, int(script[step+1])
		gpu := m.GPUs()[arg%2]
		devices, err := m.Devices(t.Context())
		require.NoError(t, err)
		d := devices[arg%len(devices)]
		pause := 30 * time.Second
		first := func(name string) string { return cmp.Or(expect.gpus[d.GPU], name) }
		switch action {
		case 0:
			m.Partition(gpu, partitionLayouts[arg%len(partitionLayouts)]...)
		case 1:
			m.Unpartition(gpu)
		case 2:
			m.Fail(d.ID, "xid 31")
		case 3:
			m.Fail(d.ID, "xid 999")
			if d.WholeGPU() {
				expect.gpus[d.GPU] = first("xid_999")
			} else {
				expect.migDevices[d.ID] = cmp.Or(expect.migDevices[d.ID], "xid_999")
			}
		case 4:
			m.Fail(d.ID, "xid 95")
			expect.gpus[d.GPU] = first("xid_95")
		case 5:
			m.ResetGPU(d.ID)
			pause = 11 * time.Minute // the recovery period may be long
			delete(expect.gpus, d.GPU)
			for _, s := range devices {
				if s.GPU == d.GPU {
					delete(expect.migDevices, s.ID)
				}
			}
		}
		expect.compare(t, fmt.Sprintf("step %d, %d of %s", step/2, action, d.ID), m, w.statusesAfter(pause))
	}
}

func (e expectedReasons) compare(t *testing.T, when string, m *sim.Machine, statuses []device.Status) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	if err != nil || len(devices) != len(statuses) {
		t.Fatalf("%s: got devices %+v, want %d, error %v", when, statuses, len(devices), err)
	}
	for i, d := range devices {
		reason := cmp.Or(e.gpus[d.GPU], e.migDevices[d.ID])
		if s := statuses[i]; s.ID != d.ID || s.Reason != reason || s.Healthy != (reason == "") {
			t.Fatalf("%s: got %s %q, want %s %q", when, s.ID, s.Reason, d.ID, reason)
		}
	}
}

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
		expect.Equal(t, w.monitor.Links()[0], want)
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
