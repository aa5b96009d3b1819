package collect_test

import (
	"maps"
	"math"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// instanceValues reads a GPU and returns the values of all its devices by
// device id and series name.
func (s *readerFixture) instanceValues(i int) map[device.ID]map[string]float64 {
	s.Helper()
	samples, err := s.Read(s.id(i))
	s.must(err)
	values := map[device.ID]map[string]float64{}
	for _, sample := range samples {
		deviceValues := values[sample.Device]
		if deviceValues == nil {
			deviceValues = map[string]float64{}
			values[sample.Device] = deviceValues
		}
		name := seriesName(s.Metrics()[sample.Metric])
		if _, twice := deviceValues[name]; twice {
			s.Errorf("%s: got two values of %s", sample.Device, name)
		}
		deviceValues[name] = math.Round(sample.Value*1e6) / 1e6
	}
	return values
}

// twoInstanceGPU is the scenario of a GPU with two GPU instances, one of them
// with two compute instances.
var twoInstanceGPU = []string{
	"gpus 1", "gpu 0 uuid GPU-0", "gpu 0 mig_mode 1", "reuse handles",
	"gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a memory 1000 used 400 bar1 16",
	"gpu 0 slice 1 1c.3g.40gb gi 2 ci 1 uuid MIG-c memory 4000 used 900 bar1 64",
	"gpu 0 slice 2 2c.3g.40gb gi 2 ci 0 uuid MIG-b memory 4000 used 900 bar1 64",
	"gpu 0 metric 2/7 30", "gpu 0 metric 2/2 60", "gpu 0 sram_volatile_secded 5",
}

// TestInstances reads a partitioned GPU. Values that compute instances share
// belong to one of them, otherwise a sum counts them twice.
func TestInstances(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, twoInstanceGPU...)
		s.instanceValues(0)
		s.closeWindow(0)
		s.closeWindow(0)
		got := s.instanceValues(0)
		want := func(id device.ID, name string, want float64) {
			t.Helper()
			if v, ok := got[id][name]; !ok || v != want {
				t.Errorf("%s of %s: got %v, %v, want %v", name, id, v, ok, want)
			}
		}
		want("MIG-a", "nvidia_gpu_memory_total_bytes", 1000)
		want("MIG-a", "nvidia_gpu_memory_used_bytes", 400)
		want("MIG-a", "nvidia_gpu_memory_free_bytes", 600)
		want("MIG-a", smActive, 0.3)
		want("MIG-b", "nvidia_gpu_memory_used_bytes", 900)
		want("MIG-b", smActive, 0.6)
		want("MIG-a", "nvidia_gpu_bar1_memory_used_bytes", 16)
		want("MIG-b", "nvidia_gpu_bar1_memory_used_bytes", 64)
		want("MIG-a", `nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`, 5)
		want("GPU-0", `nvidia_gpu_temperature_celsius{sensor="gpu"}`, 30)
		if len(got["MIG-c"]) > 0 {
			t.Errorf("MIG-c: got %v, want no shared values", got["MIG-c"])
		}
		for _, id := range []device.ID{"MIG-a", "MIG-b"} {
			for name := range got[id] {
				if _, ok := got["GPU-0"][name]; !ok && name != smActive {
					t.Errorf("%s: got %s, which the GPU lacks", id, name)
				}
			}
		}
	})
}

// TestInstanceReplaced replaces MIG devices between listings and reuses their
// handles. The values of a replaced device are dropped until the next listing.
func TestInstanceReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, twoInstanceGPU...)
		s.instanceValues(0)
		s.closeWindow(0)
		s.closeWindow(0)
		if got := s.instanceValues(0); got["MIG-a"][smActive] != 0.3 {
			t.Fatalf("got %v, want activity 0.3", got["MIG-a"])
		}
		s.clear("gpu 0 slice 0")
		s.set("gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-z memory 1000 used 777", "gpu 0 metric 2/7 90")
		s.closeWindow(0)
		got := s.instanceValues(0)
		if len(got["MIG-a"]) > 0 || len(got["MIG-z"]) > 0 || len(got["MIG-b"]) == 0 {
			t.Errorf("before a listing: got %v, want no values of MIG-a and MIG-z", got)
		}
		s.list(1)
		got = s.instanceValues(0)
		if got["MIG-z"]["nvidia_gpu_memory_used_bytes"] != 777 || len(got["MIG-a"]) > 0 {
			t.Errorf("after the listing: got %v, want values of MIG-z only", got["MIG-z"])
		}
		if _, ok := got["MIG-z"][smActive]; ok {
			t.Error("got an activity from a sample of the replaced MIG device")
		}
		s.closeWindow(0)
		s.closeWindow(0)
		if got := s.instanceValues(0)["MIG-z"][smActive]; got != 0.9 {
			t.Errorf("activity of MIG-z: got %v, want 0.9", got)
		}
		if n := s.samples(); n != 4 { // two instances, the GPU, and the next sample
			t.Errorf("got %d allocated samples, want 4", n)
		}
	})
}

// TestInstanceGone removes a MIG device between listings, and then turns MIG
// mode off.
func TestInstanceGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, twoInstanceGPU[:len(twoInstanceGPU)-2]...)
		s.clear("reuse")
		s.instanceValues(0)
		s.clear("gpu 0 slice 0")
		got := s.instanceValues(0)
		if len(got["MIG-a"]) > 0 || len(got["MIG-b"]) == 0 || len(got["GPU-0"]) == 0 {
			t.Errorf("got %v, want no values of MIG-a", got)
		}
		s.set("gpu 0 mig_mode 0")
		s.list(1)
		got = s.instanceValues(0)
		if ids := maps.Keys(got); len(got) != 1 || got["GPU-0"]["nvidia_gpu_utilization_ratio"] != 0 {
			t.Errorf("got %v, want only the GPU, with a utilization", ids)
		}
		for range 8 { // until a collection has time for it
			s.instanceValues(0)
		}
		// One of the GPU, plus the next one on a slow machine; none of a MIG
		// device.
		if n := s.samples(); n < 1 || n > 2 {
			t.Errorf("got %d allocated samples, want 1 or 2", n)
		}
	})
}

// TestLostWithInstances checks that a reading stops if the GPU is lost, also
// during a call for a MIG device.
func TestLostWithInstances(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, append(sevenMIGDevices("h100"), "fail nvmlDeviceGetUUID gpu 0 GPU_IS_LOST")[:17]...)
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
