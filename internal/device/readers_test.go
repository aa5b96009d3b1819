package device_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// gpuIDs are the GPUs behind a simulated machine's devices, which are whole ones.
func gpuIDs(m *sim.Machine) []device.GPU {
	var gpus []device.GPU
	for _, id := range m.AllocatableIDs() {
		gpus = append(gpus, device.GPU(id))
	}
	return gpus
}

// readGPUs reads all GPUs within a second and tells which were late.
func readGPUs(t *testing.T, r *device.Readers, gpus []device.GPU) (late []bool, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	for i, reading := range r.Read(ctx, gpus) {
		if reading.GPU != gpus[i] {
			t.Errorf("reading %d is of %s, want %s", i, reading.GPU, gpus[i])
		}
		stalled := errors.Is(reading.Err, device.ErrStalled)
		if !stalled && (reading.Err != nil || len(reading.Samples) != 1) {
			t.Errorf("reading of %s: %v, %v", reading.GPU, reading.Samples, reading.Err)
		}
		late = append(late, stalled)
	}
	return late, time.Since(began)
}

func TestReadersLeaveOutAGPUThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(3)
		r := device.NewReaders(m)
		gpus := gpuIDs(m)
		m.HangGPU(m.AllocatableIDs()[1])
		late, took := readGPUs(t, r, gpus)
		if !late[1] || late[0] || late[2] || took != time.Second {
			t.Errorf("the first read: late %v, took %s; want the second GPU late by the deadline", late, took)
		}
		if !r.Stalled(gpus[1]) {
			t.Error("the read that has met the hang cannot tell that the GPU is stalled")
		}
		late, took = readGPUs(t, r, gpus)
		if !late[1] || late[0] || late[2] || took != 0 {
			t.Errorf("the second read: late %v, took %s; want nobody to wait for a GPU that is known to hang", late, took)
		}
		if !r.Stalled(gpus[1]) || r.Stalled(gpus[0]) {
			t.Error("Stalled does not tell them apart")
		}
		if r.Check(gpus[1], func(device.ResetEvidence, error) {}) {
			t.Error("a second call was begun on a GPU that hangs")
		}
		m.ReleaseHangs()
		synctest.Wait()
		if late, _ = readGPUs(t, r, gpus); late[1] || r.Stalled(gpus[1]) {
			t.Error("still late after the hang has ended")
		}
	})
}

// TestReadOneBesideARead: a GPU is read while a Read waits for another one, whose result it does not
// touch. A GPU that hangs is waited for until ctx is done, and not at all once it is known to hang.
func TestReadOneBesideARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		r := device.NewReaders(m)
		gpus := gpuIDs(m)
		m.HangGPU(m.AllocatableIDs()[1])
		readings := make(chan []device.Reading, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() { readings <- r.Read(ctx, gpus) }()
		synctest.Wait()
		m.SetUtilization(m.AllocatableIDs()[0], 1)
		one := r.ReadOne(t.Context(), gpus[0])
		if one.Err != nil || len(one.Samples) != 1 || one.ProcessUsageKnown {
			t.Fatalf("the GPU that answers: %+v", one)
		}
		short, cancelShort := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancelShort()
		began := time.Now()
		if late := r.ReadOne(short, gpus[1]); !errors.Is(late.Err, device.ErrStalled) || time.Since(began) != 400*time.Millisecond {
			t.Errorf("the GPU that hangs: %v after %s", late.Err, time.Since(began))
		}
		time.Sleep(time.Second)
		began = time.Now()
		if late := r.ReadOne(t.Context(), gpus[1]); !errors.Is(late.Err, device.ErrStalled) || time.Since(began) != 0 {
			t.Errorf("the GPU that is known to hang: %v after %s", late.Err, time.Since(began))
		}
		m.ReleaseHangs()
		if all := <-readings; all[0].Err != nil || all[0].Samples[0].Value == one.Samples[0].Value {
			t.Errorf("the Read has %+v, and ReadOne has %+v", all[0], one)
		}
		r.Pause()
		if away := r.ReadOne(t.Context(), gpus[0]); !errors.Is(away.Err, device.ErrNoDriver) {
			t.Errorf("while paused: %v", away.Err)
		}
	})
}

func TestReadersWaitForAShortCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		r := device.NewReaders(m)
		m.HangGPU(m.AllocatableIDs()[0])
		checked := make(chan error, 1)
		if !r.Check(gpuIDs(m)[0], func(_ device.ResetEvidence, err error) { checked <- err }) {
			t.Fatal("an idle GPU is not checked")
		}
		go func() {
			time.Sleep(300 * time.Millisecond)
			m.ReleaseHangs()
		}()
		if late, took := readGPUs(t, r, gpuIDs(m)); late[0] || took != 300*time.Millisecond {
			t.Errorf("late %v after %s; want the reading right after the check", late, took)
		}
		if err := <-checked; err != nil {
			t.Errorf("the check: %v", err)
		}
	})
}

// TestReadersAskNobodyTooLate has the slot be free, and the time be over.
func TestReadersAskNobodyTooLate(t *testing.T) {
	m := &countingReads{Machine: newMachine(1)}
	r := device.NewReaders(m)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // it is by chance which of the two is noticed
		r.Read(ctx, gpuIDs(m.Machine))
		r.Drain(t.Context())
	}
	if n := m.reads.Load(); n > 0 {
		t.Errorf("%d calls were made whose answers nobody waits for", n)
	}
	if !r.Check(gpuIDs(m.Machine)[0], func(device.ResetEvidence, error) {}) {
		t.Error("the slot is lost")
	}
	r.Drain(t.Context())
}

// countingReads is a machine that counts its readings.
type countingReads struct {
	*sim.Machine
	reads atomic.Int64
}

func (c *countingReads) Read(gpu device.GPU, buf []device.Sample) ([]device.Sample, error) {
	c.reads.Add(1)
	return c.Machine.Read(gpu, buf)
}

func TestReadersTellWhetherCallsAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		r := device.NewReaders(m)
		m.HangGPU(m.AllocatableIDs()[0])
		readGPUs(t, r, gpuIDs(m))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if r.Drain(ctx) {
			t.Error("a call that hangs is said to have ended")
		}
		m.ReleaseHangs()
		if !r.Drain(t.Context()) {
			t.Error("calls are left after the hang")
		}
	})
}
