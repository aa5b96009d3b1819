package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// partitionedGPU is a GPU with all kinds of MIG devices: gaps between indices,
// two compute instances in one GPU instance, both forms of UUID.
var partitionedGPU = []string{
	"gpus 3", "gpu 1 mig_mode 1", "gpu 1 uuid GPU-1", "gpu 1 minor 5", "gpu 1 pci 0001:3b:00.0",
	"gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a", "gpu 1 slice 2 1c.3g.40gb gi 2 ci 0 uuid MIG-b",
	"gpu 1 slice 3 2c.3g.40gb gi 2 ci 1 uuid old", "gpu 1 slice 6 1g.10gb+me gi 9 ci 0 uuid MIG-d memory 10468982784",
}

// writeFiles creates files and their directories.
func writeFiles(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// formatDevices formats the MIG devices of a listing, one per line.
func formatDevices(devices []device.Device) (lines []string) {
	for _, d := range devices {
		if !d.WholeGPU() {
			lines = append(lines, fmt.Sprintf("%s %d:%d %d/%d %s", d.ID, d.Index, d.MIGDeviceIndex, d.GI, d.CI,
				d.Profile))
		}
	}
	return lines
}

func (s *backendFixture) wantMIGDevices(devices []device.Device, want ...string) {
	s.Helper()
	if got := formatDevices(devices); !slices.Equal(got, want) {
		s.Errorf("got %q\nwant %q", got, want)
	}
}

func TestMIGDevices(t *testing.T) {
	root := t.TempDir()
	const migMinors = "config 1\nmonitor 2\ngpu0/gi2/access 3\ngpu1/gi7/ci0/access 13\n" +
		"gpu5/gi7/access 66\ngpu5/gi7/ci0/access 67\n" +
		"gpu5/gi2/access 21\ngpu5/gi2/ci0/access 22\ngpu5/gi2/ci1/access 23\ngpu5/gi9/access many\n"
	writeFiles(t, root, map[string]string{
		"sys/bus/pci/devices/0001:3b:00.0/numa_node": "1\n",
		"dev/nvidiactl":                      "",
		"proc/driver/nvidia-caps/mig-minors": migMinors,
	})
	s := newFixture(t, Options{
		DevRoot: root, SysRoot: filepath.Join(root, "sys"),
		ProcRoot: filepath.Join(root, "proc"),
	}, partitionedGPU...)
	devices := s.list(7)
	s.wantMIGDevices(devices, "MIG-a 1:0 7/0 1g.10gb", "MIG-b 1:2 2/0 1c.3g.40gb", "MIG-GPU-1/2/1 1:3 2/1 2c.3g.40gb",
		"MIG-d 1:6 9/0 1g.10gb+me")
	gpu, got := devices[1], devices[2]
	if !gpu.MIGEnabled || !gpu.WholeGPU() || gpu.NUMANode != 1 {
		t.Errorf("GPU: got %+v, want a MIG-enabled whole GPU on NUMA node 1", gpu)
	}
	want := gpu // a MIG device has most fields of its GPU
	want.ID, want.MIGEnabled, want.MIGDeviceIndex, want.GI, want.CI = "MIG-a", false, 0, 7, 0
	want.Profile, want.MemoryBytes = "1g.10gb", 10<<30
	want.Placement = device.Placement{Profile: 19, Start: 0, Size: 1}
	want.DeviceNodes = []string{
		"/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67",
		"/dev/nvidiactl",
	}
	if !equalDevices(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for i, nodes := range map[int][]string{
		3: {"/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidiactl"},
		4: {"/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap23", "/dev/nvidiactl"},
		5: {"/dev/nvidia5", "/dev/nvidiactl"}, // unknown capabilities
	} {
		if !slices.Equal(devices[i].DeviceNodes, nodes) {
			t.Errorf("device nodes of %s: got %v, want %v", devices[i].ID, devices[i].DeviceNodes, nodes)
		}
	}
	if d := devices[5]; d.MemoryBytes != 10468982784 {
		t.Errorf("memory of %s: got %d bytes, want 10468982784", d.ID, d.MemoryBytes)
	}

	writeFiles(t, root, map[string]string{ // added later
		"proc/driver/nvidia-caps/mig-minors": strings.Replace(migMinors, "gpu5/gi9/access many\n",
			"gpu5/gi9/access 31\ngpu5/gi9/ci0/access 32\n", 1),
	})
	if nodes := s.list(7)[5].DeviceNodes; !slices.Contains(nodes, "/dev/nvidia-caps/nvidia-cap31") ||
		!slices.Contains(nodes, "/dev/nvidia-caps/nvidia-cap32") {
		t.Errorf("device nodes: got %v, want cap31 and cap32", nodes)
	}
}

func TestProfileFromName(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb":              "1g.10gb",
		"NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb":           "1c.3g.20gb",
		"MIG 1g.5gb+me":                                  "1g.5gb+me",
		"MIG 1g.12gb+me.all":                             "1g.12gb+me.all",
		"NVIDIA RTX PRO 6000 MIG 2g.48gb-me":             "2g.48gb-me",
		"MIG 4g.96gb+gfx":                                "4g.96gb+gfx",
		"NVIDIA H100 80GB HBM3":                          "",
		"MIG 1g.10gb Device":                             "",
		"MIG ":                                           "",
		"MIG 1g.10gb+me\nnvidia.com/gpu: 8":              "",
		"NVIDIA H100 80GB HBM3 MIG 1G.10GB \uFFFD\uFFFD": "",
	} {
		if got := profileFromName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// TestProfileFromAttributes uses the attributes of real MIG devices, and
// NVIDIA's names.
func TestProfileFromAttributes(t *testing.T) {
	attributes := func(c, g uint32, mb uint64) nvml.DeviceAttributes {
		return nvml.DeviceAttributes{ComputeInstanceSliceCount: c, GpuInstanceSliceCount: g, MemorySizeMB: mb}
	}
	const a100, h100 = 40 << 30, 81559 << 20
	for _, c := range []struct {
		a      nvml.DeviceAttributes
		memory uint64
		want   string
	}{
		{attributes(1, 1, 4864), a100, "1g.5gb"},
		{attributes(2, 2, 9856), a100, "2g.10gb"},
		{attributes(1, 3, 19968), a100, "1c.3g.20gb"},
		{attributes(7, 7, 40192), a100, "7g.40gb"},
		{attributes(1, 1, 9984), h100, "1g.10gb"},
		{attributes(1, 1, 20096), h100, "1g.20gb"},
		{attributes(3, 3, 40448), h100, "3g.40gb"},
		{attributes(1, 1, 9984), 0, "1g.10gb"}, // total GPU memory unknown without privileges
		{attributes(0, 1, 9984), h100, ""},
		{attributes(1, 0, 9984), h100, ""},
		{attributes(1, 1, 0), h100, ""},
	} {
		if got := profileFromAttributes(c.a, c.memory); got != c.want {
			t.Errorf("%+v with %d bytes: got %q, want %q", c.a, c.memory, got, c.want)
		}
	}
}

// TestMIGDeviceWithoutName checks that the profile is derived from attributes.
func TestMIGDeviceWithoutName(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1c.3g.40gb+me gi 1 ci 0 uuid MIG-a",
		"fail nvmlDeviceGetName gpu 0 NOT_SUPPORTED")
	s.wantMIGDevices(s.list(2), "MIG-a 0:0 1/0 1c.3g.40gb")
}

// TestPlacement checks the placements of all GPU instances. They are empty
// without permission.
func TestPlacement(t *testing.T) {
	at := func(profile, start, size int) device.Placement {
		return device.Placement{Profile: profile, Start: start, Size: size}
	}
	for line, want := range map[string][]device.Placement{
		"": {at(19, 0, 1), at(9, 2, 4), at(9, 2, 4), at(20, 6, 1)},
		"fail nvmlGpuInstanceGetInfo gpu 1 UNKNOWN":             {{}, {}, {}, {}},
		"fail nvmlDeviceGetGpuInstanceById gpu 1 NO_PERMISSION": {{}, {}, {}, {}},
	} {
		s := newFixture(t, Options{}, partitionedGPU...)
		if line != "" {
			s.set(line)
		}
		devices := s.list(7)
		var got []device.Placement
		for _, d := range devices {
			if d.WholeGPU() && d.Placement != (device.Placement{}) {
				t.Errorf("placement of %s: got %v, want none", d.ID, d.Placement)
			}
			if !d.WholeGPU() {
				got = append(got, d.Placement)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", line, got, want)
		}
	}
}

// TestRepartitioned replaces MIG devices by others with the same index,
// instances, handle, and finally UUID.
func TestRepartitioned(t *testing.T) {
	s := newListedFixture(t, append(partitionedGPU, "reuse handles")...)
	s.list(7)
	s.set("gpu 1 slice 0 2g.20gb gi 7 ci 0 uuid MIG-z")
	s.wantMIGDevices(s.list(7), "MIG-z 1:0 7/0 2g.20gb", "MIG-b 1:2 2/0 1c.3g.40gb", "MIG-GPU-1/2/1 1:3 2/1 2c.3g.40gb",
		"MIG-d 1:6 9/0 1g.10gb+me")
	s.clear("gpu 1 slice 2")
	s.clear("gpu 1 slice 6")
	s.set("gpu 1 slice 3 1g.10gb gi 2 ci 1 uuid old", "gpu 1 slice 5 1c.3g.40gb gi 2 ci 0 uuid MIG-b")
	s.wantMIGDevices(s.list(6), "MIG-z 1:0 7/0 2g.20gb", "MIG-GPU-1/2/1 1:3 2/1 1g.10gb", "MIG-b 1:5 2/0 1c.3g.40gb")
	s.clear("gpu 1 slice")
	if devices := s.list(3); !devices[1].MIGEnabled {
		t.Error("MIGEnabled without MIG devices: got false, want true")
	}
	s.set("gpu 1 mig_mode 0", "gpu 1 slice 0 1g.10gb gi 1 ci 0")
	if devices := s.list(3); devices[1].MIGEnabled {
		t.Error("MIGEnabled without MIG mode: got true, want false")
	}
}

// TestMIGDevicesWithFaults lets calls fail. A known MIG device remains listed,
// a new one is left out, and the error has the index.
func TestMIGDevicesWithFaults(t *testing.T) {
	known := []string{
		"MIG-a 1:0 7/0 1g.10gb", "MIG-b 1:2 2/0 1c.3g.40gb", "MIG-GPU-1/2/1 1:3 2/1 2c.3g.40gb",
		"MIG-d 1:6 9/0 1g.10gb+me",
	}
	for _, c := range []struct{ line, want, first string }{
		{"fail nvmlDeviceGetMigDeviceHandleByIndex gpu 1 UNKNOWN", "MIG device 6: get its handle: UNKNOWN", ""},
		{"fail nvmlDeviceGetGpuInstanceId gpu 1 UNKNOWN", "MIG device 6: get its GPU instance: UNKNOWN", ""},
		{
			"fail nvmlDeviceGetComputeInstanceId gpu 1 4242",
			"MIG device 6: get its compute instance: NVML returned 4242",
			"",
		},
		{"fail nvmlDeviceGetAttributes_v2 gpu 1 UNKNOWN", "MIG device 6: get its attributes: UNKNOWN", ""},
		{"fail nvmlDeviceGetMigDeviceHandleByIndex gpu 1 GPU_IS_LOST", "GPU-1: get its handle: GPU_IS_LOST", ""},
		{"fail nvmlDeviceGetMaxMigDeviceCount gpu 1 UNKNOWN", "", "GPU-1: count its MIG devices: UNKNOWN"},
	} {
		s := newFixture(t, Options{}, append(partitionedGPU, c.line)...)
		devices, err := s.Devices(context.Background())
		if want := c.first + c.want; len(devices) != 3 || err == nil || !strings.Contains(err.Error(), want) ||
			errors.Is(err, device.ErrNoDriver) {
			t.Errorf("%s: first listing: got %d devices, error %v, want 3 and an error", c.line, len(devices), err)
		}
		s.clear("fail")
		s.list(7)
		s.set(c.line)
		devices, err = s.Devices(context.Background())
		s.wantMIGDevices(devices, known...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.line, err, c.want)
		}
	}
	s := newListedFixture(t, partitionedGPU...)
	for _, line := range []string{
		"gpu 1 lost", "fail nvmlDeviceGetMigMode gpu 1 UNKNOWN",
		"fail nvmlDeviceGetHandleByIndex_v2 gpu 1 UNKNOWN",
	} {
		s.set(line)
		s.wantMIGDevices(s.list(7), known...)
	}
}

// TestMIGDevicesOfStalledGPU has a hanging call. The listing makes no other
// call, and the MIG devices remain listed.
func TestMIGDevicesOfStalledGPU(t *testing.T) {
	s := newListedFixture(t, partitionedGPU...)
	s.list(7)
	id := s.id(1)
	s.set("hang nvmlDeviceGetFieldValues gpu 1")
	done := make(chan error, 1)
	go func() { _, err := s.Read(id); done <- err }() // ends with the hang; received below
	s.eventually("the reading hangs", func() bool { return s.calls().InFlight(1) == 1 })
	before := s.calls()
	s.clear("gpu 1 slice")
	s.wantMIGDevices(s.list(7), "MIG-a 1:0 7/0 1g.10gb", "MIG-b 1:2 2/0 1c.3g.40gb", "MIG-GPU-1/2/1 1:3 2/1 2c.3g.40gb",
		"MIG-d 1:6 9/0 1g.10gb+me")
	if n := s.calls().Since(before).GPUTotal(1); n != 0 {
		t.Errorf("calls on the hanging GPU: got %d, want 0", n)
	}
	s.clear("hang")
	s.must(<-done)
	s.list(3)
}

// TestLibraryWithoutMIG has MIG mode enabled, and a library without functions
// for MIG devices.
func TestLibraryWithoutMIG(t *testing.T) {
	runInChild(t, func(dir string) {
		buildLibrary(t, filepath.Join(dir, "lib64"),
			append(lib.MIGFunctions, "nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2")...)
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, partitionedGPU...)
		devices, err := s.Devices(context.Background())
		if len(devices) != 3 || !devices[1].MIGEnabled || err == nil ||
			err.Error() != "GPU-1: the library has no functions for MIG devices" {
			t.Errorf("got %+v, %v, want a MIG-enabled GPU and an error", devices, err)
		}
	})
}

// TestEventsOfMIGDevices sends events with instances. Errors of the hardware
// affect the whole GPU.
func TestEventsOfMIGDevices(t *testing.T) {
	s := newListedFixture(t, append(partitionedGPU, "gpu 2 event_types 0x8")...)
	s.list(7)
	s.waitForRegistration()
	gpu := s.id(1)
	unknown := device.Event{
		GPU: gpu, Xid: 4242, Class: "unknown", Recovery: device.RecoveryChecksPass, Action: "inspect",
	}
	for _, c := range []struct {
		event string
		want  device.Event
	}{
		{"xid 4242 gi 2 ci 1", device.Event{
			GPU: gpu, Device: "MIG-GPU-1/2/1", Xid: 4242, Class: "unknown",
			Recovery: device.RecoveryChecksPass, Action: "inspect",
		}},
		{"xid 31 gi 7 ci 0", device.Event{
			GPU: gpu, Device: "MIG-a", Xid: 31, Class: "application",
			Action: "restart_app",
		}},
		{"xid 94 gi 9 ci 0", device.Event{
			GPU: gpu, Device: "MIG-d", Xid: 94, Class: "contained",
			Action: "restart_app",
		}},
		{"xid 95 gi 9 ci 0", device.Event{
			GPU: gpu, Xid: 95, Class: "broken", Recovery: device.RecoveryAfterReset,
			Action: "reset_gpu",
		}},
		{"xid 4242", device.Event{
			GPU: gpu, Xid: 4242, Class: "unknown", Recovery: device.RecoveryChecksPass,
			Action: "inspect",
		}},
		// two MIG devices in the instance
		{"xid 4242 gi 2", unknown},
		// added after the listing
		{"xid 4242 gi 3 ci 0", unknown},
		{"type 0x100", device.Event{GPU: gpu, PartitionChanged: true}},
	} {
		s.sendEvent(1, c.event)
		if got := s.nextEvent(); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.event, got, c.want)
		}
	}
	s.sendEvent(0, "xid 4242 gi 7 ci 0") // not partitioned
	if got := s.nextEvent(); got.GPU != s.id(0) || got.Device != "" {
		t.Errorf("event of an unpartitioned GPU: got %+v", got)
	}
	s.sendEvent(2, "type 0x100") // unsupported here, unlike Xids
	s.sendEvent(2, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(2) || got.Xid != 31 {
		t.Errorf("event after an unsupported one: got %+v, want Xid 31", got)
	}
}

// TestEventsWithoutInstances has a driver whose events lack instances. go-nvml
// fills in zeros, which are the ids of an existing MIG device.
func TestEventsWithoutInstances(t *testing.T) {
	runInChild(t, func(dir string) {
		buildLibrary(t, filepath.Join(dir, "lib64"), "nvmlEventSetWait_v2")
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 1", "gpu 0 mig_mode 1",
			"gpu 0 slice 0 1g.10gb gi 0 ci 0")
		s.list(2)
		s.waitForRegistration()
		s.sendEvent(0, "xid 4242 gi 1 ci 1")
		if got := s.nextEvent(); got.GPU != s.id(0) || got.Device != "" || got.Recovery != device.RecoveryChecksPass {
			t.Errorf("got %+v, want no MIG device", got)
		}
	})
}

// TestDenialOfMIGMode returns NOT_SUPPORTED for the MIG mode. A GPU that had a
// mode keeps the mode and the MIG devices.
func TestDenialOfMIGMode(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-0",
		"fail nvmlDeviceGetMigMode gpu 0 NOT_SUPPORTED")
	for _, c := range []struct {
		denied  bool
		devices int
	}{{true, 1}, {false, 2}, {true, 2}, {true, 2}} {
		s.clear("fail")
		if c.denied {
			s.set("fail nvmlDeviceGetMigMode gpu 0 NOT_SUPPORTED")
		}
		s.list(c.devices)
		if got := s.gpu(0).MIG.Load(); got.Capable != (c.devices == 2) || (got.Denials > 0) != (c.devices == 1) {
			t.Errorf("%+v: got state %+v", c, got)
		}
	}
}

// TestGPUWithoutMIGMode has only denials. The feature is unknown until they are
// confirmed.
func TestGPUWithoutMIGMode(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 1", "fail nvmlDeviceGetMigMode gpu 0 NOT_SUPPORTED")
	for n := range collect.DenialsToConfirm + 1 {
		s.list(1)
		v, known := s.values(0)[`nvidia_gpu_feature_supported{feature="mig"}`]
		if known != (n+1 >= collect.DenialsToConfirm) || v != 0 {
			t.Errorf("after %d denials: got %v, known %t", n+1, v, known)
		}
	}
}
