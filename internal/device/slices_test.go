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

// ids are those of a board, in its order.
func ids(statuses []device.Status) []device.ID {
	list := []device.ID{}
	for _, s := range statuses {
		list = append(list, s.ID)
	}
	return list
}

func (w *watched) wantDevices(t *testing.T, when string, statuses []device.Status, want ...device.ID) {
	t.Helper()
	if got := ids(statuses); !slices.Equal(got, want) {
		t.Errorf("%s: the board has %v, want %v", when, got, want)
	}
}

func TestMonitorListsWhenAGPUIsPartitioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), nil)
		defer w.stop()
		w.after(time.Second)
		w.Partition(w.GPUs()[0], "1g.10gb", "2g.20gb")
		statuses := w.after(time.Millisecond) // by the report, and not by the next listing
		want(t, "at once", statuses, "", "", "", "")
		gpu := statuses[0]
		if !gpu.MIG || statuses[1].Profile != "1g.10gb" || statuses[2].Profile != "2g.20gb" || statuses[3].MIG {
			t.Errorf("the board has %+v", statuses)
		}
		w.Unpartition(w.GPUs()[0])
		statuses = w.after(time.Millisecond)
		want(t, "after its mode was turned off", statuses, "", "gone", "gone", "")
		if statuses[0].MIG {
			t.Error("the GPU is still said to be partitioned")
		}
		want(t, "much later", w.after(time.Minute), "", "")
	})
}

// slow is a Backend whose listings take a while, and tell what was when they began.
type slow struct{ *sim.Machine }

func (s slow) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := s.Machine.Devices(ctx)
	time.Sleep(time.Second)
	return devices, err
}

// TestMonitorListsAgain has a GPU partitioned while a listing runs that has missed it.
func TestMonitorListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		w := watch(t, m, func(device.Backend) device.Backend { return slow{m} })
		defer w.stop()
		w.after(11500 * time.Millisecond) // in the middle of the second one
		m.Partition(m.GPUs()[0], "1g.10gb")
		want(t, "when that ends", w.after(600*time.Millisecond), "")
		want(t, "when the next one has", w.after(time.Second), "", "")
	})
}

// TestMonitorForgetsASliceThatIsGone keeps it for ten seconds, and for as long as
// somebody holds it.
func TestMonitorForgetsASliceThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1g.10gb", "1g.10gb", "1g.10gb")
		var held atomic.Value // of device.ID
		w := watch(t, m, nil, func(w *watched) { w.monitor.Held = func(id device.ID) bool { return id == held.Load() } })
		defer w.stop()
		slice := m.IDs()
		w.after(time.Second)
		held.Store(slice[1])
		m.Partition(gpu, "", "", "1g.10gb")
		statuses := w.after(time.Millisecond)
		want(t, "at once", statuses, "", "gone", "gone", "")
		gone := statuses[1].Since
		want(t, "after nine seconds", w.after(9*time.Second), "", "gone", "gone", "")
		statuses = w.after(2 * time.Second)
		want(t, "after eleven", statuses, "", "gone", "")
		w.wantDevices(t, "the one that is held stays", statuses, device.ID(gpu), slice[1], slice[2])
		if statuses[1].Since != gone {
			t.Errorf("gone since %v, want %v", statuses[1].Since, gone)
		}
		want(t, "as long as it takes", w.after(time.Hour), "", "gone", "")
		w.Fail(device.ID(gpu), "xid 79")
		statuses = w.after(time.Second)
		want(t, "with a fault of its GPU", statuses, "xid_79", "xid_79", "xid_79")
		if statuses[0].Gone || !statuses[1].Gone || statuses[2].Gone {
			t.Errorf("what is gone is not said: %+v", statuses)
		}
		held.Store(device.ID(""))
		w.wantDevices(t, "when it is let go", w.after(time.Second), device.ID(gpu), slice[2])
	})
}

func TestMonitorTakesASliceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		m.Partition(m.GPUs()[0], "1g.10gb")
		b := &hiding{Machine: m}
		w := watch(t, m, func(device.Backend) device.Backend { return b })
		defer w.stop()
		w.after(time.Second)
		b.hidden.Store(m.IDs()[0])
		want(t, "after a listing without it", w.after(10*time.Second), "", "gone")
		b.hidden.Store(device.ID(""))
		want(t, "after one with it", w.after(10*time.Second), "", "")
	})
}

// hiding is a Backend whose listing leaves one device out.
type hiding struct {
	*sim.Machine
	hidden atomic.Value // of device.ID
}

func (h *hiding) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := h.Machine.Devices(ctx)
	return slices.DeleteFunc(devices, func(d device.Device) bool { return d.ID == h.hidden.Load() }), err
}

// TestMonitorForgetsAGPUThatIsGone takes longer: it may have fallen off the bus.
func TestMonitorForgetsAGPUThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		m.Partition(m.GPUs()[0], "1g.10gb")
		w := watch(t, m, nil)
		defer w.stop()
		w.after(time.Second)
		w.Remove(device.ID(m.GPUs()[0]))
		want(t, "after a listing", w.after(10*time.Second), "lost", "lost", "") // its checks were the first to tell
		want(t, "ten seconds later", w.after(10*time.Second), "lost", "")
		want(t, "nine minutes later", w.after(9*time.Minute), "lost", "")
		want(t, "after ten", w.after(time.Minute), "")
		w.Remove(device.ID(m.GPUs()[1]))
		statuses := w.after(11 * time.Minute)
		if statuses == nil || len(statuses) != 0 {
			t.Errorf("when all are gone the board has %v", ids(statuses))
		}
		w.Recover(device.ID(m.GPUs()[1]))
		want(t, "when one is back", w.after(15*time.Second), "")
	})
}

func TestMonitorTakesAGPUThatIsPutIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), nil)
		defer w.stop()
		w.after(time.Second)
		w.Add()
		want(t, "after a listing", w.after(11*time.Second), "", "")
	})
}

func TestMonitorBlamesTheSliceThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1c.3g.40gb", "2c.3g.40gb", "1g.10gb")
		w := watch(t, m, nil)
		defer w.stop()
		slice := m.IDs()
		want(t, "at first", w.after(time.Second), "", "", "", "", "")
		w.Fail(slice[1], "xid 999")
		statuses := w.after(time.Millisecond)
		want(t, "after an Xid of one", statuses, "", "", "xid_999", "", "")
		if s := statuses[2]; s.Action != "reset_gpu" || len(s.Xids) != 1 || s.Xids[0].Code != 999 {
			t.Errorf("it is %+v", s)
		}
		w.Fail(slice[0], "xid 13")
		want(t, "an hour later", w.after(time.Hour), "", "", "xid_999", "", "")
		w.Fail(slice[2], "xid 95")
		want(t, "after one of the hardware", w.after(time.Second), "xid_95", "xid_95", "xid_95", "xid_95", "")
		w.Recover(slice[2])
		want(t, "after a reset", w.after(5*time.Second), "", "", "", "", "")

		w.Fail(slice[1], "xid 999")
		w.after(time.Second)
		m.Partition(gpu, "1c.3g.40gb", "3g.40gb", "1g.10gb")
		want(t, "when it was made anew", w.after(time.Second), "", "", "gone", "", "", "") // it and the new one have one place
		want(t, "and later", w.after(10*time.Second), "", "", "", "", "")
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
		synctest.Test(t, func(t *testing.T) { followScript(t, script) })
	})
}

// model is what must hold of a machine: which GPUs and which slices wait for a reset.
type model struct {
	broken map[device.GPU]string
	alone  map[device.ID]string
}

var layouts = [][]string{{"1g.10gb", "1g.10gb"}, {"1c.3g.40gb", "2c.3g.40gb", "1g.10gb"}, {"7g.80gb"}, {}, {"1g.10gb", "", "1g.10gb"}}

func followScript(t *testing.T, script []byte) {
	m := machine(2)
	w := watch(t, m, nil)
	defer w.stop()
	expect := model{broken: map[device.GPU]string{}, alone: map[device.ID]string{}}
	w.after(time.Second)
	for step := 0; step+1 < len(script); step += 2 {
		what, which := script[step]%6, int(script[step+1])
		gpu := m.GPUs()[which%2]
		devices, err := m.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := devices[which%len(devices)]
		pause := 30 * time.Second
		first := func(name string) string { return orElse(expect.broken[d.GPU], name) }
		switch what {
		case 0:
			m.Partition(gpu, layouts[which%len(layouts)]...)
		case 1:
			m.Unpartition(gpu)
		case 2:
			m.Fail(d.ID, "xid 31")
		case 3:
			m.Fail(d.ID, "xid 999")
			if d.WholeGPU() {
				expect.broken[d.GPU] = first("xid_999")
			} else {
				expect.alone[d.ID] = orElse(expect.alone[d.ID], "xid_999")
			}
		case 4:
			m.Fail(d.ID, "xid 95")
			expect.broken[d.GPU] = first("xid_95")
		case 5:
			m.Recover(d.ID)
			pause = 11 * time.Minute // it may have flapped
			delete(expect.broken, d.GPU)
			for _, s := range devices {
				if s.GPU == d.GPU {
					delete(expect.alone, s.ID)
				}
			}
		}
		expect.compare(t, fmt.Sprintf("step %d, %d of %s", step/2, what, d.ID), m, w.after(pause))
	}
}

func orElse(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

func (e model) compare(t *testing.T, when string, m *sim.Machine, statuses []device.Status) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	if err != nil || len(devices) != len(statuses) {
		t.Fatalf("%s: the board has %v, want %d devices, %v", when, ids(statuses), len(devices), err)
	}
	for i, d := range devices {
		reason := e.broken[d.GPU]
		if reason == "" {
			reason = e.alone[d.ID]
		}
		if s := statuses[i]; s.ID != d.ID || s.Reason != reason || s.Healthy != (reason == "") {
			t.Fatalf("%s: the board has %s %q, want %s %q", when, s.ID, s.Reason, d.ID, reason)
		}
	}
}
