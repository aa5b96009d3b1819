package nvml_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// partitionedGPU is a GPU with all kinds of MIG devices: gaps between indices,
// two compute instances in one GPU instance, both forms of UUID.
var partitionedGPU = []string{
	"gpus 3", "gpu 1 mig_mode 1", "gpu 1 uuid GPU-1", "gpu 1 minor 5", "gpu 1 pci 0001:3b:00.0",
	"gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a", "gpu 1 slice 2 1c.3g.40gb gi 2 ci 0 uuid MIG-b",
	"gpu 1 slice 3 2c.3g.40gb gi 2 ci 1 uuid old", "gpu 1 slice 6 1g.10gb+me gi 9 ci 0 uuid MIG-d memory 10468982784",
}

// knownDevices are the MIG devices of partitionedGPU.
var knownDevices = []string{
	"MIG-a 1:0 7/0 1g.10gb", "MIG-b 1:2 2/0 1c.3g.40gb", "MIG-GPU-1/2/1 1:3 2/1 2c.3g.40gb", "MIG-d 1:6 9/0 1g.10gb+me",
}

func (s *fixture) wantMIGDevices(what string, devices []device.Device, want ...string) {
	s.Helper()
	var got []string
	for _, d := range devices {
		if !d.WholeGPU() {
			got = append(got, fmt.Sprintf("%s %d:%d %d/%d %s", d.ID, d.Index, d.MIGDeviceIndex, d.GI, d.CI, d.Profile))
		}
	}
	expect.EqualSlices(s, got, want, what)
}

func TestMIGDevices(t *testing.T) {
	root := t.TempDir()
	const migMinors = "config 1\nmonitor 2\ngpu0/gi2/access 3\ngpu1/gi7/ci0/access 13\n" +
		"gpu5/gi7/access 66\ngpu5/gi7/ci0/access 67\n" +
		"gpu5/gi2/access 21\ngpu5/gi2/ci0/access 22\ngpu5/gi2/ci1/access 23\ngpu5/gi9/access many\n"
	s := newFixture(t, nvml.Options{
		DevRoot: root, SysRoot: filepath.Join(root, "sys"), ProcRoot: filepath.Join(root, "proc"),
	}, partitionedGPU...)
	s.writeFiles(root, map[string]string{
		"sys/bus/pci/devices/0001:3b:00.0/numa_node": "1\n", "dev/nvidiactl": "",
		"proc/driver/nvidia-caps/mig-minors": migMinors,
	})
	devices := s.list(7)
	s.wantMIGDevices("at first", devices, knownDevices...)
	gpu, got := devices[1], devices[2]
	want := gpu // a MIG device has most facts of its GPU
	want.ID, want.MIGEnabled, want.MIGDeviceIndex, want.GI, want.CI = "MIG-a", false, 0, 7, 0
	want.Profile, want.MemoryBytes, want.ComputeSlices = "1g.10gb", 9984<<20, 7
	want.Placement = device.Placement{Profile: 19, Start: 0, Size: 1}
	want.DeviceNodes = got.DeviceNodes
	if fmt.Sprint(got) != fmt.Sprint(want) || !gpu.MIGEnabled || !gpu.WholeGPU() || gpu.NUMANode != 1 {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for i, caps := range []string{"66 67", "21 22", "21 23", ""} {
		var want []string
		for n := range strings.FieldsSeq(caps) {
			want = append(want, "/dev/nvidia-caps/nvidia-cap"+n)
		}
		want = slices.Concat([]string{"/dev/nvidia5"}, want, []string{"/dev/nvidiactl"})
		if d := devices[2+i]; !slices.Equal(d.DeviceNodes, want) {
			t.Errorf("device nodes of %s: got %v, want %v", d.ID, d.DeviceNodes, want)
		}
	}
	if d := devices[5]; d.MemoryBytes != 10468982784 {
		t.Errorf("memory of %s: got %d bytes, want 10468982784", d.ID, d.MemoryBytes)
	}
	s.writeFiles(root, map[string]string{ // added later
		"proc/driver/nvidia-caps/mig-minors": migMinors + "gpu5/gi9/access 31\ngpu5/gi9/ci0/access 32\n",
	})
	if nodes := s.list(7)[5].DeviceNodes; !slices.Contains(nodes, "/dev/nvidia-caps/nvidia-cap31") ||
		!slices.Contains(nodes, "/dev/nvidia-caps/nvidia-cap32") {
		t.Errorf("device nodes: got %v, want cap31 and cap32", nodes)
	}
}

// TestProfiles has the profiles of NVIDIA's names. Without a name, or with a
// name of other text, the profile follows from the attributes.
func TestProfiles(t *testing.T) {
	const a100, h100 = 40 << 30, 81559 << 20
	for _, c := range []struct {
		profile    string
		gpu, bytes uint64 // memory
		nameless   string // profile without a name
	}{
		{"1g.5gb", a100, 4864 << 20, "1g.5gb"},
		{"2g.10gb", a100, 9856 << 20, "2g.10gb"},
		{"1c.3g.20gb", a100, 19968 << 20, "1c.3g.20gb"},
		{"7g.40gb", a100, 40192 << 20, "7g.40gb"},
		{"1g.10gb", h100, 9984 << 20, "1g.10gb"},
		{"1g.20gb", h100, 20096 << 20, "1g.20gb"},
		{"3g.40gb", h100, 40448 << 20, "3g.40gb"},
		{"1g.10gb+me", h100, 9984 << 20, "1g.10gb"},
		{"1g.12gb+me.all", 96 << 30, 12 << 30, "1g.12gb"},
		{"2g.48gb-me", 96 << 30, 48 << 30, "2g.48gb"},
	} {
		s := newFixture(t, nvml.Options{}, "gpus 1", "gpu 0 mig_mode 1", fmt.Sprintf("gpu 0 memory_total %d", c.gpu),
			fmt.Sprintf("gpu 0 slice 0 %s gi 1 ci 0 uuid MIG-a memory %d", c.profile, c.bytes))
		s.wantMIGDevices(c.profile, s.list(2), "MIG-a 0:0 1/0 "+c.profile)
		for _, line := range []string{"fail nvmlDeviceGetName gpu 0 NOT_SUPPORTED", "gpu 0 name MIG 9g"} {
			s.Close()
			s.set(line)
			s.wantMIGDevices(line, s.list(2), "MIG-a 0:0 1/0 "+c.nameless)
		}
		s.Close()
	}
}

// TestPlacement checks the placements of all GPU instances. They are empty
// without permission.
func TestPlacement(t *testing.T) {
	at := func(profile, start, size int) device.Placement {
		return device.Placement{Profile: profile, Start: start, Size: size}
	}
	for line, want := range map[string][]device.Placement{
		"reuse handles": {at(19, 0, 1), at(9, 2, 4), at(9, 2, 4), at(20, 6, 1)},
		"fail nvmlGpuInstanceGetInfo gpu 1 UNKNOWN":             {{}, {}, {}, {}},
		"fail nvmlDeviceGetGpuInstanceById gpu 1 NO_PERMISSION": {{}, {}, {}, {}},
	} {
		s := newFixture(t, nvml.Options{}, append(partitionedGPU, line)...)
		for i, d := range s.list(7)[2:6] {
			expect.Equal(t, d.Placement, want[i], line, d.ID)
		}
		s.Close()
	}
}

// TestRepartitioned replaces MIG devices by others with the same index,
// instances, handle, and finally UUID.
func TestRepartitioned(t *testing.T) {
	s := newListedFixture(t, append(partitionedGPU, "reuse handles")...)
	s.set("gpu 1 slice 0 2g.20gb gi 7 ci 0 uuid MIG-z")
	s.wantMIGDevices("replaced", s.list(7), append([]string{"MIG-z 1:0 7/0 2g.20gb"}, knownDevices[1:]...)...)
	s.clear("gpu 1 slice 2")
	s.clear("gpu 1 slice 6")
	s.set("gpu 1 slice 3 1g.10gb gi 2 ci 1 uuid old", "gpu 1 slice 5 1c.3g.40gb gi 2 ci 0 uuid MIG-b")
	s.wantMIGDevices("moved", s.list(6), "MIG-z 1:0 7/0 2g.20gb", "MIG-GPU-1/2/1 1:3 2/1 1g.10gb",
		"MIG-b 1:5 2/0 1c.3g.40gb")
	s.clear("gpu 1 slice")
	for _, mode := range []bool{true, false} {
		if !mode {
			s.set("gpu 1 mig_mode 0", "gpu 1 slice 0 1g.10gb gi 1 ci 0")
		}
		if devices := s.list(3); devices[1].MIGEnabled != mode {
			t.Errorf("without MIG devices: MIGEnabled: got %v, want %v", devices[1].MIGEnabled, mode)
		}
	}
}

// TestMIGDevicesWithFaults lets calls fail. A known MIG device remains listed,
// a new one is left out, and the error has the index.
func TestMIGDevicesWithFaults(t *testing.T) {
	for _, c := range []struct{ line, want, first string }{
		{"fail nvmlDeviceGetMigDeviceHandleByIndex gpu 1 UNKNOWN", "MIG device 6: get its handle: UNKNOWN", ""},
		{"fail nvmlDeviceGetGpuInstanceId gpu 1 UNKNOWN", "MIG device 6: get its GPU instance: UNKNOWN", ""},
		{"fail nvmlDeviceGetComputeInstanceId gpu 1 4242", "get its compute instance: NVML returned 4242", ""},
		{"fail nvmlDeviceGetAttributes_v2 gpu 1 UNKNOWN", "MIG device 6: get its attributes: UNKNOWN", ""},
		{"fail nvmlDeviceGetMigDeviceHandleByIndex gpu 1 GPU_IS_LOST", "GPU-1: get its handle: GPU_IS_LOST", ""},
		{"fail nvmlDeviceGetMaxMigDeviceCount gpu 1 UNKNOWN", "", "GPU-1: count its MIG devices: UNKNOWN"},
	} {
		s := newFixture(t, nvml.Options{}, append(partitionedGPU, c.line)...)
		devices, err := s.tryList()
		if want := c.first + c.want; len(devices) != 3 || err == nil || !strings.Contains(err.Error(), want) ||
			errors.Is(err, device.ErrNoDriver) {
			t.Errorf("%s: first listing: got %d devices, error %v, want 3 and an error", c.line, len(devices), err)
		}
		s.clear("fail")
		s.list(7)
		s.set(c.line)
		devices, err = s.tryList()
		s.wantMIGDevices(c.line, devices, knownDevices...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.line, err, c.want)
		}
		s.Close()
	}
	s := newListedFixture(t, partitionedGPU...)
	for _, line := range []string{
		"gpu 1 lost", "fail nvmlDeviceGetMigMode gpu 1 UNKNOWN", "fail nvmlDeviceGetHandleByIndex_v2 gpu 1 UNKNOWN",
	} {
		s.set(line)
		s.wantMIGDevices(line, s.list(7), knownDevices...)
	}
}

// TestUnknownMIGMode has a new GPU whose MIG mode is unreadable. The GPU is
// listed, and its checks fail until the mode is known.
func TestUnknownMIGMode(t *testing.T) {
	s := newListedFixture(t, "gpus 3")
	for _, code := range []string{"UNKNOWN", "NO_PERMISSION", "TIMEOUT"} {
		s.set("gpus 4", "gpu 3 mig_mode 1", "gpu 3 uuid GPU-"+code, "fail nvmlDeviceGetMigMode gpu 3 "+code)
		for range 2 {
			devices, err := s.tryList()
			if len(devices) != 4 || err == nil ||
				!strings.Contains(err.Error(), "GPU-"+code+": get its MIG mode: "+code) {
				t.Fatalf("%s: got devices %+v, error %v, want four and an error about the last", code, devices, err)
			}
		}
		for i := range 4 {
			_, err := s.Check(s.id(i))
			fault, isFault := errors.AsType[*device.Fault](err)
			if isFault != (i == 3) || isFault && (fault.Reason != "mig_mode_unknown" || fault.External) {
				t.Errorf("%s: check of GPU %d: got %v, want a fault of GPU 3 only", code, i, err)
			}
		}
		s.clear("fail")
		if devices := s.list(4); !devices[3].MIGEnabled {
			t.Errorf("%s: MIGEnabled once the mode is known: got false, want true", code)
		}
		if _, err := s.Check(s.id(3)); err != nil {
			t.Errorf("%s: check once the mode is known: got %v, want nil", code, err)
		}
		s.set("gpus 3")
		s.list(3)
	}
}

// TestDenialOfMIGMode returns NOT_SUPPORTED for the MIG mode. A GPU that had a
// mode keeps the mode and the MIG devices.
func TestDenialOfMIGMode(t *testing.T) {
	const deny, feature = "fail nvmlDeviceGetMigMode gpu 0 NOT_SUPPORTED", `nvidia_gpu_feature_supported{feature="mig"}`
	s := newFixture(t, nvml.Options{}, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-0", deny)
	s.list(1)
	s.wantValue("denied once", 0, feature, -1)
	s.list(1)
	s.wantValue("denied twice", 0, feature, 0)
	s.clear("fail")
	s.list(2)
	s.wantValue("known", 0, feature, 1)
	s.set(deny)
	s.list(2)
	s.wantValue("a stray denial", 0, feature, 1)
}

// TestLibraryWithoutMIG has MIG mode enabled, and a library without functions
// for MIG devices.
func TestLibraryWithoutMIG(t *testing.T) {
	withLibrary(t, append(lib.MIGFunctions, "nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2"), partitionedGPU,
		func(s *fixture) {
			devices, err := s.tryList()
			if len(devices) != 3 || !devices[1].MIGEnabled || err == nil ||
				err.Error() != "GPU-1: the library has no functions for MIG devices" {
				s.Errorf("got %+v, %v, want a MIG-enabled GPU and an error", devices, err)
			}
		})
}

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
				expect.Equal(t, got[id][name], v, name, "of", id)
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
		expect.Equal(t, s.settledInstances()["MIG-z"][smActive], 0.9, "activity of MIG-z")
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
		expect.Equal(t, s.calls().GPMSamples(), s.leakedSamples, "after Close samples")
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
		expect.Equal(t, since.Count("nvmlGpmSampleGet", 0)+since.Count("nvmlGpmQueryDeviceSupport", 0), 0,
			"without GPM calls")
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
