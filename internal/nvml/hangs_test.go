package nvml_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// Timeouts of a listing, for a new and for a known GPU.
const (
	newGPUTimeout   = 4 * time.Second
	knownGPUTimeout = time.Second
)

// wantOneCallPerGPU requires that no GPU ever had two concurrent calls.
func (s *fixture) wantOneCallPerGPU() {
	s.Helper()
	for i := range nvmltest.MaxGPUs {
		if n := s.calls().MaxInFlight(i); n > 1 {
			s.Errorf("concurrent calls on GPU %d: got %d, want at most 1", i, n)
		}
	}
}

// wantOneHangingCall requires one call on GPU 1.
func (s *fixture) wantOneHangingCall(what string) {
	s.Helper()
	expect.Equal(s, s.calls().InFlight(1), 1, what, "calls in flight")
}

// endHang ends all hangs and the calls in the background.
func (s *fixture) endHang() {
	s.Helper()
	if s.Idle() {
		s.Error("Idle during the hang: got true, want false")
	}
	s.clear("hang")
	s.eventually("the hang ended", s.Idle)
}

// hangRead starts a reading of GPU 1 that hangs until the result is received.
func (s *fixture) hangRead() <-chan error {
	s.Helper()
	id, done := s.id(1), make(chan error, 1)
	s.set("hang nvmlDeviceGetFieldValues gpu 1")
	go func() { _, err := s.Read(id); done <- err }() // ends with the hang; received by the test
	s.eventually("the reading hangs", func() bool { return s.calls().InFlight(1) == 1 })
	return done
}

// timedList lists n devices and returns the duration. With an index, the
// listing must report that index only.
func (s *fixture) timedList(n int, index string) time.Duration {
	s.Helper()
	began := time.Now()
	devices, err := s.tryList()
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
	withLibrary(t, nil, []string{"gpus 8", "hang * gpu 1"}, func(s *fixture) {
		if took := s.timedList(7, "1"); took < newGPUTimeout || took > newGPUTimeout+testTimeout {
			s.Errorf("duration of the first listing: got %s, want at least newGPUTimeout", took)
		}
		if took := s.timedList(7, "1"); took >= newGPUTimeout {
			s.Errorf("duration of the second listing: got %s, want less than newGPUTimeout", took)
		}
		for _, i := range []int{0, 2, 3, 4, 5, 6, 7} {
			s.values(i)
		}
		s.register()
		s.wantXid("another GPU", 7)
		expect.Equal(s, s.calls().GPUTotal(1), 1, "calls on the hanging GPU")
		s.wantOneHangingCall("listing")
		s.endHang()
		s.timedList(8, "")
		s.values(1)
		expect.Equal(s, s.calls().Count("nvmlDeviceGetUUID", 1), 1, "calls for the UUID")
		s.wantOneCallPerGPU()
	})
}

// TestSlowDriver has a driver that starts the GPUs one after the other, the
// first GPU last. All are listed, as none takes longer than newGPUTimeout after
// the previous one.
func TestSlowDriver(t *testing.T) {
	lines := []string{"gpus 2", "slow nvmlDeviceGetUUID gpu 0 5000ms", "slow nvmlDeviceGetUUID gpu 1 1500ms"}
	withLibrary(t, nil, lines, func(s *fixture) { s.timedList(2, "") })
}

// TestHangInInitialization has a GPU that returns its UUID and hangs at the
// first values. The GPU is listed, so that checks can fail, and gets no other
// call.
func TestHangInInitialization(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	withLibrary(t, nil, []string{"gpus 3"}, func(s *fixture) {
		for _, function := range []string{lib.FieldValuesSymbol, "nvmlDeviceGetMaxPcieLinkWidth"} {
			s.Close()
			s.set("hang " + function + " gpu 1")
			s.timedList(3, "")
			s.values(0)
			s.values(2)
			checked := make(chan error, 1)
			id := s.id(1)
			go func() { _, err := s.Check(id); checked <- err }() // ends with the hang; received below
			s.timedList(3, "")
			s.wantOneHangingCall(function)
			s.endHang()
			s.must(<-checked)
			s.timedList(3, "")
			for _, name := range []string{
				"nvidia_gpu_persistence_mode_enabled", "nvidia_gpu_pcie_link_width_max",
				"nvidia_gpu_nvlink_links_up", `nvidia_gpu_feature_supported{feature="gpm"}`,
			} {
				if s.valueOf(1, name) < 0 {
					s.Errorf("%s: after the hang: %s is absent", function, name)
				}
			}
		}
	})
}

// TestHangInListing has a known GPU hang in a listing. The GPU remains listed,
// readings wait, and other changes are found.
func TestHangInListing(t *testing.T) {
	withLibrary(t, nil, []string{"gpus 8", "gpu 1 event_types 0x8"}, func(s *fixture) {
		s.timedList(8, "")
		s.register()
		stuck := s.id(1)
		s.set("hang * gpu 1")
		if took := s.timedList(8, ""); took < knownGPUTimeout || took > knownGPUTimeout+testTimeout/4 {
			s.Errorf("duration of the listing: got %s, want about knownGPUTimeout", took)
		}
		read := make(chan error, 1)
		go func() { _, err := s.Read(stuck); read <- err }() // ends with the hang; received below
		links, err := s.Links(context.Background())
		if len(links) != 7*7 || err == nil || !strings.Contains(err.Error(), string(stuck)+": it does not respond") {
			s.Errorf("got %d links, error %v; want the links of the other GPUs", len(links), err)
		}
		s.set("gpus 9")
		if took := s.timedList(9, ""); took > knownGPUTimeout/2 {
			s.Errorf("duration of the next listing: got %s, want at most half of knownGPUTimeout", took)
		}
		s.register() // includes the new GPU
		s.wantXid("another GPU", 2)
		s.wantXid("the new GPU", 8)
		s.wantOneHangingCall("listing")
		s.endHang()
		s.must(<-read)
		s.timedList(9, "")
		s.values(1)
		s.wantXid("after the hang", 1)
		s.wantOneCallPerGPU()
	})
}

// TestHangOfPartitionedGPU has a hanging reading. A listing makes no other
// call, and the MIG devices remain listed. If the GPU is no longer listed, its
// samples are freed after the call.
func TestHangOfPartitionedGPU(t *testing.T) {
	s := newListedFixture(t, partitionedGPU...)
	done := s.hangRead()
	before := s.calls()
	s.clear("gpu 1 slice")
	s.wantMIGDevices("during the hang", s.list(7), knownDevices...)
	expect.Equal(t, s.calls().Since(before).GPUTotal(1), 0, "calls on the hanging GPU")
	s.clear("hang")
	s.must(<-done)
	s.list(3)
	done = s.hangRead()
	samples := s.calls().GPMSamples()
	s.set("gpus 1")
	s.list(1)
	s.eventually("the samples of GPU 2 are freed", func() bool { return s.calls().GPMSamples() == samples-2 })
	s.clear("hang")
	<-done
	s.eventually("the samples are freed", func() bool { return s.calls().GPMSamples() == s.leakedSamples+2 })
}

// TestResultOfEarlierInit restarts the library during a hanging call. The
// result arrives during the next listing, with invalid handles, so the GPU is
// probed again.
func TestResultOfEarlierInit(t *testing.T) {
	s := newFixture(t, nvml.Options{}, "gpus 2", "driver 570.1", "hang nvmlDeviceGetUUID gpu 1")
	s.timedList(1, "1")
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.tryList(); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("listing: got %v, want ErrNoDriver", err)
	}
	s.clear("fail")
	s.set("driver 580.1", "hang nvmlDeviceGetUUID gpu 0") // delays the listing
	before := s.calls()
	listed := make(chan error, 1)
	go func() { _, err := s.tryList(); listed <- err }() // ends with the hang; received below
	s.eventually("the listing waits", func() bool {
		return s.calls().Since(before).Count("nvmlDeviceGetHandleByIndex_v2", 0) > 0
	})
	s.clear("hang nvmlDeviceGetUUID gpu 1")
	s.eventually("the old call returned", func() bool { return s.calls().InFlight(1) == 0 })
	s.clear("hang")
	s.must(<-listed)
	for _, d := range s.devices {
		if _, values := facts(d); !strings.Contains(values, ",580.1,") {
			t.Errorf("facts of %s: got %s, want driver 580.1", d.ID, values)
		}
	}
	n := s.calls().Since(before).Count("nvmlDeviceGetHandleByIndex_v2", 1)
	if len(s.devices) != 2 || n != 1 {
		t.Errorf("got %d devices and %d calls for the GPU's handle, want 2 and 1", len(s.devices), n)
	}
}

// TestHangInReading lets the calls of a GPU hang. Readings leave the GPU out,
// and listings, waits and all calls about other GPUs return.
func TestHangInReading(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.set("hang * gpu 1")
	stuck, readers := s.id(1), health.NewReaders(s)
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		readings := readers.Read(ctx, []device.GPU{stuck, s.id(0)}, true)
		cancel()
		if !errors.Is(readings[0].Err, device.ErrStalled) || readings[1].Err != nil {
			t.Errorf("reading %d: got errors %v and %v, want ErrStalled and none", i, readings[0].Err, readings[1].Err)
		}
	}
	s.list(2)
	s.register()
	s.wantXid("the other GPU", 0)
	s.wantOneHangingCall("reading")
	s.clear("hang")
	readers.Drain(t.Context())
	s.values(1)
	s.register()
	s.wantXid("after the hang", 1)
}

// TestHangInRegistration has a GPU that hangs only in its registration. Events
// of the other GPUs arrive, and after the hang also those of the GPU.
func TestHangInRegistration(t *testing.T) {
	for _, function := range []string{"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"} {
		s := newListedFixture(t, "gpus 3", "hang "+function+" gpu 1")
		open, stuck := s.openEventSets()+1, s.id(1)
		_, err := s.Wait(t.Context())
		expect.Error(t, err, string(stuck)+": it does not respond", function, "Wait")
		s.wantXid(function+": another GPU", 2)
		s.wantOneHangingCall(function)
		s.endHang()
		s.resets(1) // a check
		s.register()
		s.wantXid(function+": after the hang", 1)
		s.wantOpenSets(function, open)
		s.Close()
	}
}

// TestHangInLinks has hangs in each call about links, and in a reading. The
// links of the other GPUs are complete, and the GPU gets no other call.
func TestHangInLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	const pair = "nvmlDeviceGetTopologyCommonAncestor"
	for _, c := range []struct {
		hang, wantErr string
		rows          []string
	}{
		{"", "GPU-1: it does not respond", []string{"0: - 0? 18n", "2: 18n 0? -"}},
		{"nvmlDeviceGetNvLinkState gpu 1", "GPU-1: it does not respond", []string{"0: - 0? 18n", "2: 18n 0? -"}},
		{
			pair + " gpu *", "GPU-1: it does not respond; GPU-2: path to GPU-0: it does not respond",
			[]string{"0: - 0? 18?", "2: 18? 0? -"},
		}, // only the first pair is locked
	} {
		s := newListedFixture(t, "gpus 3", "gpu 0 uuid GPU-0", "gpu 1 uuid GPU-1", "gpu 2 uuid GPU-2")
		read := make(<-chan error)
		if c.hang == "" {
			read = s.hangRead()
		} else {
			s.set("hang " + c.hang)
		}
		before := s.calls()
		if got, err := s.linkMatrix(); !slices.Equal(got, c.rows) || err == nil || err.Error() != c.wantErr {
			t.Errorf("%s: got %q, %v\nwant %q, %s", c.hang, got, err, c.rows, c.wantErr)
		}
		if n := s.calls().Since(before).Count(pair, 2); c.hang == pair+" gpu *" && n != 0 {
			t.Errorf("calls about another GPU and the hanging pair: got %d, want 0", n)
		}
		s.wantOneHangingCall(c.hang)
		s.list(3)
		s.values(2)
		s.endHang()
		if c.hang == "" {
			s.must(<-read)
		}
		s.values(0)
		s.values(1)
		if got, err := s.linkMatrix(); err != nil || len(got) != 3 {
			t.Errorf("%s: after the hang: got %q, %v, want three rows", c.hang, got, err)
		}
		s.Close()
	}
}
