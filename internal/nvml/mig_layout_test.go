package nvml_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
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
	if !slices.Equal(got, want) {
		s.Errorf("%s: got %q\nwant %q", what, got, want)
	}
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
	want.Profile, want.MemoryBytes = "1g.10gb", 9984<<20
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
			if d.Placement != want[i] {
				t.Errorf("%s: %s: got %v, want %v", line, d.ID, d.Placement, want[i])
			}
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
