package nvml

import (
	"context"
	"math"
	"testing"
	"time"
)

const smActive = "nvidia_gpu_sm_active_ratio"

// TestGPM reads what happened between two flights, neither of a time too short to tell
// nor of one too long to be of now.
func TestGPM(t *testing.T) {
	s := start(t, "gpus 1", "gpu 0 metric 2 40")
	active := func() float64 {
		if v, ok := s.values(0)[smActive]; ok {
			return math.Round(v*1e6) / 1e6
		}
		return -1
	}
	want := func(what string, want float64, calls uint64) {
		t.Helper()
		before := s.calls()
		if got := active(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		since := s.calls().Since(before)
		if n := since.Of("nvmlGpmSampleGet", 0) + since.Of("nvmlGpmMetricsGet", 0) + since.Of("nvmlGpmSampleAlloc", 16); n != calls {
			t.Errorf("%s: %d calls, want %d", what, n, calls)
		}
	}
	// A busy machine may take longer than the shortest window from one line to the next.
	again := func(is float64) {
		t.Helper()
		s.aged(0, -time.Hour)
		want("at once again", is, 0)
		s.aged(0, time.Hour)
	}
	want("the first flight", -1, 2)
	again(-1)
	s.aged(0, time.Second)
	want("later", 0.4, 3)
	s.set("gpu 0 metric 2 60")
	again(0.4)
	s.aged(0, time.Second)
	active() // of both
	s.aged(0, time.Second)
	want("later", 0.6, 2)
	s.set("gpu 0 metric 2 150")
	s.aged(0, time.Second)
	active()
	s.aged(0, time.Second)
	want("nonsense", -1, 2)
	s.set("gpu 0 metric 2 50")
	s.aged(0, gpmMost+time.Second)
	want("after a long pause", -1, 1)
	s.aged(0, time.Second)
	want("later", 0.5, 2)
	s.set("fail nvmlGpmSampleGet gpu 0 UNKNOWN")
	s.aged(0, time.Second)
	want("it fails", -1, 1)
	s.clear("fail")
	want("a first one again", -1, 1)
	s.aged(0, time.Second)
	want("and the next", 0.5, 2)
	if n := s.samples(); n != 2 {
		t.Errorf("%d samples are there, want 2", n)
	}
	s.Close()
	if n := s.samples(); n != 0 {
		t.Errorf("%d samples are left behind", n)
	}
	s.list(1)
	want("after an Init", -1, 2)
}

// TestGPMOfGoneGPU gives back what was made for a GPU that is gone, when nothing is
// asked of it any more.
func TestGPMOfGoneGPU(t *testing.T) {
	s := start(t, "gpus 2")
	for i := range 2 {
		s.values(i)
	}
	g := s.table.Load().byIndex[1]
	s.set("gpus 1")
	g.turn.Lock() // a call that hangs
	s.list(1)
	if n := s.samples(); n != 2 {
		t.Errorf("%d samples, want 2", n)
	}
	g.turn.Unlock()
	s.list(1)
	if n := s.samples(); n != 1 {
		t.Errorf("%d samples, want 1", n)
	}
}

// TestNoGPM costs nothing where there is none.
func TestNoGPM(t *testing.T) {
	s := start(t, "gpus 1", "gpu 0 model a100")
	before := s.calls()
	got := s.both(0)
	if _, ok := got[smActive]; ok || got[`nvidia_gpu_feature_supported{feature="gpm"}`] != 0 {
		t.Errorf("got %v", got)
	}
	since := s.calls().Since(before)
	if n := since.Of("nvmlGpmSampleGet", 0) + since.Of("nvmlGpmQueryDeviceSupport", 0); n != 0 {
		t.Errorf("%d calls", n)
	}
	if _, err := s.Devices(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestLittleMoreThanAll: what is counted may come out as a little more than there is.
func TestLittleMoreThanAll(t *testing.T) {
	for percent, want := range map[float64]float64{0: 0, 50: 0.5, 100: 1, 100.4: 1, 150: -1, -1: -1, math.NaN(): -1, math.Inf(1): -1} {
		got, ok := inCycles.convert(percent)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%v %%: got %v, %v", percent, got, ok)
		}
	}
}
