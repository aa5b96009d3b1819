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

// inChildWithLibrary runs the body in a process that makes no other calls.
func inChildWithLibrary(t *testing.T, body func(t *testing.T, dir string)) {
	library := filepath.Join(wholeLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, body)
}

// wantOneCallPerGPU checks that no GPU ever had two calls at the same time.
func (s *backendFixture) wantOneCallPerGPU() {
	s.Helper()
	calls := s.calls()
	for i := range nvmltest.MaxGPUs {
		if n := calls.MaxInFlight(i); n > 1 {
			s.Errorf("GPU %d had %d calls at the same time", i, n)
		}
	}
}

// timedList lists n devices and returns the duration. With an index, the listing must fail for that index only.
func (s *backendFixture) timedList(n int, index string) time.Duration {
	s.Helper()
	began := time.Now()
	devices, err := s.Devices(context.Background())
	took := time.Since(began)
	if len(devices) != n || (err != nil) != (index != "") || err != nil && err.Error() != "GPU at index "+index+": it does not respond" {
		s.Errorf("%d devices are listed, error %v; want %d, and index %q be named", len(devices), err, n, index)
	}
	return took
}

// TestHangBeforeListing has one of eight GPUs hang before the first listing. The others are listed and read, the hanging GPU gets no other
// call, and is listed after the end of the call.
func TestHangBeforeListing(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "hang * gpu 1")
		if took := s.timedList(7, "1"); took < newGPUTimeout || took > newGPUTimeout+testTimeout {
			t.Errorf("the first listing took %s", took)
		}
		if took := s.timedList(7, "1"); took >= newGPUTimeout {
			t.Errorf("the second listing waits for %s again", took)
		}
		for i := range 8 {
			if i != 1 {
				s.values(i)
			}
		}
		s.waitForRegistration()
		s.sendEvent(7, "xid 31")
		if got := s.nextEvent(); got.GPU != s.id(7) {
			t.Errorf("got %+v", got)
		}
		if n := s.calls().GPUTotal(1); n != 1 || s.calls().InFlight(1) != 1 {
			t.Errorf("%d calls on the GPU that hangs, %d under way", n, s.calls().InFlight(1))
		}
		s.clear("hang")
		s.eventually("the GPU has answered", func() bool { return s.probes[1].isDone() })
		s.timedList(8, "")
		s.values(1)
		if n := s.calls().Count("nvmlDeviceGetUUID", 1); n != 1 {
			t.Errorf("%d calls for the UUID", n)
		}
		s.wantOneCallPerGPU()
	})
}

// TestSlowDriver has a driver that starts the GPUs one after the other, the first GPU last. All are listed, since none takes longer than
// newGPUTimeout after another.
func TestSlowDriver(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "slow nvmlDeviceGetUUID gpu 0 5000ms", "slow nvmlDeviceGetUUID gpu 1 1500ms")
	s.timedList(2, "")
}

// TestHangInInitialization has a GPU identify itself, and hang at the first values. The GPU is listed, so that checks can fail, and gets
// no other call.
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
				t.Errorf("%s: %d calls are under way, idle %v", function, n, s.Idle())
			}
			s.clear("hang")
			s.must(<-checked)
			s.eventually("it has answered", s.Idle)
			s.timedList(3, "")
			got := s.values(1)
			for _, name := range []string{"nvidia_gpu_persistence_mode_enabled", "nvidia_gpu_pcie_link_width_max", "nvidia_gpu_nvlink_links_up", `nvidia_gpu_feature_supported{feature="gpm"}`} {
				if _, ok := got[name]; !ok {
					t.Errorf("%s: after the hang it has no %s", function, name)
				}
			}
			s.Close()
		}
	})
}

// TestMonitorWithHangingGPU is the same from the inventory.
func TestMonitorWithHangingGPU(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "hang * gpu 1")
		board := &device.Inventory{}
		readers := device.NewReaders(s)
		monitor := device.NewMonitor(s, readers, board, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(ctx) }() // ends with cancel; received below
		healthy := func(n int) func() bool {
			return func() bool {
				statuses, _ := board.Get()
				for _, status := range statuses {
					if !status.Healthy {
						return false
					}
				}
				return len(statuses) == n
			}
		}
		s.eventually("seven GPUs are offered", healthy(7))
		if d := monitor.Driver(); d.State != device.DriverUp || d.Err == nil || !strings.Contains(d.Err.Error(), "index 1") {
			t.Errorf("the driver is %+v", d)
		}
		s.clear("hang")
		s.eventually("all are", healthy(8))
		cancel()
		s.must(<-ended)
		if !monitor.Drain(context.Background()) || !readers.Drain(context.Background()) {
			t.Error("calls are left")
		}
		s.wantOneCallPerGPU()
	})
}

// TestHangInListing has a known GPU hang in a listing. The GPU stays listed, readings wait, and other changes are found.
func TestHangInListing(t *testing.T) {
	inChildWithLibrary(t, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 8", "gpu 1 event_types 0x8")
		s.timedList(8, "")
		s.waitForRegistration()
		stuck, id := s.id(1), s.id(2)
		s.set("hang * gpu 1")
		if took := s.timedList(8, ""); took < knownGPUTimeout || took > knownGPUTimeout+testTimeout/4 {
			t.Errorf("a listing took %s", took)
		}
		reads := make(chan error, 2)
		for range cap(reads) {
			go func() { _, err := s.Read(stuck, nil); reads <- err }() // ends with the hang; received below
		}
		links, err := s.Links(context.Background())
		if len(links) != 7*7 || err == nil || !strings.Contains(err.Error(), string(stuck)+": it does not respond") {
			t.Errorf("%d links, error %v; want those of the others", len(links), err)
		}
		if err := <-reads; !errors.Is(err, device.ErrStalled) { // the other one waits
			t.Errorf("a reading: %v", err)
		}
		if _, err := s.Check(stuck); !errors.Is(err, device.ErrStalled) {
			t.Errorf("a check at the same time: %v", err)
		}
		s.set("gpus 9")
		if took := s.timedList(9, ""); took > knownGPUTimeout/2 {
			t.Errorf("the next listing took %s", took)
		}
		s.waitForRegistration() // with the new one
		s.sendEvent(2, "xid 79")
		s.sendEvent(8, "xid 31")
		for _, want := range []device.GPU{id, s.id(8)} {
			if got := s.nextEvent(); got.GPU != want {
				t.Errorf("got %+v, want one of %s", got, want)
			}
		}
		if n := s.calls().InFlight(1); n != 1 {
			t.Errorf("%d calls hang", n)
		}
		s.clear("hang")
		if err := <-reads; err != nil {
			t.Errorf("a reading after the hang: %v", err)
		}
		s.timedList(9, "")
		s.values(1)
		s.sendEvent(1, "xid 13")
		if got := s.nextEvent(); got.GPU != stuck {
			t.Errorf("got %+v", got)
		}
		s.wantOneCallPerGPU()
	})
}

// TestResultOfEarlierInit starts the library again during a hanging call. The result comes during the next listing, with invalid handles,
// so the GPU is examined again.
func TestResultOfEarlierInit(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "driver 570.1", "hang nvmlDeviceGetUUID gpu 1")
	s.timedList(1, "1")
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("got %v", err)
	}
	s.clear("fail")
	s.set("driver 580.1", "hang nvmlDeviceGetUUID gpu 0") // which keeps the listing waiting
	before := s.calls()
	listed := make(chan []device.Device, 1)
	go func() { // ends with the hang; received below
		devices, err := s.Devices(context.Background())
		if err != nil {
			t.Error(err)
		}
		listed <- devices
	}()
	s.eventually("the listing waits", func() bool { return s.calls().Since(before).Count("nvmlDeviceGetHandleByIndex_v2", 0) > 0 })
	s.clear("hang nvmlDeviceGetUUID gpu 1")
	s.eventually("the old question was answered", func() bool { return s.calls().InFlight(1) == 0 })
	s.clear("hang")
	devices := <-listed
	for _, d := range devices {
		for _, f := range d.InfoLabels {
			if f.Name == "driver_version" && f.Value != "580.1" {
				t.Errorf("%s is described as with driver %s", d.ID, f.Value)
			}
		}
	}
	if n := s.calls().Since(before).Count("nvmlDeviceGetHandleByIndex_v2", 1); len(devices) != 2 || n != 1 {
		t.Errorf("%d devices, and %d calls for the GPU's handle", len(devices), n)
	}
}

// TestHangs has the calls of a GPU hang. A second call about that GPU returns at once, and so do listings, waits and all calls about
// others.
func TestHangs(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.set("hang * gpu 1")
	stuck := s.id(1)
	done := make(chan error, 1)
	go func() { _, err := s.Read(stuck, nil); done <- err }() // ends with the hang; received below
	s.eventually("the call hangs", func() bool { return s.calls().InFlight(1) == 1 })
	if _, err := s.Read(stuck, nil); !errors.Is(err, device.ErrStalled) {
		t.Errorf("another reading: %v", err)
	}
	if _, err := s.Check(stuck); !errors.Is(err, device.ErrStalled) {
		t.Errorf("a check: %v", err)
	}
	s.values(0)
	s.list(2)
	s.waitForRegistration()
	s.sendEvent(0, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("got %+v", got)
	}
	if n := s.calls().InFlight(1); n != 1 {
		t.Errorf("%d calls hang", n)
	}
	s.clear("hang")
	s.must(<-done)
	s.values(1)
	s.waitForRegistration()
	s.sendEvent(1, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(1) {
		t.Errorf("got %+v", got)
	}
}
