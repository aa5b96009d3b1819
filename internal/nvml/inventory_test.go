package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

func TestDevice(t *testing.T) {
	root := t.TempDir()
	for _, f := range []struct{ path, content string }{
		{"sys/bus/pci/devices/0001:3b:00.0/numa_node", "1\n"},
		{"dev/nvidiactl", ""},
		{"dev/nvidia-uvm", ""},
	} {
		path := filepath.Join(root, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newFixture(t, Options{DevRoot: root, SysRoot: filepath.Join(root, "sys")}, "gpus 2", "driver 580.95.05",
		"gpu 1 uuid GPU-1", "gpu 1 minor 5", "gpu 1 name NVIDIA H200", "gpu 1 pci 0001:3B:00.0",
		"confidential devtools", "gpu 1 platform_slot 3", "gpu 1 platform_tray 4", "gpu 1 platform_host 5",
		"gpu 1 platform_peer 1",
		"gpu 1 platform_module 7", "gpu 1 chassis_serial 1821325191344", "gpu 1 memory_total 150754820096",
		"gpu 1 serial 1650", "gpu 1 vbios 96.00.B0", "gpu 0 uuid GPU-0")
	got := s.list(2)[1]
	want := device.Device{
		ID: "GPU-1", GPU: "GPU-1", Index: 1, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: 5, Model: "NVIDIA H200",
		PCI:      "0001:3b:00.0",
		NUMANode: 1, MemoryBytes: 150754820096,
		DeviceNodes: []string{"/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm"},
		InfoLabels: []device.Label{
			{Name: "serial", Value: "1650"},
			{Name: "vbios_version", Value: "96.00.B0"},
			{Name: "compute_capability", Value: "9.0"},
			{Name: "architecture", Value: "Hopper"},
			{Name: "chassis_serial", Value: "1821325191344"},
			{Name: "chassis_slot", Value: "3"},
			{Name: "chassis_tray", Value: "4"},
			{Name: "host_id", Value: "5"},
			{Name: "module_id", Value: "7"},
			{Name: "driver_version", Value: "580.95.05"},
			{Name: "cuda_version", Value: got.InfoLabels[10].Value}, // a number of go-nvml
			{Name: "confidential_computing", Value: "devtools"},
		},
	}
	if !equalDevices(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia-uvm-tools"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want.DeviceNodes = append(want.DeviceNodes, "/dev/nvidia-uvm-tools")
	if got := s.list(2)[1]; !equalDevices(got, want) {
		t.Errorf("with another node: got %+v\nwant %+v", got, want)
	}
}

func equalDevices(a, b device.Device) bool {
	nodes, facts := slices.Equal(a.DeviceNodes, b.DeviceNodes), slices.Equal(a.InfoLabels, b.InfoLabels)
	a.DeviceNodes, a.InfoLabels, b.DeviceNodes, b.InfoLabels = nil, nil, nil, nil
	return nodes && facts && reflect.DeepEqual(a, b)
}

// TestDeviceWithoutOptionalFunctions lets all optional functions fail. Absent
// fields are empty, 0 or -1.
func TestDeviceWithoutOptionalFunctions(t *testing.T) {
	s := newFixture(t, Options{DevRoot: t.TempDir()}, "gpus 1", "fail nvmlDeviceGetUUID gpu 0 SUCCESS")
	_, err := s.Devices(context.Background())
	if err == nil || !strings.Contains(err.Error(), "UUID is empty") {
		t.Errorf("GPU without a UUID: got %v, want an error", err)
	}
	s.clear("fail")
	var lines []string
	for _, f := range lib.Functions {
		if strings.HasPrefix(f, "nvmlDeviceGet") && !slices.Contains(lib.RequiredFunctions, f) {
			lines = append(lines, "fail "+f+" gpu * NOT_SUPPORTED")
		}
	}
	for _, symbol := range metric.Symbols() {
		lines = append(lines, "fail "+symbol+" gpu * NOT_SUPPORTED")
	}
	s.set(append(lines, "gpu 0 uuid GPU-0")...)
	got := s.list(1)[0]
	if got.Minor != -1 || got.Model != "" || got.PCI != "" || got.NUMANode != -1 || got.MemoryBytes != 0 ||
		len(got.DeviceNodes) != 0 {
		t.Errorf("got %+v, want empty fields", got)
	}
	var names []string
	for _, l := range got.InfoLabels {
		names = append(names, l.Name)
	}
	want := []string{
		"serial", "vbios_version", "compute_capability", "architecture", "chassis_serial", "chassis_slot",
		"chassis_tray", "host_id", "module_id", "driver_version", "cuda_version", "confidential_computing",
	}
	if !slices.Equal(names, want) {
		t.Errorf("labels: got %v, want %v", names, want)
	}
}

// TestInvalidPlatform has GPUs outside of a rack. The driver sets all bits of
// the position.
func TestInvalidPlatform(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu * platform_peer 1", "gpu 0 platform_slot 255", "gpu 0 platform_tray 255",
		"gpu 0 platform_host 255", "gpu 0 platform_module 255",
		"gpu 0 chassis_serial "+strings.Repeat("\xff", 13), "gpu 1 platform_slot 254", "gpu 1 platform_tray 0",
		"gpu 1 platform_host 1",
		"gpu 1 platform_module 2", "gpu 1 chassis_serial 18\xff")
	devices := s.list(2)
	for i, want := range []string{"", "18\uFFFD 254 0 1 2"} {
		var got []string
		for _, f := range devices[i].InfoLabels {
			if slices.Contains(platformLabels[:], f.Name) && f.Value != "" {
				got = append(got, f.Value)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("position of GPU %d: got %q, want %q", i, got, want)
		}
	}
}

// TestOrder has UUIDs in another order than the driver's indices.
func TestOrder(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 3", "gpu 0 uuid GPU-c", "gpu 1 uuid GPU-a", "gpu 2 uuid GPU-b",
		"gpu 0 temperature 30", "gpu 1 temperature 31", "gpu 2 temperature 32")
	for i, d := range s.list(3) {
		if want := []device.ID{"GPU-c", "GPU-a", "GPU-b"}[i]; d.ID != want || d.Index != i {
			t.Errorf("device %d: got %s with index %d, want %s", i, d.ID, d.Index, want)
		}
		if got := s.values(i)[`nvidia_gpu_temperature_celsius{sensor="gpu"}`]; got != float64(30+i) {
			t.Errorf("temperature of %s: got %v °C", d.ID, got)
		}
	}
	s.set("gpu 2 uuid GPU-c") // known GPUs are not probed again
	s.list(3)
}

func TestInvalidText(t *testing.T) {
	if got := lib.ToValidUTF8("Tesla\xff T4"); got != "Tesla\uFFFD T4" {
		t.Errorf("got %q, want a replacement character", got)
	}
}

func TestSameUUIDTwice(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "gpu * uuid GPU-same")
	devices, err := s.Devices(context.Background())
	if len(devices) != 1 || err == nil || !strings.Contains(err.Error(), "index 1: GPU-same was listed before") {
		t.Errorf("got %d devices, error %v, want one device and an error", len(devices), err)
	}
}

// TestListingWithFaults has GPUs that fail. A GPU without a description is left
// out with an error; a known GPU remains listed.
func TestListingWithFaults(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 4", "gpu 1 lost", "fail nvmlDeviceGetUUID gpu 2 UNKNOWN")
	devices, err := s.Devices(context.Background())
	if len(devices) != 2 || devices[0].Index != 0 || devices[1].Index != 3 {
		t.Fatalf("got %+v, want GPUs 0 and 3", devices)
	}
	const want = "GPU at index 1: get its handle: GPU_IS_LOST; GPU at index 2: get its UUID: UNKNOWN"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v\nwant %s", err, want)
	}
	if errors.Is(err, device.ErrNoDriver) {
		t.Error("got ErrNoDriver for errors of single GPUs")
	}

	s.clear("gpu 1")
	s.clear("fail")
	s.list(4)
	s.set("gpu 1 lost", "fail nvmlDeviceGetHandleByIndex_v2 gpu 2 UNKNOWN")
	s.list(4)
	s.clear("")
	s.set("gpus 1")
	s.list(1)
	if _, err := s.Check("GPU-gone"); err == nil {
		t.Error("Check of a GPU that is not listed: got no error")
	}
}

// TestDriverFails has calls that fail for all GPUs alike. The list is nil,
// unlike that of a driver without GPUs, of GPUs with faults of their own, and
// of an absent driver.
func TestDriverFails(t *testing.T) {
	for _, row := range []struct {
		line               string
		failing, absent    bool
		errText, otherLine string
	}{
		{line: "fail nvmlInit_v2 gpu - UNKNOWN", failing: true, errText: "initialize NVML: UNKNOWN"},
		{line: "fail nvmlInit_v2 gpu - NO_PERMISSION", failing: true, errText: "initialize NVML: NO_PERMISSION"},
		{line: "fail nvmlInit_v2 gpu - DRIVER_NOT_LOADED", absent: true, errText: "initialize NVML: DRIVER_NOT_LOADED"},
		{line: "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH", absent: true, errText: "initialize NVML: "},
		{line: "fail nvmlDeviceGetCount_v2 gpu - UNKNOWN", failing: true, errText: "count GPUs: UNKNOWN"},
		{
			line: "fail nvmlDeviceGetHandleByIndex_v2 gpu * UNKNOWN", failing: true,
			errText: "index 2: get its handle: UNKNOWN",
		},
		{
			line: "fail nvmlDeviceGetUUID gpu * NO_PERMISSION", failing: true,
			errText: "index 0: get its UUID: NO_PERMISSION",
		},
		{line: "gpu * lost", errText: "GPU_IS_LOST"},
		{
			line:      "fail nvmlDeviceGetHandleByIndex_v2 gpu * UNKNOWN",
			otherLine: "fail nvmlDeviceGetHandleByIndex_v2 gpu 1 GPU_IS_LOST",
			errText:   "index 0: get its handle: UNKNOWN",
		},
	} {
		s := newFixture(t, Options{}, "gpus 3", row.line)
		if row.otherLine != "" {
			s.set(row.otherLine)
		}
		devices, err := s.Devices(context.Background())
		if (devices == nil) != (row.failing || row.absent) || len(devices) > 0 ||
			errors.Is(err, device.ErrNoDriver) != row.absent || err == nil ||
			!strings.Contains(err.Error(), row.errText) {
			t.Errorf("%s: got devices %#v, error %v, want failing: %v, absent: %v", row.line, devices, err, row.failing,
				row.absent)
		}
		s.Close()
	}
}

// TestCodes checks which codes of a call about a GPU are never about the GPU.
func TestCodes(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	for code, want := range map[string]error{
		"NO_PERMISSION": device.ErrDriverFault, "DRIVER_NOT_LOADED": device.ErrDriverFault,
		"LIB_RM_VERSION_MISMATCH": device.ErrDriverFault,
		"INSUFFICIENT_RESOURCES":  device.ErrDriverFault, "UNINITIALIZED": device.ErrDriverFault,
		"GPU_IS_LOST": device.ErrLost, "UNKNOWN": nil, "TIMEOUT": nil,
	} {
		s.set("fail nvmlDeviceGetFieldValues gpu 0 " + code)
		_, err := s.Check(s.id(0))
		if err == nil || errors.Is(err, device.ErrDriverFault) != errors.Is(want, device.ErrDriverFault) ||
			errors.Is(err, device.ErrLost) != errors.Is(want, device.ErrLost) {
			t.Errorf("%s: got %v, want %v", code, err, want)
		}
	}
}

func TestCountFails(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	for _, code := range []string{"UNKNOWN", "SUCCESS"} { // after a success the count is 0
		s.set("fail nvmlDeviceGetCount_v2 gpu - " + code)
		devices, err := s.Devices(context.Background())
		if len(devices) != 0 || (err == nil) != (code == "SUCCESS") || errors.Is(err, device.ErrNoDriver) {
			t.Errorf("%s: got %d devices, error %v, want none", code, len(devices), err)
		}
	}
}

// TestDriverForgotInit lets the driver lose its Init. The next listing
// initializes again, and all GPUs count as reset.
func TestDriverForgotInit(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	gpu := s.id(1)
	before, err := s.Check(gpu)
	s.must(err)
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Devices: got %v, want ErrNoDriver", err)
	}
	if _, err := s.Check(gpu); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Check before the next listing: got %v, want ErrNoDriver", err)
	}
	s.clear("fail")
	s.list(2)
	after, err := s.Check(gpu)
	s.must(err)
	if after.Resets != before.Resets+1 {
		t.Errorf("resets: got %d, then %d, want one more", before.Resets, after.Resets)
	}
}

// TestClosed checks that the library starts again after Close, and that this
// counts no reset.
func TestClosed(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	gpu := s.id(0)
	before, err := s.Check(gpu)
	s.must(err)
	s.Close()
	if _, err := s.Read(gpu); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Read after Close: got %v, want ErrNoDriver", err)
	}
	s.Close()
	s.list(1)
	after, err := s.Check(gpu)
	s.must(err)
	if before.Resets != after.Resets {
		t.Errorf("resets: got %d, then %d, want no change", before.Resets, after.Resets)
	}
}

// TestResetWhileClosed resets a GPU while no process uses the driver.
func TestResetWhileClosed(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 energy 9000", "gpu 1 energy 9000")
	before := map[device.GPU]uint64{}
	for i := range 2 {
		resets, err := s.Check(s.id(i))
		s.must(err)
		before[s.id(i)] = resets.Resets
	}
	s.Close()
	s.set("gpu 1 energy 5")
	s.list(2)
	for i := range 2 {
		resets, err := s.Check(s.id(i))
		s.must(err)
		if got := resets.Resets - before[s.id(i)]; got != uint64(i) {
			t.Errorf("resets of GPU %d: got %d", i, got)
		}
	}
}

func TestMIG(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 3", "gpu 0 mig_mode none", "gpu 1 mig_mode 1")
	devices, err := s.Devices(context.Background())
	if len(devices) != 3 || err != nil || devices[0].MIGEnabled || !devices[1].MIGEnabled || devices[2].MIGEnabled {
		t.Fatalf("got %+v, error %v, want three devices, only GPU 1 with MIG mode", devices, err)
	}
	s.values(1) // reads continue
	s.set("gpu 1 mig_mode 0")
	if s.list(3)[1].MIGEnabled {
		t.Error("MIGEnabled after MIG mode was turned off: got true, want false")
	}
	s.set("gpu 1 mig_mode 1")
	s.list(3)
	s.set("fail nvmlDeviceGetMigMode gpu * UNKNOWN") // known states remain
	if devices := s.list(3); devices[0].MIGEnabled || !devices[1].MIGEnabled {
		t.Errorf("after a failed call: got %+v, want only GPU 1 with MIG mode", devices)
	}
	s.clear("")
}

// TestUnknownMIGMode has a new GPU whose MIG mode is unreadable. The GPU is
// listed, and its checks fail until the mode is known.
func TestUnknownMIGMode(t *testing.T) {
	s := newListedFixture(t, "gpus 3")
	for _, code := range []string{"UNKNOWN", "NO_PERMISSION", "TIMEOUT"} {
		s.set("gpus 4", "gpu 3 mig_mode 1", "gpu 3 uuid GPU-"+code, "fail nvmlDeviceGetMigMode gpu 3 "+code)
		for range 2 {
			devices, err := s.Devices(context.Background())
			if want := device.GPU("GPU-" + code); len(devices) != 4 || devices[3].GPU != want || err == nil ||
				!strings.Contains(err.Error(), string(want)+": get its MIG mode: "+code) {
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

// TestConfidentialComputing has GPUs that do not accept work yet. All checks
// fail, without a fault of a GPU, until a listing finds them ready.
func TestConfidentialComputing(t *testing.T) {
	for _, row := range []struct {
		state  string
		usable bool
	}{{"none", true}, {"off", true}, {"unready", false}, {"on", true}, {"devtools", true}} {
		s := newListedFixture(t, "gpus 2", "confidential "+row.state)
		for i := range 2 {
			_, err := s.Check(s.id(i))
			fault, isFault := errors.AsType[*device.Fault](err)
			if isFault == row.usable || isFault && (fault.Reason != "confidential_computing" || !fault.External) {
				t.Errorf("%s: check of GPU %d: got %v, want usable: %v", row.state, i, err, row.usable)
			}
		}
		if got := s.LibraryInfo().NotReady; got == row.usable {
			t.Errorf("%s: NotReady: got %v", row.state, got)
		}
		s.Close()
	}
	s := newListedFixture(t, "gpus 1", "confidential unready")
	s.set("confidential on")
	s.list(1)
	if _, err := s.Check(s.id(0)); err != nil {
		t.Errorf("once ready: got %v, want nil", err)
	}
	s.set("confidential on", "fail nvmlSystemGetConfComputeGpusReadyState gpu - UNKNOWN") // unknown is no reason
	s.list(1)
	if _, err := s.Check(s.id(0)); err != nil {
		t.Errorf("unknown state: got %v, want nil", err)
	}
}

func TestListingEnds(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	devices, err := s.Devices(ctx)
	if len(devices) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d devices, error %v, want Canceled", len(devices), err)
	}
	s.values(1) // the previous listing is still valid
}

// TestCallsOfListing limits the calls of a listing without changes.
func TestCallsOfListing(t *testing.T) {
	s := newListedFixture(t, "gpus 8")
	callsOnGPU := func() uint64 {
		before := s.calls()
		s.list(8)
		return s.calls().Since(before).GPUTotal(5)
	}
	if n := callsOnGPU(); n > 2 {
		t.Errorf("possible change before the registration: got %d calls, want at most 2", n)
	}
	s.waitForRegistration()
	callsOnGPU()
	if n := callsOnGPU(); n > 0 {
		t.Errorf("the driver reports changes: got %d calls, want 0", n)
	}
}

// TestGPMOfGoneGPU checks that the samples of a GPU that is no longer listed
// are freed after the end of a call.
func TestGPMOfGoneGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	for i := range 2 {
		s.values(i)
	}
	g := s.gpu(1)
	s.set("gpus 1")
	g.Mu.Lock() // a call that hangs
	s.list(1)
	if n := s.samples(); n != 2 {
		t.Errorf("got %d samples, want 2", n)
	}
	g.Mu.Unlock()
	s.eventually("the samples are freed", func() bool { return s.samples() == 1 })
}
