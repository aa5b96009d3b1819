package device_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// deviceIDs are those of a board, in its order.
func deviceIDs(statuses []device.Status) []device.ID {
	list := []device.ID{}
	for _, s := range statuses {
		list = append(list, s.ID)
	}
	return list
}

func (f *monitorFixture) requireDevices(t *testing.T, when string, statuses []device.Status, want ...device.ID) {
	t.Helper()
	if got := deviceIDs(statuses); !slices.Equal(got, want) {
		t.Errorf("%s: the board has %v, want %v", when, got, want)
	}
}

func TestMonitorListsWhenAGPUIsPartitioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Partition(w.GPUs()[0], "1g.10gb", "2g.20gb")
		statuses := w.statusesAfter(time.Millisecond) // by the report, and not by the next listing
		requireReasons(t, "at once", statuses, "", "", "", "")
		gpu := statuses[0]
		if !gpu.MIGEnabled || statuses[1].Profile != "1g.10gb" || statuses[2].Profile != "2g.20gb" || statuses[3].MIGEnabled {
			t.Errorf("the board has %+v", statuses)
		}
		w.Unpartition(w.GPUs()[0])
		statuses = w.statusesAfter(time.Millisecond)
		requireReasons(t, "after its mode was turned off", statuses, "", "gone", "gone", "")
		if statuses[0].MIGEnabled {
			t.Error("the GPU is still said to be partitioned")
		}
		requireReasons(t, "much later", w.statusesAfter(time.Minute), "", "")
	})
}

// slowList is a Backend whose listings take a while, and tell what was when they began.
type slowList struct{ *sim.Machine }

func (s slowList) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := s.Machine.Devices(ctx)
	time.Sleep(time.Second)
	return devices, err
}

// TestMonitorListsAgain has a GPU partitioned while a listing runs that has missed it.
func TestMonitorListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		w := startMonitor(t, m, func(device.Backend) device.Backend { return slowList{m} })
		defer w.stop()
		w.statusesAfter(11500 * time.Millisecond) // in the middle of the second one
		m.Partition(m.GPUs()[0], "1g.10gb")
		requireReasons(t, "when that ends", w.statusesAfter(600*time.Millisecond), "")
		requireReasons(t, "when the next one has", w.statusesAfter(time.Second), "", "")
	})
}

// TestMonitorForgetsASliceThatIsGone keeps it for ten seconds, and for as long as
// somebody holds it.
func TestMonitorForgetsASliceThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1g.10gb", "1g.10gb", "1g.10gb")
		var held atomic.Value // of device.ID
		w := startMonitor(t, m, nil, func(w *monitorFixture) { w.options.IsAllocated = func(id device.ID) bool { return id == held.Load() } })
		defer w.stop()
		slice := m.AllocatableIDs()
		w.statusesAfter(time.Second)
		held.Store(slice[1])
		m.Partition(gpu, "", "", "1g.10gb")
		statuses := w.statusesAfter(time.Millisecond)
		requireReasons(t, "at once", statuses, "", "gone", "gone", "")
		gone := statuses[1].Since
		requireReasons(t, "after nine seconds", w.statusesAfter(9*time.Second), "", "gone", "gone", "")
		statuses = w.statusesAfter(2 * time.Second)
		requireReasons(t, "after eleven", statuses, "", "gone", "")
		w.requireDevices(t, "the one that is held stays", statuses, device.ID(gpu), slice[1], slice[2])
		if statuses[1].Since != gone {
			t.Errorf("gone since %v, want %v", statuses[1].Since, gone)
		}
		requireReasons(t, "as long as it takes", w.statusesAfter(time.Hour), "", "gone", "")
		w.Fail(device.ID(gpu), "xid 79")
		statuses = w.statusesAfter(time.Second)
		requireReasons(t, "with a fault of its GPU", statuses, "xid_79", "xid_79", "xid_79")
		if statuses[0].Gone || !statuses[1].Gone || statuses[2].Gone {
			t.Errorf("what is gone is not said: %+v", statuses)
		}
		held.Store(device.ID(""))
		w.requireDevices(t, "when it is let go", w.statusesAfter(time.Second), device.ID(gpu), slice[2])
	})
}

func TestMonitorTakesASliceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		m.Partition(m.GPUs()[0], "1g.10gb")
		b := &hidingMachine{Machine: m}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		defer w.stop()
		w.statusesAfter(time.Second)
		b.hidden.Store(m.AllocatableIDs()[0])
		requireReasons(t, "after a listing without it", w.statusesAfter(10*time.Second), "", "gone")
		b.hidden.Store(device.ID(""))
		requireReasons(t, "after one with it", w.statusesAfter(10*time.Second), "", "")
	})
}

// hidingMachine is a Backend whose listing leaves one device out.
type hidingMachine struct {
	*sim.Machine
	hidden atomic.Value // of device.ID
}

func (h *hidingMachine) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := h.Machine.Devices(ctx)
	return slices.DeleteFunc(devices, func(d device.Device) bool { return d.ID == h.hidden.Load() }), err
}

// TestMonitorForgetsAGPUThatIsGone takes longer: it may have fallen off the bus.
func TestMonitorForgetsAGPUThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.Partition(m.GPUs()[0], "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.RemoveGPU(device.ID(m.GPUs()[0]))
		requireReasons(t, "after a listing", w.statusesAfter(10*time.Second), "lost", "lost", "") // its checks were the first to tell
		requireReasons(t, "ten seconds later", w.statusesAfter(10*time.Second), "lost", "")
		requireReasons(t, "nine minutes later", w.statusesAfter(9*time.Minute), "lost", "")
		requireReasons(t, "after ten", w.statusesAfter(time.Minute), "")
		w.RemoveGPU(device.ID(m.GPUs()[1]))
		statuses := w.statusesAfter(11 * time.Minute)
		if statuses == nil || len(statuses) != 0 {
			t.Errorf("when all are gone the board has %v", deviceIDs(statuses))
		}
		w.ResetGPU(device.ID(m.GPUs()[1]))
		requireReasons(t, "when one is back", w.statusesAfter(15*time.Second), "")
	})
}

func TestMonitorTakesAGPUThatIsPutIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.AddGPU()
		requireReasons(t, "after a listing", w.statusesAfter(11*time.Second), "", "")
	})
}

func TestMonitorBlamesTheSliceThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1c.3g.40gb", "2c.3g.40gb", "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		slice := m.AllocatableIDs()
		requireReasons(t, "at first", w.statusesAfter(time.Second), "", "", "", "", "")
		w.Fail(slice[1], "xid 999")
		statuses := w.statusesAfter(time.Millisecond)
		requireReasons(t, "after an Xid of one", statuses, "", "", "xid_999", "", "")
		if s := statuses[2]; s.Action != "reset_gpu" || len(s.Xids) != 1 || s.Xids[0].Code != 999 {
			t.Errorf("it is %+v", s)
		}
		w.Fail(slice[0], "xid 13")
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", "", "xid_999", "", "")
		w.Fail(slice[2], "xid 95")
		requireReasons(t, "after one of the hardware", w.statusesAfter(time.Second), "xid_95", "xid_95", "xid_95", "xid_95", "")
		w.ResetGPU(slice[2])
		requireReasons(t, "after a reset", w.statusesAfter(5*time.Second), "", "", "", "", "")

		w.Fail(slice[1], "xid 999")
		w.statusesAfter(time.Second)
		m.Partition(gpu, "1c.3g.40gb", "3g.40gb", "1g.10gb")
		requireReasons(t, "when it was made anew", w.statusesAfter(time.Second), "", "", "gone", "", "", "") // it and the new one have one place
		requireReasons(t, "and later", w.statusesAfter(10*time.Second), "", "", "", "", "")
	})
}

// FuzzFaultsReachWhomTheyHit has faults, resets and new partitions in any order, and
// compares with a model: a GPU's fault reaches all its slices, a slice's none but it.
func FuzzFaultsReachWhomTheyHit(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 12 {
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
		synctest.Test(t, func(t *testing.T) { runPartitionScript(t, script) })
	})
}

// expectedReasons is what must hold of a machine: which GPUs and which slices wait for a reset.
type expectedReasons struct {
	gpus       map[device.GPU]string
	migDevices map[device.ID]string
}

var partitionLayouts = [][]string{{"1g.10gb", "1g.10gb"}, {"1c.3g.40gb", "2c.3g.40gb", "1g.10gb"}, {"7g.80gb"}, {}, {"1g.10gb", "", "1g.10gb"}}

func runPartitionScript(t *testing.T, script []byte) {
	m := newMachine(2)
	w := startMonitor(t, m, nil)
	defer w.stop()
	expect := expectedReasons{gpus: map[device.GPU]string{}, migDevices: map[device.ID]string{}}
	w.statusesAfter(time.Second)
	for step := 0; step+1 < len(script); step += 2 {
		what, which := script[step]%6, int(script[step+1])
		gpu := m.GPUs()[which%2]
		devices, err := m.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := devices[which%len(devices)]
		pause := 30 * time.Second
		first := func(name string) string { return firstNonEmpty(expect.gpus[d.GPU], name) }
		switch what {
		case 0:
			m.Partition(gpu, partitionLayouts[which%len(partitionLayouts)]...)
		case 1:
			m.Unpartition(gpu)
		case 2:
			m.Fail(d.ID, "xid 31")
		case 3:
			m.Fail(d.ID, "xid 999")
			if d.WholeGPU() {
				expect.gpus[d.GPU] = first("xid_999")
			} else {
				expect.migDevices[d.ID] = firstNonEmpty(expect.migDevices[d.ID], "xid_999")
			}
		case 4:
			m.Fail(d.ID, "xid 95")
			expect.gpus[d.GPU] = first("xid_95")
		case 5:
			m.ResetGPU(d.ID)
			pause = 11 * time.Minute // it may have flapped
			delete(expect.gpus, d.GPU)
			for _, s := range devices {
				if s.GPU == d.GPU {
					delete(expect.migDevices, s.ID)
				}
			}
		}
		expect.compare(t, fmt.Sprintf("step %d, %d of %s", step/2, what, d.ID), m, w.statusesAfter(pause))
	}
}

func firstNonEmpty(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

func (e expectedReasons) compare(t *testing.T, when string, m *sim.Machine, statuses []device.Status) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	if err != nil || len(devices) != len(statuses) {
		t.Fatalf("%s: the board has %v, want %d devices, %v", when, deviceIDs(statuses), len(devices), err)
	}
	for i, d := range devices {
		reason := e.gpus[d.GPU]
		if reason == "" {
			reason = e.migDevices[d.ID]
		}
		if s := statuses[i]; s.ID != d.ID || s.Reason != reason || s.Healthy != (reason == "") {
			t.Fatalf("%s: the board has %s %q, want %s %q", when, s.ID, s.Reason, d.ID, reason)
		}
	}
}
