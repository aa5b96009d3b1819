package collect

import (
	"maps"
	"math"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// instanceValues reads a GPU: the values of all its devices, by their id and the series' name.
func (s *readerFixture) instanceValues(i int) map[device.ID]map[string]float64 {
	s.Helper()
	samples, err := s.Read(s.id(i), nil)
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
			s.Errorf("%s has two values of %s", sample.Device, name)
		}
		deviceValues[name] = math.Round(sample.Value*1e6) / 1e6
	}
	return values
}

// twoInstanceGPU is a GPU with two GPU instances, of which one has two compute instances.
var twoInstanceGPU = []string{
	"gpus 1", "gpu 0 uuid GPU-0", "gpu 0 mig_mode 1", "reuse handles",
	"gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a memory 1000 used 400 bar1 16",
	"gpu 0 slice 1 1c.3g.40gb gi 2 ci 1 uuid MIG-c memory 4000 used 900 bar1 64",
	"gpu 0 slice 2 2c.3g.40gb gi 2 ci 0 uuid MIG-b memory 4000 used 900 bar1 64",
	"gpu 0 metric 2/7 30", "gpu 0 metric 2/2 60", "gpu 0 sram_volatile_secded 5",
}

// TestInstances reads a partitioned GPU. Where compute instances share what is read, it
// is of one of them alone, or it would be summed up twice.
func TestInstances(t *testing.T) {
	s := newListedFixture(t, twoInstanceGPU...)
	s.instanceValues(0)
	s.closeWindow(0)
	s.closeWindow(0)
	for range 6 {
		s.instanceValues(0)
		s.ageSlow(0, slowInterval)
	}
	got := s.instanceValues(0)
	want := func(id device.ID, name string, want float64) {
		t.Helper()
		if v, ok := got[id][name]; !ok || v != want {
			t.Errorf("%s of %s is %v, %v; want %v", name, id, v, ok, want)
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
		t.Errorf("what it shares is another's: %v", got["MIG-c"])
	}
	for _, id := range []device.ID{"MIG-a", "MIG-b"} {
		for name := range got[id] {
			if _, ok := got["GPU-0"][name]; !ok && name != smActive {
				t.Errorf("%s has %s", id, name)
			}
		}
	}
}

// TestInstanceReplaced has slices change between listings, with the handles given to
// others: what is read of those is nobody's until the next listing.
func TestInstanceReplaced(t *testing.T) {
	s := newListedFixture(t, twoInstanceGPU...)
	s.instanceValues(0)
	s.closeWindow(0)
	s.closeWindow(0)
	if got := s.instanceValues(0); got["MIG-a"][smActive] != 0.3 {
		t.Fatalf("got %v", got["MIG-a"])
	}
	s.clear("gpu 0 slice 0")
	s.set("gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-z memory 1000 used 777", "gpu 0 metric 2/7 90")
	s.closeWindow(0)
	got := s.instanceValues(0)
	if len(got["MIG-a"]) > 0 || len(got["MIG-z"]) > 0 || len(got["MIG-b"]) == 0 {
		t.Errorf("before a listing: %v", got)
	}
	s.list(1)
	got = s.instanceValues(0)
	if got["MIG-z"]["nvidia_gpu_memory_used_bytes"] != 777 || len(got["MIG-a"]) > 0 {
		t.Errorf("after it: %v", got["MIG-z"])
	}
	if _, ok := got["MIG-z"][smActive]; ok {
		t.Error("a sample of the slice before it was made use of")
	}
	s.closeWindow(0)
	s.closeWindow(0)
	if got := s.instanceValues(0)["MIG-z"][smActive]; got != 0.9 {
		t.Errorf("it was active for %v", got)
	}
	if n := s.samples(); n != 4 { // two instances, the GPU, and the next one
		t.Errorf("%d samples are allocated, want 4", n)
	}
}

// TestInstanceGone has a slice go between listings, and its GPU's mode be turned off.
func TestInstanceGone(t *testing.T) {
	s := newListedFixture(t, twoInstanceGPU[:len(twoInstanceGPU)-2]...)
	s.clear("reuse")
	s.instanceValues(0)
	s.clear("gpu 0 slice 0")
	got := s.instanceValues(0)
	if len(got["MIG-a"]) > 0 || len(got["MIG-b"]) == 0 || len(got["GPU-0"]) == 0 {
		t.Errorf("got %v", got)
	}
	s.set("gpu 0 mig_mode 0")
	s.list(1)
	got = s.instanceValues(0)
	if ids := maps.Keys(got); len(got) != 1 || got["GPU-0"]["nvidia_gpu_utilization_ratio"] != 0 {
		t.Errorf("got %v", ids)
	}
	for range 8 { // as soon as a flight has nothing better to do
		s.instanceValues(0)
	}
	// The GPU's, and its next one where the machine was slow; no slice's.
	if n := s.samples(); n < 1 || n > 2 {
		t.Errorf("%d samples are allocated, want 1 or 2", n)
	}
}

// TestLostWithInstances stops where the GPU is lost, also while a slice is asked.
func TestLostWithInstances(t *testing.T) {
	s := newListedFixture(t, append(sevenMIGDevices("h100"), "fail nvmlDeviceGetUUID gpu 0 GPU_IS_LOST")[:17]...)
	s.instanceValues(0)
	s.set("fail nvmlDeviceGetUUID gpu 0 GPU_IS_LOST")
	before := s.calls()
	if samples, err := s.Read(s.id(0), nil); err == nil || len(samples) > 0 {
		t.Errorf("got %v, %v", samples, err)
	}
	if n := s.calls().Since(before).GPUTotal(0); n > 10 {
		t.Errorf("%d calls after it was lost", n)
	}
}

// TestAllocationsOfInstances pins what a slice costs: its memory's struct, and its UUID
// as text.
func TestAllocationsOfInstances(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	s := newListedFixture(t, sevenMIGDevices("h100")...)
	id := s.id(0)
	var buf []device.Sample
	var err error
	read := func() {
		buf, err = s.Read(id, buf[:0])
	}
	for range 20 {
		read()
	}
	got := testing.AllocsPerRun(50, read)
	s.must(err)
	if want := float64(4 + 7*3); got != want {
		t.Errorf("a reading of seven slices allocates %v times, want %v", got, want)
	}
}

func BenchmarkReadInstances(b *testing.B) {
	s := newListedFixture(b, sevenMIGDevices("h100")...)
	id := s.id(0)
	var buf []device.Sample
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = s.Read(id, buf[:0])
	}
}
