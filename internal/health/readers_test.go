package health_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// readGPUs reads all GPUs within a second, and returns for each whether it was late.
func readGPUs(t *testing.T, r *health.Readers, gpus []device.GPU) (late []bool, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	for i, reading := range r.Read(ctx, gpus, true) {
		expect.Equal(t, reading.GPU, gpus[i], "GPU of reading", i)
		stalled := errors.Is(reading.Err, device.ErrStalled)
		if !stalled && (reading.Err != nil || len(reading.Samples) != 1) {
			t.Errorf("reading of %s: got %v and error %v, want one sample", reading.GPU, reading.Samples, reading.Err)
		}
		late = append(late, stalled)
	}
	return late, time.Since(began)
}

func TestReadWithHangingGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(3)
		r := health.NewReaders(m)
		gpus := m.GPUs()
		m.HangGPU(m.AllocatableIDs()[1])
		late, took := readGPUs(t, r, gpus)
		if !late[1] || late[0] || late[2] || took != time.Second {
			t.Errorf("first read: got late %v after %s, want the second GPU late at the deadline", late, took)
		}
		if !r.Stalled(gpus[1]) {
			t.Error("Stalled is false after a read with the hang")
		}
		late, took = readGPUs(t, r, gpus)
		if !late[1] || late[0] || late[2] || took != 0 {
			t.Errorf("second read: got late %v after %s, want no wait for a stalled GPU", late, took)
		}
		if !r.Stalled(gpus[1]) || r.Stalled(gpus[0]) {
			t.Error("Stalled: want true for the hanging GPU only")
		}
		m.ReleaseHangs()
		synctest.Wait()
		if late, _ = readGPUs(t, r, gpus); late[1] || r.Stalled(gpus[1]) {
			t.Error("after the hang: got a late GPU, want none")
		}
	})
}

// TestReadOneDuringRead checks that ReadOne reads a GPU while a Read waits for another GPU. ReadOne waits for a hanging GPU until ctx is
// done, and not at all once the GPU counts as stalled.
func TestReadOneDuringRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		r := health.NewReaders(m)
		gpus := m.GPUs()
		m.HangGPU(m.AllocatableIDs()[1])
		readings := make(chan []health.Reading, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() { readings <- r.Read(ctx, gpus, true) }()
		synctest.Wait()
		m.SetUtilization(m.AllocatableIDs()[0], 1)
		one := r.ReadOne(t.Context(), gpus[0])
		if one.Err != nil || len(one.Samples) != 1 || one.ProcessUsageKnown {
			t.Fatalf("healthy GPU: got %+v, want one sample and no process usage", one)
		}
		short, cancelShort := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancelShort()
		began := time.Now()
		if late := r.ReadOne(short, gpus[1]); !errors.Is(late.Err, device.ErrStalled) || time.Since(began) != 400*time.Millisecond {
			t.Errorf("hanging GPU: got %v after %s, want ErrStalled after 400 ms", late.Err, time.Since(began))
		}
		time.Sleep(time.Second)
		began = time.Now()
		if late := r.ReadOne(t.Context(), gpus[1]); !errors.Is(late.Err, device.ErrStalled) || time.Since(began) != 0 {
			t.Errorf("stalled GPU: got %v after %s, want ErrStalled at once", late.Err, time.Since(began))
		}
		m.ReleaseHangs()
		if all := <-readings; all[0].Err != nil || all[0].Samples[0].Value == one.Samples[0].Value {
			t.Errorf("got Read %+v and ReadOne %+v, want different values", all[0], one)
		}
		r.SetPaused(true)
		if paused := r.ReadOne(t.Context(), gpus[0]); !errors.Is(paused.Err, device.ErrNoDriver) {
			t.Errorf("while paused: got %v, want ErrNoDriver", paused.Err)
		}
	})
}

// slowReads is a machine with readings of a given duration.
type slowReads struct {
	*sim.Machine
	took    map[device.GPU]time.Duration
	usageAt []time.Time // of the calls for processes
	highest int         // number of concurrent reads
	reading int
	mu      sync.Mutex // guards the counts
}

func (s *slowReads) Read(gpu device.GPU) ([]device.Sample, error) {
	s.count(1)
	defer s.count(-1)
	time.Sleep(s.took[gpu])
	return s.Machine.Read(gpu)
}

func (s *slowReads) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading += n
	s.highest = max(s.highest, s.reading)
}

func (s *slowReads) ReadProcessUsage(gpu device.GPU) ([]device.ProcessUsage, bool) {
	s.usageAt = append(s.usageAt, time.Now())
	return s.Machine.ReadProcessUsage(gpu)
}

// TestReadInOneThread checks that GPUs are read one after the other, and that a slow GPU delays the others by 200 ms.
func TestReadInOneThread(t *testing.T) {
	for _, c := range []struct {
		first, others, took time.Duration
		highest             int
	}{
		{10 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 1},
		{300 * time.Millisecond, 10 * time.Millisecond, 300 * time.Millisecond, 2},
		{300 * time.Millisecond, 50 * time.Millisecond, 350 * time.Millisecond, 2},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := &slowReads{Machine: newMachine(4), took: map[device.GPU]time.Duration{}}
			gpus := s.GPUs()
			for i, gpu := range gpus {
				s.took[gpu] = c.others
				if i == 0 {
					s.took[gpu] = c.first
				}
			}
			late, took := readGPUs(t, health.NewReaders(s), gpus)
			if slices.Contains(late, true) || took != c.took || s.highest != c.highest {
				t.Errorf("%v: got late GPUs %v after %s, up to %d reads at a time", c, late, took, s.highest)
			}
		})
	}
}

// TestProcessesEvery5Seconds checks that readings in between have the usage of the newest call.
func TestProcessesEvery5Seconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowReads{Machine: newMachine(1)}
		s.StartProcess(s.AllocatableIDs()[0], 17, 1000, 0.5)
		readers, begin := health.NewReaders(s), time.Now()
		for range 12 {
			r := readers.Read(t.Context(), s.GPUs(), true)[0]
			if !r.ProcessUsageKnown || len(r.ProcessUsage) != 1 {
				t.Errorf("after %s: got processes %v, known %v, want one", time.Since(begin), r.ProcessUsage, r.ProcessUsageKnown)
			}
			time.Sleep(time.Second)
		}
		expect.EqualSlices(t, s.usageAt, []time.Time{begin, begin.Add(5 * time.Second), begin.Add(10 * time.Second)})
	})
}

func TestReadWaitsForShortCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		r := health.NewReaders(m)
		m.HangGPU(m.AllocatableIDs()[0])
		checked := make(chan error, 1)
		d := device.Device{ID: m.AllocatableIDs()[0], GPU: m.GPUs()[0]}
		go func() { checked <- r.CheckUsable(t.Context(), d, false) }()
		go func() {
			time.Sleep(300 * time.Millisecond)
			m.ReleaseHangs()
		}()
		if late, took := readGPUs(t, r, m.GPUs()); late[0] || took != 300*time.Millisecond {
			t.Errorf("got late %v after %s, want the reading right after the check", late, took)
		}
		if err := <-checked; err != nil {
			t.Errorf("check: got %v, want nil", err)
		}
	})
}

// TestReadAfterDeadlineMakesNoCall reads with an unlocked GPU and a context that is done.
func TestReadAfterDeadlineMakesNoCall(t *testing.T) {
	m := &slowReads{Machine: newMachine(1)}
	r := health.NewReaders(m)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // select chooses at random
		r.Read(ctx, m.GPUs(), true)
		r.Drain(t.Context())
	}
	expect.Equal(t, m.highest, 0, "calls after the deadline")
	if reading := r.ReadOne(t.Context(), m.GPUs()[0]); reading.Err != nil {
		t.Errorf("ReadOne after the reads: %v", reading.Err)
	}
}

func TestReadersDrain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		r := health.NewReaders(m)
		m.HangGPU(m.AllocatableIDs()[0])
		readGPUs(t, r, m.GPUs())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if r.Drain(ctx) {
			t.Error("Drain during a hang: got true, want false")
		}
		m.ReleaseHangs()
		if !r.Drain(t.Context()) {
			t.Error("Drain after the hang: got false, want true")
		}
	})
}

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
