package nvml

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// inChildWithLibrary runs the body in a process of its own with the library, so
// that other tests make no calls.
func inChildWithLibrary(t *testing.T, body func(t *testing.T, dir string)) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, body)
}

// wantOneCallPerGPU requires that no GPU ever had two concurrent calls.
func (s *backendFixture) wantOneCallPerGPU() {
	s.Helper()
	calls := s.calls()
	for i := range nvmltest.MaxGPUs {
		if n := calls.MaxInFlight(i); n > 1 {
			s.Errorf("concurrent calls on GPU %d: got %d, want at most 1", i, n)
		}
	}
}

// timedList lists n devices and returns the duration. With an index, the
// listing must report that index only.
func (s *backendFixture) timedList(n int, index string) time.Duration {
	s.Helper()
	began := time.Now()
	devices, err := s.Devices(context.Background())
	took := time.Since(began)
	if len(devices) != n || (err != nil) != (index != "") || err != nil &&
		err.Error() != "GPU at index "+index+": it does not respond" {
		s.Errorf("got %d devices, error %v; want %d, and an error for index %q", len(devices), err, n, index)
	}
	return took
}

// TestHangBeforeListing has one of eight GPUs hang before the first listing.
// The other GPUs are listed and read. The hanging GPU gets no other call, and
// is listed after the call.
func TestHangBeforeListing(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "hang * gpu 1")
		if took := s.timedList(7, "1"); took < newGPUTimeout || took > newGPUTimeout+testTimeout {
			t.Errorf("duration of the first listing: got %s, want at least newGPUTimeout", took)
		}
		if took := s.timedList(7, "1"); took >= newGPUTimeout {
			t.Errorf("duration of the second listing: got %s, want less than newGPUTimeout", took)
		}
		for i := range 8 {
			if i != 1 {
				s.values(i)
			}
		}
		s.waitForRegistration()
		s.sendEvent(7, "xid 31")
		if got := s.nextEvent(); got.GPU != s.id(7) {
			t.Errorf("event: got %+v, want one of GPU 7", got)
		}
		if n := s.calls().GPUTotal(1); n != 1 || s.calls().InFlight(1) != 1 {
			t.Errorf("calls on the hanging GPU: got %d, %d in flight, want 1 and 1", n, s.calls().InFlight(1))
		}
		s.clear("hang")
		s.eventually("the hang ended", func() bool { return s.probes[1].isDone() })
		s.timedList(8, "")
		s.values(1)
		if n := s.calls().Count("nvmlDeviceGetUUID", 1); n != 1 {
			t.Errorf("calls for the UUID: got %d, want 1", n)
		}
		s.wantOneCallPerGPU()
	})
}

// TestSlowDriver has a driver that starts the GPUs one after the other, the
// first GPU last. All are listed, as none takes longer than newGPUTimeout after
// the previous one.
func TestSlowDriver(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "slow nvmlDeviceGetUUID gpu 0 5000ms",
		"slow nvmlDeviceGetUUID gpu 1 1500ms")
	s.timedList(2, "")
}

// TestHangInInitialization has a GPU that returns its UUID and hangs at the
// first values. The GPU is listed, so that checks can fail, and gets no other
// call.
func TestHangInInitialization(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		for _, function := range []string{lib.FieldValuesSymbol, "nvmlDeviceGetMaxPcieLinkWidth"} {
			s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 3", "hang "+function+" gpu 1")
			s.timedList(3, "")
			s.values(0)
			s.values(2)
			checked := make(chan error, 1)
			id := s.id(1)
			go func() { _, err := s.Check(id); checked <- err }() // ends with the hang; received below
			s.timedList(3, "")
			if n := s.calls().InFlight(1); n != 1 || s.Idle() {
				t.Errorf("%s: got %d calls in flight, idle %v, want 1, false", function, n, s.Idle())
			}
			s.clear("hang")
			s.must(<-checked)
			s.eventually("the hang ended", s.Idle)
			s.timedList(3, "")
			got := s.values(1)
			for _, name := range []string{
				"nvidia_gpu_persistence_mode_enabled", "nvidia_gpu_pcie_link_width_max",
				"nvidia_gpu_nvlink_links_up", `nvidia_gpu_feature_supported{feature="gpm"}`,
			} {
				if _, ok := got[name]; !ok {
					t.Errorf("%s: after the hang: %s is absent", function, name)
				}
			}
			s.Close()
		}
	})
}

// TestMonitorWithHangingGPU is TestHangBeforeListing with a Monitor and an
// Inventory.
func TestMonitorWithHangingGPU(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "hang * gpu 1")
		inventory := &device.Inventory{}
		readers := device.NewReaders(s)
		monitor := device.NewMonitor(s, readers, inventory, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(ctx) }() // ends with cancel; received below
		healthy := func(n int) func() bool {
			return func() bool {
				statuses, _ := inventory.Get()
				for _, status := range statuses {
					if !status.Healthy {
						return false
					}
				}
				return len(statuses) == n
			}
		}
		s.eventually("seven GPUs are healthy", healthy(7))
		if d := monitor.Driver(); d.State != device.DriverUp || d.Err == nil ||
			!strings.Contains(d.Err.Error(), "index 1") {
			t.Errorf("driver: got %+v, want up with an error about index 1", d)
		}
		s.clear("hang")
		s.eventually("all GPUs are healthy", healthy(8))
		cancel()
		s.must(<-ended)
		if !monitor.Drain(context.Background()) || !readers.Drain(context.Background()) {
			t.Error("Drain: got false, want true")
		}
		s.wantOneCallPerGPU()
	})
}

// TestHangInListing has a known GPU hang in a listing. The GPU remains listed,
// readings wait, and other changes are found.
func TestHangInListing(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "gpu 1 event_types 0x8")
		s.timedList(8, "")
		s.waitForRegistration()
		stuck, id := s.id(1), s.id(2)
		s.set("hang * gpu 1")
		if took := s.timedList(8, ""); took < knownGPUTimeout || took > knownGPUTimeout+testTimeout/4 {
			t.Errorf("duration of the listing: got %s, want about knownGPUTimeout", took)
		}
		read := make(chan error, 1)
		go func() { _, err := s.Read(stuck); read <- err }() // ends with the hang; received below
		links, err := s.Links(context.Background())
		if len(links) != 7*7 || err == nil || !strings.Contains(err.Error(), string(stuck)+": it does not respond") {
			t.Errorf("got %d links, error %v; want the links of the other GPUs", len(links), err)
		}
		s.set("gpus 9")
		if took := s.timedList(9, ""); took > knownGPUTimeout/2 {
			t.Errorf("duration of the next listing: got %s, want at most half of knownGPUTimeout", took)
		}
		s.waitForRegistration() // includes the new GPU
		s.sendEvent(2, "xid 79")
		s.sendEvent(8, "xid 31")
		for _, want := range []device.GPU{id, s.id(8)} {
			if got := s.nextEvent(); got.GPU != want {
				t.Errorf("event: got %+v, want one of %s", got, want)
			}
		}
		if n := s.calls().InFlight(1); n != 1 {
			t.Errorf("got %d hanging calls, want 1", n)
		}
		s.clear("hang")
		if err := <-read; err != nil {
			t.Errorf("reading after the hang: %v", err)
		}
		s.timedList(9, "")
		s.values(1)
		s.sendEvent(1, "xid 13")
		if got := s.nextEvent(); got.GPU != stuck {
			t.Errorf("event after the hang: got %+v, want one of %s", got, stuck)
		}
		s.wantOneCallPerGPU()
	})
}

// TestResultOfEarlierInit restarts the library during a hanging call. The
// result arrives during the next listing, with invalid handles, so the GPU is
// probed again.
func TestResultOfEarlierInit(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "driver 570.1", "hang nvmlDeviceGetUUID gpu 1")
	s.timedList(1, "1")
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("listing: got %v, want ErrNoDriver", err)
	}
	s.clear("fail")
	s.set("driver 580.1", "hang nvmlDeviceGetUUID gpu 0") // delays the listing
	before := s.calls()
	listed := make(chan []device.Device, 1)
	go func() { // ends with the hang; received below
		devices, err := s.Devices(context.Background())
		if err != nil {
			t.Error(err)
		}
		listed <- devices
	}()
	s.eventually("the listing waits", func() bool {
		return s.calls().Since(before).
			Count("nvmlDeviceGetHandleByIndex_v2", 0) > 0
	})
	s.clear("hang nvmlDeviceGetUUID gpu 1")
	s.eventually("the old call returned", func() bool { return s.calls().InFlight(1) == 0 })
	s.clear("hang")
	devices := <-listed
	for _, d := range devices {
		for _, f := range d.InfoLabels {
			if f.Name == "driver_version" && f.Value != "580.1" {
				t.Errorf("driver_version of %s: got %s, want 580.1", d.ID, f.Value)
			}
		}
	}
	if n := s.calls().Since(before).Count("nvmlDeviceGetHandleByIndex_v2", 1); len(devices) != 2 || n != 1 {
		t.Errorf("got %d devices and %d calls for the GPU's handle, want 2 and 1", len(devices), n)
	}
}

// TestHangs lets the calls of a GPU hang. Readings leave the GPU out, and
// listings, waits and all calls about other GPUs return.
func TestHangs(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.set("hang * gpu 1")
	stuck, readers := s.id(1), device.NewReaders(s)
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		readings := readers.Read(ctx, []device.GPU{stuck, s.id(0)}, true)
		cancel()
		if !errors.Is(readings[0].Err, device.ErrStalled) || readings[1].Err != nil {
			t.Errorf("reading %d: got errors %v and %v, want ErrStalled and none", i, readings[0].Err, readings[1].Err)
		}
	}
	if readers.Check(stuck, func(device.ResetEvidence, error) {}) {
		t.Error("check: got a call, want none")
	}
	s.values(0)
	s.list(2)
	s.waitForRegistration()
	s.sendEvent(0, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("event of the other GPU: got %+v", got)
	}
	if n := s.calls().InFlight(1); n != 1 {
		t.Errorf("got %d hanging calls, want 1", n)
	}
	s.clear("hang")
	readers.Drain(context.Background())
	s.values(1)
	s.waitForRegistration()
	s.sendEvent(1, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(1) {
		t.Errorf("event after the hang: got %+v", got)
	}
}
