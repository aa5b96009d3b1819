package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/devicetest"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

func TestBackendConforms(t *testing.T) {
	devicetest.TestBackend(t, newFixture(t, nvml.Options{}).Backend)
	devicetest.TestBackend(t, newFixture(t, nvml.Options{}, partitionedGPU...).Backend)
}

// writeFiles creates files and their directories.
func (s *fixture) writeFiles(root string, files map[string]string) {
	s.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		s.must(os.MkdirAll(filepath.Dir(path), 0o755))
		s.must(os.WriteFile(path, []byte(content), 0o600))
	}
}

// facts are the names and values of the info labels.
func facts(d device.Device) (names, values string) {
	for _, l := range d.InfoLabels {
		names, values = names+" "+l.Name, values+","+l.Value
	}
	return names, values
}

const factNames = " serial vbios_version compute_capability architecture chassis_serial chassis_slot chassis_tray" +
	" host_id module_id driver_version cuda_version confidential_computing cluster_uuid clique_id"

func TestDevice(t *testing.T) {
	root := t.TempDir()
	s := newFixture(t, nvml.Options{DevRoot: root, SysRoot: filepath.Join(root, "sys")}, "gpus 2", "driver 580.95.05",
		"gpu 1 uuid GPU-1", "gpu 1 minor 5", "gpu 1 name NVIDIA H200", "gpu 1 pci 0001:3B:00.0", "confidential devtools",
		"gpu 1 platform_slot 3", "gpu 1 platform_tray 4", "gpu 1 platform_host 5", "gpu 1 platform_peer 1",
		"gpu 1 platform_module 7", "gpu 1 chassis_serial 1821325191344", "gpu 1 memory_total 150754820096",
		"gpu 1 serial 1650", "gpu 1 vbios 96.00.B0", "gpu 0 uuid GPU-0")
	s.writeFiles(root, map[string]string{
		"sys/bus/pci/devices/0001:3b:00.0/numa_node": "1\n", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
	})
	got := s.list(2)[1]
	names, values := facts(got)
	const wantValues = ",1650,96.00.B0,9.0,Hopper,1821325191344,3,4,5,7,580.95.05,"
	if names != factNames || !strings.HasPrefix(values, wantValues) || !strings.HasSuffix(values, ",devtools,,") {
		t.Errorf("facts: got %s and %s, want %s and %s", names, values, factNames, wantValues)
	}
	want := device.Device{
		ID: "GPU-1", GPU: "GPU-1", Index: 1, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: 5, Model: "NVIDIA H200",
		PCI: "0001:3b:00.0", NUMANode: 1, MemoryBytes: 150754820096, InfoLabels: got.InfoLabels,
		DeviceNodes: []string{"/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm"},
	}
	expect.DeepEqual(t, got, want)
	s.writeFiles(root, map[string]string{"dev/nvidia-uvm-tools": ""})
	expect.EqualSlices(t, s.list(2)[1].DeviceNodes, append(want.DeviceNodes, "/dev/nvidia-uvm-tools"),
		"with another node")
}

// TestDeviceWithoutOptionalFunctions lets all optional functions fail. Absent
// fields are empty, 0 or -1.
func TestDeviceWithoutOptionalFunctions(t *testing.T) {
	s := newFixture(t, nvml.Options{DevRoot: t.TempDir()}, "gpus 1", "gpu 0 uuid GPU-0")
	for _, f := range slices.Concat(lib.Functions, metric.Symbols()) {
		if strings.HasPrefix(f, "nvmlDeviceGet") && !slices.Contains(lib.RequiredFunctions, f) {
			s.set("fail " + f + " gpu * NOT_SUPPORTED")
		}
	}
	got := s.list(1)[0]
	names, values := facts(got)
	if got.Minor != -1 || got.Model != "" || got.PCI != "" || got.NUMANode != -1 || got.MemoryBytes != 0 ||
		len(got.DeviceNodes) != 0 || names != factNames || !strings.HasPrefix(values, ",,,,,,,,,,") {
		t.Errorf("got %+v, want empty fields", got)
	}
}

// TestFabricDomain checks the NVLink domain of a GPU that joins after Init, on several nodes and on one. The domain stays after a fault.
func TestFabricDomain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 2", "gpu * model gb200", "gpu * fabric_state 2", "gpu 1 fabric_clique 0")
		want := func(when, first, second string) {
			t.Helper()
			for i, want := range []string{first, second} {
				_, _ = s.Check(s.id(i))
				_, values := facts(s.list(2)[i])
				if !strings.HasSuffix(values, ",off,"+want) {
					t.Errorf("%s: GPU %d: got facts %s, want the domain %s", when, i, values, want)
				}
			}
		}
		const domain = "7374616e-642d-696e-2063-6c7573746572"
		want("before the join", ",", ",")
		s.set("gpu * fabric_state 3")
		time.Sleep(slowInterval)
		want("joined", domain+",1", ",")
		s.set("gpu 0 fabric_state 2")
		time.Sleep(slowInterval)
		want("after a fault", domain+",1", ",")
		s.set("gpu 0 fabric_state 3", "gpu 0 fabric_clique 4294967295")
		time.Sleep(slowInterval)
		want("in another clique", domain+",4294967295", ",")
	})
}

// TestInvalidPlatform has GPUs outside of a rack. The driver sets all bits of
// the position, or knows the module alone. Invalid bytes are replaced.
func TestInvalidPlatform(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu * platform_peer 1", "gpu 0 platform_slot 255", "gpu 0 platform_tray 255",
		"gpu 0 platform_host 255", "gpu 0 platform_module 255", "gpu 0 chassis_serial "+strings.Repeat("\xff", 13),
		"gpu 1 platform_slot 254", "gpu 1 platform_tray 0", "gpu 1 platform_host 1", "gpu 1 platform_module 2",
		"gpu 1 chassis_serial 18\xff")
	for i, want := range []string{",Hopper,,,,,,", ",Hopper,18\uFFFD,254,0,1,2,", ",Hopper,,,,,7,"} {
		if _, values := facts(s.devices[i]); !strings.Contains(values, want) {
			t.Errorf("position of GPU %d: got %q, want %q", i, values, want)
		}
	}
}

// TestOrder has UUIDs in another order than the driver's indices.
func TestOrder(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 0 uuid GPU-c", "gpu 1 uuid GPU-a", "gpu 2 uuid GPU-b",
		"gpu 0 temperature 30", "gpu 1 temperature 31", "gpu 2 temperature 32")
	for i, d := range s.devices {
		if want := []device.ID{"GPU-c", "GPU-a", "GPU-b"}[i]; d.ID != want || d.Index != i {
			t.Errorf("device %d: got %s with index %d, want %s", i, d.ID, d.Index, want)
		}
		s.wantValue(string(d.ID), i, `nvidia_gpu_temperature_celsius{sensor="gpu"}`, float64(30+i))
	}
	s.set("gpu 2 uuid GPU-c") // known GPUs are not probed again
	s.list(3)
}

// TestListingWithFaults has GPUs that fail. A GPU without a description is left
// out with an error; a known GPU remains listed.
func TestListingWithFaults(t *testing.T) {
	s := newFixture(t, nvml.Options{}, "gpus 6", "gpu 1 lost", "fail nvmlDeviceGetUUID gpu 2 UNKNOWN",
		"gpu 4 uuid GPU-same", "gpu 5 uuid GPU-same", "fail nvmlDeviceGetUUID gpu 3 SUCCESS")
	devices, err := s.tryList()
	if len(devices) != 2 || devices[0].Index != 0 || devices[1].Index != 4 {
		t.Fatalf("got %+v, want GPUs 0 and 4", devices)
	}
	const want = "GPU at index 1: get its handle: GPU_IS_LOST; GPU at index 2: get its UUID: UNKNOWN; " +
		"GPU at index 3: its UUID is empty; GPU at index 5: GPU-same was listed before"
	if err == nil || err.Error() != want || errors.Is(err, device.ErrNoDriver) {
		t.Errorf("got error %v\nwant %s", err, want)
	}
	s.clear("")
	s.set("gpus 4")
	s.list(4)
	s.set("gpu 1 lost", "fail nvmlDeviceGetHandleByIndex_v2 gpu 2 UNKNOWN")
	s.list(4)
	s.clear("")
	s.set("gpus 1")
	s.list(1)
	_, checkErr := s.Check("GPU-gone")
	_, readErr := s.Read("GPU-gone")
	_, processErr := s.Processes(device.Device{GPU: "GPU-gone"})
	if _, known := s.ReadProcessUsage("GPU-gone"); known || checkErr == nil || readErr == nil || processErr == nil {
		t.Error("calls about a GPU that is not listed: got no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if devices, err := s.Devices(ctx); len(devices) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: got %d devices, error %v, want Canceled", len(devices), err)
	}
	s.values(0) // the previous listing is still valid
}

// TestDriverFails has calls that fail for all GPUs alike. The list is nil,
// unlike that of a driver without GPUs, of GPUs with faults of their own, and
// of an absent driver.
func TestDriverFails(t *testing.T) {
	const handle = "fail nvmlDeviceGetHandleByIndex_v2 gpu "
	for _, row := range []struct {
		lines           []string
		failing, absent bool
		errText         string
	}{
		{[]string{"fail nvmlInit_v2 gpu - UNKNOWN"}, true, false, "initialize NVML: UNKNOWN"},
		{[]string{"fail nvmlInit_v2 gpu - NO_PERMISSION"}, true, false, "initialize NVML: NO_PERMISSION"},
		{[]string{"fail nvmlInit_v2 gpu - DRIVER_NOT_LOADED"}, false, true, "initialize NVML: DRIVER_NOT_LOADED"},
		{[]string{"fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH"}, false, true, "initialize NVML: "},
		{[]string{"fail nvmlDeviceGetCount_v2 gpu - UNKNOWN"}, true, false, "count GPUs: UNKNOWN"},
		{[]string{handle + "* UNKNOWN"}, true, false, "index 2: get its handle: UNKNOWN"},
		{[]string{"fail nvmlDeviceGetUUID gpu * NO_PERMISSION"}, true, false, "index 0: get its UUID: NO_PERMISSION"},
		{[]string{"gpu * lost"}, false, false, "GPU_IS_LOST"},
		{[]string{handle + "* UNKNOWN", handle + "1 GPU_IS_LOST"}, false, false, "index 0: get its handle: UNKNOWN"},
		{[]string{"fail nvmlDeviceGetCount_v2 gpu - SUCCESS"}, false, false, ""}, // the count is 0
	} {
		s := newFixture(t, nvml.Options{}, append(row.lines, "gpus 3")...)
		devices, err := s.tryList()
		if (devices == nil) != (row.failing || row.absent) || len(devices) > 0 || (err == nil) != (row.errText == "") ||
			errors.Is(err, device.ErrNoDriver) != row.absent || err != nil && !strings.Contains(err.Error(), row.errText) {
			t.Errorf("%v: got devices %#v, error %v, want failing: %v, absent: %v", row.lines, devices, err, row.failing,
				row.absent)
		}
		s.Close()
	}
}

// resets returns the number of resets of a GPU.
func (s *fixture) resets(i int) uint64 {
	s.Helper()
	evidence, err := s.Check(s.id(i))
	s.must(err)
	return evidence.Resets
}

// TestRestartedDriver lets the driver lose its Init, which resets all GPUs, and
// closes the library, which resets none. A GPU may be reset while it is closed.
func TestRestartedDriver(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu * energy 9000")
	want := func(what string, gpu0, gpu1 uint64) {
		t.Helper()
		s.list(2)
		if a, b := s.resets(0), s.resets(1); a != gpu0 || b != gpu1 {
			t.Errorf("%s: got %d and %d resets, want %d and %d", what, a, b, gpu0, gpu1)
		}
	}
	want("at first", 0, 0)
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.tryList(); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Devices: got %v, want ErrNoDriver", err)
	}
	s.wantCallsFail()
	s.clear("fail")
	want("after a lost Init", 1, 1)
	s.Close()
	s.wantCallsFail()
	s.Close()
	want("after Close", 1, 1)
	s.Close()
	s.set("gpu 1 energy 5")
	want("reset while closed", 1, 2)
}

// TestConfidentialComputing has GPUs that do not accept work yet. All checks
// fail, without a fault of a GPU, until a listing finds them ready.
func TestConfidentialComputing(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	want := func(state string, usable bool) {
		t.Helper()
		s.list(2)
		for i := range 2 {
			_, err := s.Check(s.id(i))
			fault, isFault := errors.AsType[*device.Fault](err)
			if isFault == usable || isFault && (fault.Reason != "confidential_computing" || !fault.External) {
				t.Errorf("%s: check of GPU %d: got %v, want usable: %v", state, i, err, usable)
			}
		}
		if got := s.Library().NotReady; got == usable {
			t.Errorf("%s: NotReady: got %v", state, got)
		}
	}
	for _, state := range []string{"none", "off", "unready", "on", "devtools"} {
		s.Close() // Init reads the mode
		s.set("confidential " + state)
		want(state, state != "unready")
	}
	s.set("confidential unready")
	want("not ready after a listing", false)
	s.set("confidential on")
	want("ready later", true)
	s.set("fail nvmlSystemGetConfComputeGpusReadyState gpu - UNKNOWN") // unknown is no reason
	want("unknown", true)
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
	s.register()
	callsOnGPU()
	if n := callsOnGPU(); n > 0 {
		t.Errorf("the driver reports changes: got %d calls, want 0", n)
	}
}

func TestProcesses(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 1 mig_mode 1",
		"gpu 1 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a", "gpu 1 slice 1 3g.40gb gi 2 ci 0 uuid MIG-b",
		"gpu 0 process 4711 1000", "gpu 0 process 12 1000",
		"gpu 1 process 77 1000 gi 1 ci 0", "gpu 1 process 78 1000 gi 2 ci 0")
	devices := s.list(5)
	for i, want := range [][]uint32{{12, 4711}, {77, 78}, {77}, {78}, {}} {
		if got, err := s.Processes(devices[i]); err != nil || !slices.Equal(got, want) {
			t.Errorf("processes on %s: got %v, %v, want %v", devices[i].ID, got, err, want)
		}
	}
	s.set("fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NOT_SUPPORTED")
	if got, err := s.Processes(devices[0]); err != nil || len(got) > 0 {
		t.Errorf("unsupported list: got %v, %v, want none", got, err)
	}
	s.set("gpu 2 lost")
	if _, err := s.Processes(devices[4]); !errors.Is(err, device.ErrLost) {
		t.Errorf("lost GPU: got %v, want ErrLost", err)
	}
}

// TestConcurrentCalls makes all calls concurrently while GPUs are lost, return
// and are partitioned, and the library restarts. The test is for the race
// detector.
func TestConcurrentCalls(t *testing.T) {
	s := newListedFixture(t, "gpus 4")
	ctx, cancel := context.WithCancel(t.Context())
	var callers, waiter sync.WaitGroup
	for i := range 4 {
		id := s.id(i)
		callers.Go(func() {
			for range 200 {
				samples, err := s.Read(id)
				if err == nil && (len(samples) == 0 || samples[0].Device != device.ID(id)) {
					t.Errorf("%s: got samples %v, want some of the GPU", id, samples)
				}
				s.Check(id) //nolint:errcheck // the GPU may be lost
			}
		})
	}
	callers.Go(func() {
		for range 200 {
			s.Devices(ctx) //nolint:errcheck // the library may be shut down
		}
	})
	callers.Go(func() {
		for range 5 {
			for _, line := range []string{"gpu 2 lost", "fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED"} {
				s.set(line)
				s.sendEvent(1, "xid 31")
			}
			for _, line := range []string{
				"gpu 3 mig_mode 1", "gpu 3 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a",
				"gpu 3 slice 0 2g.20gb gi 1 ci 0 uuid MIG-b",
			} {
				s.set(line)
				s.sendEvent(3, "type 0x100")
				s.sendEvent(3, "xid 31 gi 1 ci 0")
			}
			s.clear("fail")
			s.clear("gpu")
		}
	})
	waiter.Go(func() {
		for ctx.Err() == nil {
			s.Wait(ctx) //nolint:errcheck // as above
		}
	})
	callers.Wait()
	cancel()
	waiter.Wait()
	s.list(4)
	for i := range 4 {
		s.values(i)
	}
}

// linkMatrix formats the links as rows: "0: - 18n 18s", the number of NVLinks
// and a letter for the path. A GPU that is missing as A has no row.
func (s *fixture) linkMatrix() (rows []string, err error) {
	s.Helper()
	links, err := s.Links(context.Background())
	for i, a := range s.devices {
		row := fmt.Sprintf("%d:", i)
		found := false
		for _, b := range s.devices {
			at := slices.IndexFunc(links, func(l device.Link) bool { return l.A == a.GPU && l.B == b.GPU })
			if at < 0 {
				row += " -"
				continue
			}
			found = true
			row += fmt.Sprintf(" %d%c", links[at].NVLinks, "?bpxhns"[links[at].Path])
		}
		if found {
			rows = append(rows, row)
		}
	}
	return rows, err
}

func TestLinks(t *testing.T) {
	const none = "gpu * link 0-17 none"
	for what, c := range map[string]struct {
		lines, want []string
	}{
		"all NVLinks through switches": {
			[]string{"gpus 3", "ancestor 0 2 system"}, []string{"0: - 18n 18s", "1: 18n - 18n", "2: 18s 18n -"},
		},
		"links of one GPU are down": {[]string{"gpus 2", "gpu 1 link 3-6 off"}, []string{"0: - 18n", "1: 14n -"}},
		"pairs, one lane down at one end": {
			[]string{
				"gpus 4", none, "gpu 0 link 0-3 gpu 1", "gpu 1 link 0-3 gpu 0", "gpu 1 link 2 off",
				"gpu 2 link 0-3 gpu 3", "gpu 3 link 0-3 gpu 2",
				"ancestor 0 1 single", "ancestor 2 3 internal", "ancestor 0 2 multiple", "ancestor 0 3 hostbridge",
			},
			[]string{"0: - 4p 0x 0h", "1: 3p - 0n 0n", "2: 0x 0n - 4b", "3: 0h 0n 4b -"},
		},
		"PCIe only": {[]string{"gpus 2", none}, []string{"0: - 0n", "1: 0n -"}},
		"link to an absent GPU": {
			[]string{"gpus 2", none, "gpu 0 link 0-3 gpu 7", "gpu 1 link 0 off"}, []string{"0: - 0n", "1: 0n -"},
		},
		"switches out of reach of one GPU": {
			[]string{"gpus 3", "gpu 2 link 0-17 none", "gpu 2 link 0-1 off"},
			[]string{"0: - 18n 0n", "1: 18n - 0n", "2: 0n 0n -"},
		},
		"pairs without a level": {
			[]string{"gpus 2", none, "fail nvmlDeviceGetTopologyCommonAncestor gpu * NOT_SUPPORTED"},
			[]string{"0: - 0?", "1: 0? -"},
		},
		"a GPU alone": {[]string{"gpus 1"}, nil},
		"short calls of a reading": {
			[]string{"gpus 2", "slow nvmlDeviceGetNvLinkState gpu * 1ms"}, []string{"0: - 18n", "1: 18n -"},
		},
	} {
		s := newListedFixture(t, c.lines...)
		ctx, cancel := context.WithCancel(t.Context())
		ended, id := make(chan struct{}), s.id(0)
		go func() { // ends with ctx
			defer close(ended)
			for ctx.Err() == nil {
				s.Read(id) //nolint:errcheck // keeps the GPU busy
				time.Sleep(5 * time.Millisecond)
			}
		}()
		got, err := s.linkMatrix()
		cancel()
		<-ended
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v\nwant %q", what, got, err, c.want)
		}
		s.Close()
	}
}

// TestLinksWithFaults has GPUs that fail. The links of the other GPUs are
// complete, and the error has the names of the failed GPUs.
func TestLinksWithFaults(t *testing.T) {
	for _, c := range []struct {
		line, want string
		rows       []string
		calls      uint64 // on GPU 1
	}{
		{"gpu 1 lost", "GPU-1: NVLink 0: GPU_IS_LOST", []string{"0: - 0? 18n", "2: 18n 0? -"}, 1},
		{"fail nvmlDeviceGetNvLinkState gpu 1 RESET_REQUIRED", "GPU-1: NVLink 0: RESET_REQUIRED", []string{"0: - 0? 18n", "2: 18n 0? -"}, 1},
		{
			"fail nvmlDeviceGetNvLinkRemoteDeviceType gpu 1 UNKNOWN", "GPU-1: NVLink 17: UNKNOWN",
			[]string{"0: - 0n 18n", "1: 0n - 0n", "2: 18n 0n -"},
			38,
		},
		{
			"fail nvmlDeviceGetTopologyCommonAncestor gpu 1 UNKNOWN", "GPU-1: path to GPU-0",
			[]string{"0: - 18? 18n", "1: 18? - 18n", "2: 18n 18n -"},
			38,
		},
	} {
		s := newListedFixture(t, "gpus 3", "gpu 1 uuid GPU-1", "gpu 2 uuid GPU-2")
		s.set(c.line)
		before := s.calls()
		got, err := s.linkMatrix()
		if err == nil || !strings.Contains(err.Error(), c.want) || !slices.Equal(got, c.rows) {
			t.Errorf("%s: got %q, %v\nwant %q, %s", c.line, got, err, c.rows, c.want)
		}
		expect.Equal(t, s.calls().Since(before).GPUTotal(1), c.calls, c.line, "calls on the GPU")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before = s.calls()
		if links, err := s.Links(ctx); links != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of ctx: got %v, %v, want Canceled", links, err)
		}
		expect.Equal(t, s.calls().Since(before).GPUTotal(0)+s.calls().Since(before).GPUTotal(nvmltest.NoGPU), 0,
			"calls after the end of ctx")
		s.Close()
	}
}

// TestLibraryWithoutLinkTypes finds the remote end of a link by its PCI
// address.
func TestLibraryWithoutLinkTypes(t *testing.T) {
	withLibrary(t, []string{"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"},
		[]string{"gpus 3", "gpu 0 link 0-17 none", "gpu 0 link 0-3 gpu 1"},
		func(s *fixture) {
			s.list(3)
			if got, err := s.linkMatrix(); err != nil ||
				!slices.Equal(got, []string{"0: - 4n 0n", "1: 0n - 0n", "2: 0n 0n -"}) {
				s.Errorf("got %q, %v, want four NVLinks of GPU 0", got, err)
			}
		})
}
