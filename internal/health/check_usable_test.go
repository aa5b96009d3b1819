package health_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
)

// busyMachine is a machine with processes on its devices.
type busyMachine struct {
	*sim.Machine
	pids map[device.ID][]uint32
	err  error
}

func (o busyMachine) Processes(d device.Device) ([]uint32, error) { return o.pids[d.ID], o.err }

func TestCheckUsable(t *testing.T) {
	broken := errors.New("no permission")
	for _, row := range []struct {
		name  string
		fail  string
		pids  []uint32
		err   error
		alone bool
		want  string // after the device's id; empty: usable
	}{
		{name: "idle", alone: true},
		{name: "in use", pids: []uint32{4711}, alone: true, want: ": in use by process 4711"},
		{name: "in use by many", pids: []uint32{3, 4, 5, 6, 7, 8}, alone: true, want: ": in use by process 3 4 5 6 7"},
		{name: "shared", pids: []uint32{4711}},
		{name: "processes unknown", err: broken, alone: true, want: ": no permission"},
		{name: "lost", fail: "lost", want: ": GPU is lost"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newMachine(1)
			id := m.AllocatableIDs()[0]
			if row.fail != "" {
				m.Fail(id, row.fail)
			}
			r := health.NewReaders(busyMachine{m, map[device.ID][]uint32{id: row.pids}, row.err})
			err := r.CheckUsable(t.Context(), device.Device{ID: id, GPU: device.GPU(id)}, row.alone)
			if row.want == "" && err != nil || row.want != "" && (err == nil || err.Error() != string(id)+row.want) {
				t.Errorf("CheckUsable: got %v, want %q", err, row.want)
			}
			if row.err != nil && !errors.Is(err, row.err) {
				t.Errorf("error %v does not wrap %v", err, row.err)
			}
		})
	}
	m := newMachine(1)
	paused := health.NewReaders(m)
	paused.SetPaused(true)
	if err := paused.CheckUsable(t.Context(), device.Device{GPU: device.GPU(m.AllocatableIDs()[0])}, true); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("while the driver is released: got %v, want ErrNoDriver", err)
	}
}

// TestCheckUsableDuringHang checks that CheckUsable returns at its deadline and makes no second call during the hang.
func TestCheckUsableDuringHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		id := m.AllocatableIDs()[0]
		r := health.NewReaders(busyMachine{Machine: m})
		d := device.Device{ID: id, GPU: device.GPU(id)}
		m.HangGPU(id)
		for _, want := range []time.Duration{2 * time.Second, 0} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			began := time.Now()
			if err := r.CheckUsable(ctx, d, true); !errors.Is(err, device.ErrStalled) || time.Since(began) != want {
				t.Errorf("CheckUsable: got %v after %s, want %s", err, time.Since(began), want)
			}
			cancel()
		}
		m.ReleaseHangs()
		synctest.Wait()
		if err := r.CheckUsable(t.Context(), d, true); err != nil {
			t.Errorf("after the hang: got %v, want nil", err)
		}
	})
}
