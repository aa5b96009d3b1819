package device_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
)

// deviceIDs returns the ids of statuses, in order.
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
		t.Errorf("%s: got devices %v, want %v", when, got, want)
	}
}

func TestListingAfterPartitioning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Partition(w.GPUs()[0], "1g.10gb", "2g.20gb")
		statuses := w.statusesAfter(time.Millisecond) // by the event, before the next listing
		requireReasons(t, "at once", statuses, "", "", "", "")
		gpu := statuses[0]
		if !gpu.MIGEnabled || statuses[1].Profile != "1g.10gb" || statuses[2].Profile != "2g.20gb" ||
			statuses[3].MIGEnabled {
			t.Errorf("got %+v, want a MIG-enabled GPU with a 1g.10gb and a 2g.20gb, and a GPU without MIG", statuses)
		}
		w.Unpartition(w.GPUs()[0])
		statuses = w.statusesAfter(time.Millisecond)
		requireReasons(t, "after MIG mode was turned off", statuses, "", "gone", "gone", "")
		if statuses[0].MIGEnabled {
			t.Error("MIGEnabled: got true, want false")
		}
		requireReasons(t, "much later", w.statusesAfter(time.Minute), "", "")
	})
}

// slowList is a Backend whose listings take a second and return the state at their start.
type slowList struct{ *sim.Machine }

func (s slowList) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := s.Machine.Devices(ctx)
	time.Sleep(time.Second)
	return devices, err
}

// TestListingDuringPartitioning partitions a GPU during a listing that misses the change.
func TestListingDuringPartitioning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		w := startMonitor(t, m, func(device.Backend) device.Backend { return slowList{m} })
		defer w.stop()
		w.statusesAfter(11500 * time.Millisecond) // during the second listing
		m.Partition(m.GPUs()[0], "1g.10gb")
		requireReasons(t, "after the running listing", w.statusesAfter(600*time.Millisecond), "")
		requireReasons(t, "after the next listing", w.statusesAfter(time.Second), "", "")
	})
}

// TestGoneMIGDeviceExpires checks that a gone MIG device is kept for ten
// seconds, and for as long as it is allocated.
func TestGoneMIGDeviceExpires(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		gpu := m.GPUs()[0]
		m.Partition(gpu, "1g.10gb", "1g.10gb", "1g.10gb")
		var allocated atomic.Value // of device.ID
		w := startMonitor(t, m, nil, func(w *monitorFixture) {
			w.options.IsAllocated = func(id device.ID) bool { return id == allocated.Load() }
		})
		defer w.stop()
		migDevices := m.AllocatableIDs()
		w.statusesAfter(time.Second)
		allocated.Store(migDevices[1])
		m.Partition(gpu, "", "", "1g.10gb")
		statuses := w.statusesAfter(time.Millisecond)
		requireReasons(t, "at once", statuses, "", "gone", "gone", "")
		gone := statuses[1].Since
		requireReasons(t, "after nine seconds", w.statusesAfter(9*time.Second), "", "gone", "gone", "")
		statuses = w.statusesAfter(2 * time.Second)
		requireReasons(t, "after eleven seconds", statuses, "", "gone", "")
		w.requireDevices(t, "after eleven seconds, with an allocated MIG device", statuses, device.ID(gpu),
			migDevices[1], migDevices[2])
		if statuses[1].Since != gone {
			t.Errorf("time of the change: got %v, want %v", statuses[1].Since, gone)
		}
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", "gone", "")
		w.Fail(device.ID(gpu), "xid 79")
		statuses = w.statusesAfter(time.Second)
		requireReasons(t, "with a fault of its GPU", statuses, "xid_79", "xid_79", "xid_79")
		if statuses[0].Gone || !statuses[1].Gone || statuses[2].Gone {
			t.Errorf("got %+v, want only the second device gone", statuses)
		}
		allocated.Store(device.ID(""))
		w.requireDevices(t, "no longer allocated", w.statusesAfter(time.Second), device.ID(gpu), migDevices[2])
	})
}

// hidingMachine is a Backend whose listings lack one device.
type hidingMachine struct {
	*sim.Machine
	hidden atomic.Value // of device.ID
}

func (h *hidingMachine) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := h.Machine.Devices(ctx)
	return slices.DeleteFunc(devices, func(d device.Device) bool { return d.ID == h.hidden.Load() }), err
}

// TestGoneGPUExpires checks that a gone GPU is kept longer than a MIG device.
// The GPU may have fallen off the bus.
func TestGoneGPUExpires(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.Partition(m.GPUs()[0], "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.RemoveGPU(device.ID(m.GPUs()[0]))
		requireReasons(t, "after a listing", w.statusesAfter(10*time.Second), "lost", "lost", "") // checks were first
		requireReasons(t, "ten seconds later", w.statusesAfter(10*time.Second), "lost", "")
		requireReasons(t, "nine minutes later", w.statusesAfter(9*time.Minute), "lost", "")
		requireReasons(t, "after ten minutes", w.statusesAfter(time.Minute), "")
		w.RemoveGPU(device.ID(m.GPUs()[1]))
		statuses := w.statusesAfter(11 * time.Minute)
		if statuses == nil || len(statuses) != 0 {
			t.Errorf("inventory without GPUs: got %v, want an empty list", deviceIDs(statuses))
		}
		w.ResetGPU(device.ID(m.GPUs()[1]))
		requireReasons(t, "one GPU back", w.statusesAfter(15*time.Second), "")
	})
}

// FuzzAffectedDevices compares faults, resets and MIG layouts in any order with
// a model: a GPU's fault affects all its MIG devices, and a MIG device's fault
// only that device.
func FuzzAffectedDevices(f *testing.F) {
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
		if err != nil {
			t.Fatal(err)
		}
		d := devices[arg%len(devices)]
		pause := 30 * time.Second
		first := func(name string) string { return firstNonEmpty(expect.gpus[d.GPU], name) }
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
				expect.migDevices[d.ID] = firstNonEmpty(expect.migDevices[d.ID], "xid_999")
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
		t.Fatalf("%s: got devices %v, want %d, error %v", when, deviceIDs(statuses), len(devices), err)
	}
	for i, d := range devices {
		reason := e.gpus[d.GPU]
		if reason == "" {
			reason = e.migDevices[d.ID]
		}
		if s := statuses[i]; s.ID != d.ID || s.Reason != reason || s.Healthy != (reason == "") {
			t.Fatalf("%s: got %s %q, want %s %q", when, s.ID, s.Reason, d.ID, reason)
		}
	}
}

// TestLostGPUIsLogged checks that a lost GPU logs a single warning, for any
// number of MIG devices.
func TestLostGPUIsLogged(t *testing.T) {
	for _, row := range []struct {
		name, want string
		lose       func(*monitorFixture, device.ID)
	}{
		{"not listed", "no longer listed by the driver", func(w *monitorFixture, id device.ID) { w.RemoveGPU(id) }},
		{"fallen off the bus", "fallen off the bus", failWith("lost")},
		{"not listed after an Xid", "no longer listed by the driver", func(w *monitorFixture, id device.ID) {
			w.Fail(id, "xid 79")
			w.statusesAfter(time.Second)
			w.RemoveGPU(id)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				w := startMonitor(t, newMachine(2), nil,
					func(w *monitorFixture) { w.options.Log = slog.New(slog.NewTextHandler(&log, nil)) })
				gpu := w.GPUs()[1]
				w.Partition(gpu, "1g.10gb", "1g.10gb", "1g.10gb")
				w.statusesAfter(11 * time.Second)
				row.lose(w, device.ID(gpu))
				w.statusesAfter(time.Minute)
				w.stop()
				pattern := `level=WARN msg="GPU lost: ` + row.want + `" gpu=` + string(gpu) + " index=1 "
				want := regexp.MustCompile(pattern)
				if n := len(want.FindAllString(log.String(), -1)); n != 1 ||
					strings.Contains(log.String(), "MIG device gone") {
					t.Errorf("got %d warnings, want 1 and no message about MIG devices:\n%s", n, &log)
				}
			})
		})
	}
}
