package collect_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
)

const smActive = "nvidia_gpu_sm_active_ratio"

// TestGPM checks that checks end the windows. Readings take no sample, and
// export the newest window unless it is too old or a sample failed.
func TestGPM(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 40", "gpu 0 energy 1000")
		active := func() float64 {
			if v, ok := s.values(0)[smActive]; ok {
				return math.Round(v*1e6) / 1e6
			}
			return -1
		}
		want := func(what string, want float64, do ...func()) {
			t.Helper()
			for _, f := range do {
				f()
			}
			if got := active(); got != want {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
		window := func() { s.closeWindow(0) }
		check := func() { _, _ = s.Check(s.id(0)) }
		want("at first", -1)
		want("too soon", -1, check)
		want("later", 0.4, window)
		s.set("gpu 0 metric 2 60")
		want("again, too soon", 0.4, check)
		want("a window later", 0.6, window, window)
		s.set("gpu 0 metric 2 150")
		want("nonsense", -1, window, window)
		s.set("gpu 0 metric 2 101") // counters and clocks are not exactly in sync
		want("slightly above 1", 1, window, window)
		s.set("gpu 0 metric 2 50")
		want("again", 0.5, window, window)
		time.Sleep(time.Minute)
		want("long after the last check", -1)
		want("first check after that", -1, check)
		want("later", 0.5, window)
		s.set("fail nvmlGpmSampleGet gpu 0 UNKNOWN")
		want("failed sample", -1, window)
		s.clear("fail")
		want("first sample after the failure", -1, check)
		want("second sample after the failure", 0.5, window)
		s.set("gpu 0 energy 5")
		want("after a reset", -1, window)
		time.Sleep(6 * time.Minute)
		want("without collections", -1, window)
		if n := s.samples(); n != 2 {
			t.Errorf("got %d samples, want 2", n)
		}
		s.Close()
		if n := s.samples(); n != 0 {
			t.Errorf("got %d samples after Close, want 0", n)
		}
		s.list(1)
		want("after an Init", -1)
	})
}

// TestWindowsOfReaders collects as two Prometheus servers and a status page do.
// The windows are the same with and without the others.
func TestWindowsOfReaders(t *testing.T) {
	windows := func(others ...time.Duration) (sampledAt []time.Duration) {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 40")
			defer s.Close()
			for at := time.Second; at <= 5*time.Minute; at += time.Second {
				time.Sleep(time.Second)
				before := s.calls()
				if at%(5*time.Second) == 0 {
					_, err := s.Check(s.id(0))
					s.must(err)
				}
				for _, every := range append(others, 15*time.Second) {
					if at%every != 0 {
						continue
					}
					if _, ok := s.values(0)[smActive]; !ok && at > 30*time.Second {
						t.Errorf("no value after %v", at)
					}
				}
				if s.calls().Since(before).Count("nvmlGpmSampleGet", 0) > 0 {
					sampledAt = append(sampledAt, at)
				}
			}
		})
		return sampledAt
	}
	alone := windows()
	if with := windows(time.Second, 2*time.Second, 7*time.Second); !slices.Equal(alone, with) || len(alone) < 20 {
		t.Errorf("times of samples: got %v alone, %v with other readers, want equal", alone, with)
	}
}

// TestNoGPM checks that a GPU without GPM causes no GPM calls.
func TestNoGPM(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 model a100")
		before := s.calls()
		got := s.settledValues(0)
		if _, ok := got[smActive]; ok || got[`nvidia_gpu_feature_supported{feature="gpm"}`] != 0 {
			t.Errorf("got %v, want GPM not supported and no value", got)
		}
		since := s.calls().Since(before)
		if n := since.Count("nvmlGpmSampleGet", 0) + since.Count("nvmlGpmQueryDeviceSupport", 0); n != 0 {
			t.Errorf("got %d GPM calls, want 0", n)
		}
		s.list(1)
	})
}
