package nvml_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// sevenMIGDevices is a GPU with the maximum number of MIG devices.
var sevenMIGDevices = func() []string {
	lines := []string{"gpus 1", "gpu 0 model h100", "gpu 0 mig_mode 1"}
	for i := range 7 {
		lines = append(lines, fmt.Sprintf("gpu 0 slice %d 1g.10gb gi %d ci 0 uuid MIG-%d used %d", i, i+7, i, 1000+i))
	}
	return lines
}()

// twoInstanceGPU is the scenario of a GPU with two GPU instances, one of them
// with two compute instances.
var twoInstanceGPU = []string{
	"gpus 1", "gpu 0 uuid GPU-0", "gpu 0 mig_mode 1", "reuse handles",
	"gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a memory 1000 used 400 bar1 16",
	"gpu 0 slice 1 1c.3g.40gb gi 2 ci 1 uuid MIG-c memory 4000 used 900 bar1 64",
	"gpu 0 slice 2 2c.3g.40gb gi 2 ci 0 uuid MIG-b memory 4000 used 900 bar1 64",
	"gpu 0 metric 2/7 30", "gpu 0 metric 2/2 60", "gpu 0 sram_volatile_secded 5",
}

func (s *fixture) settledInstances() map[device.ID]map[string]float64 {
	s.Helper()
	s.settledValues(0)
	return s.instanceValues(0)
}

// TestInstances reads a partitioned GPU. Values that compute instances share
// belong to one of them, otherwise a sum counts them twice.
func TestInstances(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, twoInstanceGPU...)
		got := s.settledInstances()
		const sram = `nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`
		for id, want := range map[device.ID]map[string]float64{
			"MIG-a": {
				"nvidia_gpu_memory_total_bytes": 1000, "nvidia_gpu_memory_used_bytes": 400,
				"nvidia_gpu_memory_free_bytes": 600, "nvidia_gpu_bar1_memory_used_bytes": 16, smActive: 0.3, sram: 5,
			},
			"MIG-b": {"nvidia_gpu_memory_used_bytes": 900, "nvidia_gpu_bar1_memory_used_bytes": 64, smActive: 0.6},
			"GPU-0": {gpuTemp: 30},
		} {
			for name, v := range want {
				if got[id][name] != v {
					t.Errorf("%s of %s: got %v, want %v", name, id, got[id][name], v)
				}
			}
			for name := range got[id] {
				if _, ok := got["GPU-0"][name]; !ok && name != smActive {
					t.Errorf("%s: got %s, which the GPU lacks", id, name)
				}
			}
		}
		if len(got["MIG-c"]) > 0 {
			t.Errorf("MIG-c: got %v, want no shared values", got["MIG-c"])
		}
	})
}

// TestInstanceReplaced replaces a MIG device between listings and reuses its
// handle. The values of the replaced device are dropped until the next listing.
func TestInstanceReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, twoInstanceGPU...)
		if got := s.settledInstances(); got["MIG-a"][smActive] != 0.3 {
			t.Fatalf("got %v, want activity 0.3", got["MIG-a"])
		}
		s.clear("gpu 0 slice 0")
		s.set("gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-z memory 1000 used 777", "gpu 0 metric 2/7 90")
		s.closeWindow(0)
		s.set("fail nvmlDeviceGetMigDeviceHandleByIndex gpu 0 UNKNOWN") // MIG-a stays listed
		for _, what := range []string{"before a listing", "after a failed listing"} {
			got := s.instanceValues(0)
			if len(got["MIG-a"]) > 0 || len(got["MIG-z"]) > 0 || len(got["MIG-b"]) == 0 {
				t.Errorf("%s: got %v, want no values of MIG-a and MIG-z", what, got)
			}
			if _, err := s.tryList(); err == nil {
				t.Error("failed listing: got no error")
			}
		}
		s.clear("fail")
		s.list(-1)
		got := s.instanceValues(0)
		_, active := got["MIG-z"][smActive]
		if got["MIG-z"]["nvidia_gpu_memory_used_bytes"] != 777 || len(got["MIG-a"]) > 0 || active {
			t.Errorf("after the listing: got %v, want values of MIG-z only, without an activity", got)
		}
		if got := s.settledInstances()["MIG-z"][smActive]; got != 0.9 {
			t.Errorf("activity of MIG-z: got %v, want 0.9", got)
		}
	})
}

// TestInstanceGone removes a MIG device between listings, and then turns MIG
// mode off and on: values and features depend on the mode.
func TestInstanceGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const busy, mode = "nvidia_gpu_utilization_ratio", `nvidia_gpu_mig_enabled{when="now"}`
		s := newListedFixture(t, twoInstanceGPU...)
		s.clear("reuse")
		s.instanceValues(0)
		s.clear("gpu 0 slice 0")
		got := s.instanceValues(0)
		if len(got["MIG-a"]) > 0 || len(got["MIG-b"]) == 0 || len(got["GPU-0"]) == 0 {
			t.Errorf("got %v, want no values of MIG-a", got)
		}
		for range 3 {
			s.set("gpu 0 mig_mode 0")
			s.list(1)
			if got = s.instanceValues(0); len(got) != 1 {
				t.Errorf("without MIG mode: got %v, want only the GPU", got)
			}
			s.wantValue("without MIG mode", 0, busy, 0)
			s.wantValue("without MIG mode", 0, mode, 0)
			s.set("gpu 0 mig_mode 1")
			s.list(3)
			s.wantValue("with MIG mode", 0, busy, -1)
			s.wantValue("with MIG mode", 0, mode, 1)
		}
		s.settledInstances()
		if n := s.calls().GPMSamples() - s.leakedSamples; n != 4 { // of the GPU and an instance
			t.Errorf("got %d allocated samples, want 4", n)
		}
		s.Close()
		if n := s.calls().GPMSamples(); n != s.leakedSamples {
			t.Errorf("after Close: got %d samples, want %d", n, s.leakedSamples)
		}
	})
}

// TestLostWithInstances checks that a reading stops if the GPU is lost, also
// during a call for a MIG device.
func TestLostWithInstances(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, sevenMIGDevices...)
		s.instanceValues(0)
		s.set("fail nvmlDeviceGetUUID gpu 0 GPU_IS_LOST")
		before := s.calls()
		if samples, err := s.Read(s.id(0)); err == nil || len(samples) > 0 {
			t.Errorf("got %v, %v, want an error and no samples", samples, err)
		}
		if n := s.calls().Since(before).GPUTotal(0); n > 10 {
			t.Errorf("got %d calls after the loss, want at most 10", n)
		}
	})
}

// TestGPM checks that checks end the windows. Readings take no sample, and
// export the newest window unless it is too old or a sample failed.
func TestGPM(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 metric 2 40", "gpu 0 energy 1000")
		want := func(what string, want float64, steps ...func()) {
			t.Helper()
			for _, step := range steps {
				step()
			}
			s.wantValue(what, 0, smActive, want)
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
		s.Close()
		s.list(1)
		want("after an Init", -1)
		s.Close()
		s.set("gpu 0 model a100")
		s.list(1)
		before := s.calls()
		want("without GPM", -1, window, window)
		s.wantValue("without GPM", 0, `nvidia_gpu_feature_supported{feature="gpm"}`, 0)
		since := s.calls().Since(before)
		if n := since.Count("nvmlGpmSampleGet", 0) + since.Count("nvmlGpmQueryDeviceSupport", 0); n != 0 {
			t.Errorf("without GPM: got %d calls, want 0", n)
		}
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
					s.resets(0) // a check
				}
				for _, every := range append(others, 15*time.Second) {
					if at%every == 0 && s.valueOf(0, smActive) < 0 && at > 30*time.Second {
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
