package collect

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// uses reads a GPU and asks who uses it, in the order of pids.
func (s *readerFixture) uses(i int) ([]device.ProcessUsage, bool) {
	s.Helper()
	_, uses, known := s.collectAll(i)
	slices.SortFunc(uses, func(a, b device.ProcessUsage) int { return cmp.Compare(a.PID, b.PID) })
	return uses, known
}

func TestUses(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 uuid GPU-0",
		"gpu 0 process 11 1000 sm 50 mem 20", "gpu 0 process 12 2000 type compute+graphics+mps enc 10 dec 5",
		"gpu 0 process 13 none type mps", "gpu 0 process 14 3000 type graphics", "gpu 0 process 0 5")
	var got []device.ProcessUsage
	// The driver tells of means over the sixth of a second that ended last.
	s.eventually("shares are told", func() bool {
		uses, known := s.uses(0)
		if !known {
			t.Fatal("it is not known who uses it")
		}
		got = uses
		return uses[0].SM > 0
	})
	want := []device.ProcessUsage{
		{Device: "GPU-0", PID: 11, MemoryBytes: 1000, SM: 0.5, MemoryController: 0.2},
		{Device: "GPU-0", PID: 12, MemoryBytes: 2000, Encoder: 0.1, Decoder: 0.05},
		{Device: "GPU-0", PID: 13, MemoryBytes: notReported},
		{Device: "GPU-0", PID: 14, MemoryBytes: 3000},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if uses, known := s.uses(1); !known || len(uses) != 0 {
		t.Errorf("nobody uses it: %v, %v", uses, known)
	}
	kept := []device.ProcessUsage{{PID: 1}}
	if uses, _ := s.ReadProcessUsage(s.id(1), kept); len(uses) != 1 || uses[0].PID != 1 {
		t.Errorf("got %v", uses)
	}
}

func TestUsesOfSlices(t *testing.T) {
	s := newListedFixture(t, append(twoInstanceGPU, "gpu 0 process 1 100 gi 7 ci 0", "gpu 0 process 2 200 gi 2 ci 1", "gpu 0 process 3 300 gi 2 ci 0",
		"gpu 0 process 4 400 gi 5 ci 0", "gpu 0 process 6 50 gi 2 ci 0")...)
	got, known := s.uses(0)
	slices.SortStableFunc(got, func(a, b device.ProcessUsage) int { return cmp.Compare(a.Device, b.Device) })
	none := device.ProcessUsage{SM: notReported, MemoryController: notReported, Encoder: notReported, Decoder: notReported}
	use := func(of device.ID, pid uint32, bytes float64) device.ProcessUsage {
		u := none
		u.Device, u.PID, u.MemoryBytes = of, pid, bytes
		return u
	}
	want := []device.ProcessUsage{use("GPU-0", 4, 400), use("MIG-a", 1, 100), use("MIG-b", 3, 300), use("MIG-b", 6, 50), use("MIG-c", 2, 200)}
	if !known || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, known, want)
	}
	s.set("gpu 0 process 5 100") // the ids are told to the privileged alone
	if got, known := s.uses(0); known || len(got) > 0 {
		t.Errorf("without privilege: %v, %v", got, known)
	}
}

// TestUsesUnknown has the driver not say who uses a GPU: that is not nobody.
func TestUsesUnknown(t *testing.T) {
	for _, lines := range [][]string{
		{"fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NOT_SUPPORTED"}, // a vGPU
		{"fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NO_PERMISSION"},
		{"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 UNKNOWN"},
		{"fail nvmlDeviceGetMPSComputeRunningProcesses_v3 gpu 0 UNKNOWN"},
		{"driver 535.86.05"},
	} {
		s := newListedFixture(t, append([]string{"gpus 1", "gpu 0 process 11 1000"}, lines...)...)
		if got, known := s.uses(0); known || len(got) > 0 {
			t.Errorf("%v: %v, %v", lines, got, known)
		}
		s.Close()
	}
}

// TestUsesInPart has the driver lack a list, or what each process used.
func TestUsesInPart(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000 sm 50", "gpu 0 process 12 1000 type graphics",
		"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 NOT_SUPPORTED", "fail nvmlDeviceGetProcessUtilization gpu 0 NOT_SUPPORTED")
	for range 2 {
		got, known := s.uses(0)
		if !known || len(got) != 1 || got[0].PID != 11 || got[0].SM != notReported {
			t.Errorf("got %+v, %v", got, known)
		}
	}
	s.set("fail nvmlDeviceGetProcessUtilization gpu 0 NOT_FOUND") // idle
	if got, known := s.uses(0); !known || got[0].SM != 0 || got[0].Decoder != 0 {
		t.Errorf("idle: %+v, %v", got, known)
	}
}

// TestSharesOfCloseCollections reads a busy process again before the driver has a new sample
// of it, as another reader does: its share is what it was.
func TestSharesOfCloseCollections(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000 sm 50", "gpu 0 process 12 1000")
	share := func() (busy, idle float64) {
		t.Helper()
		uses, known := s.uses(0)
		if !known || len(uses) != 2 {
			t.Fatalf("got %+v, %v", uses, known)
		}
		return uses[0].SM, uses[1].SM
	}
	s.eventually("the share is told", func() bool { busy, _ := share(); return busy == 0.5 })
	for i := range 5 {
		time.Sleep(20 * time.Millisecond) // the distance of two readers: nothing is waited for
		if busy, idle := share(); busy != 0.5 || idle != 0 {
			t.Errorf("collection %d: %v and %v, want 0.5 and 0", i+1, busy, idle)
		}
	}
	s.set("gpu 0 process 11 1000 sm 0")
	s.eventually("the process is idle", func() bool { busy, _ := share(); return busy == 0 })
}

// TestManyUses has more processes than there is room for: they are read as soon as there
// is, and no flight makes more calls for it than it may.
func TestManyUses(t *testing.T) {
	lines := []string{"gpus 1"}
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("gpu 0 process %d 10", 100+i))
	}
	s := newListedFixture(t, lines...)
	for i := range 3 {
		s.ageSlow(0, slowInterval)
		before := s.calls()
		got, known := s.uses(0)
		if i == 2 && (!known || len(got) != 300) {
			t.Errorf("%d processes, %v", len(got), known)
		}
		if n := s.calls().Since(before).GPUTotal(0); n > maxCallsPerGPU {
			t.Errorf("flight %d makes %d calls", i, n)
		}
	}
}

// TestShares takes what drivers were seen to say: several samples of a process, numbers
// above 100, pids that nobody knows, times to come.
func TestShares(t *testing.T) {
	now := uint64(time.Now().UnixMicro())
	uses := []device.ProcessUsage{{PID: 1}, {PID: 2}, {PID: 3}}
	averageSamples(uses, []nvml.ProcessUtilizationSample{
		{Pid: 1, TimeStamp: now - 50, SmUtil: 10},
		{Pid: 1, TimeStamp: now - 10, SmUtil: 30, MemUtil: 40},
		{Pid: 2, TimeStamp: now - 20, SmUtil: 4000000000, DecUtil: 101},
		{Pid: 77, TimeStamp: now - 20, SmUtil: 50},
		{Pid: 1, TimeStamp: now - 100, SmUtil: 100}, // of before the time
		{Pid: 3, TimeStamp: 1 << 63, SmUtil: 100},
	}, now-100)
	want := []device.ProcessUsage{{PID: 1, SM: 0.2, MemoryController: 0.2}, {PID: 2, SM: 1, Decoder: 1}, {PID: 3}}
	if !slices.Equal(uses, want) {
		t.Errorf("got %+v; want %+v", uses, want)
	}
}

// TestNoRoomEver has a driver say each time that the buffers are too short: they grow to
// what could ever be needed, and not on and on.
func TestNoRoomEver(t *testing.T) {
	for _, function := range []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"} {
		s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000", "fail "+function+" gpu 0 INSUFFICIENT_SIZE")
		for range 14 {
			before := s.calls()
			s.collectAll(0)
			if n := s.calls().Since(before).GPUTotal(0); n > maxCallsPerGPU {
				t.Errorf("%s: a flight makes %d calls", function, n)
			}
			p := &s.gpu(0).processes
			if len(p.infos) > maxProcesses || len(p.samples) > maxProcesses {
				t.Fatalf("%s: there is room for %d processes and %d shares", function, len(p.infos), len(p.samples))
			}
		}
		s.Close()
	}
}

// TestUsesAfterModeChange has the GPU's MIG mode be turned off between the two halves of
// a flight: what is not partitioned is asked for more, but a flight makes no more calls.
func TestUsesAfterModeChange(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 process 11 1000")
	for range 8 {
		s.collectAll(0)
	}
	s.ageAll(0, slowInterval)
	before := s.calls()
	if _, err := s.Read(s.id(0), nil); err != nil {
		t.Fatal(err)
	}
	read := s.calls().Since(before).GPUTotal(0)
	s.set("gpu 0 mig_mode 0")
	s.list(1)
	before = s.calls()
	s.ReadProcessUsage(s.id(0), nil)
	if n := read + s.calls().Since(before).GPUTotal(0); n > maxCallsPerGPU {
		t.Errorf("a flight makes %d calls", n)
	}
}

// TestListComesBack has the driver say once that it has no list of one kind: that is not
// believed for good, or those on it would be nobody for ever.
func TestListComesBack(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 12 1000 type graphics", "fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 NOT_SUPPORTED")
	if got, known := s.uses(0); !known || len(got) != 0 {
		t.Fatalf("got %+v, %v", got, known)
	}
	s.clear("fail")
	if got, known := s.uses(0); !known || len(got) != 0 {
		t.Errorf("it is asked for at once: %+v, %v", got, known)
	}
	absent := &s.gpu(0).processes.denials
	for i := range absent {
		absent[i].lastAt = absent[i].lastAt.Add(-unconfirmedRetryInterval)
	}
	if got, known := s.uses(0); !known || len(got) != 1 {
		t.Errorf("after a while: %+v, %v", got, known)
	}
}

// TestNoListOfPrograms has a library that cannot list who computes: then it is not known
// who uses the GPU, whoever draws on it.
func TestNoListOfPrograms(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 12 1000 type graphics")
	g := s.gpu(0)
	older := *g.session
	older.Raw.ProcessLists[0] = nil
	g.session = &older
	if got, known := s.uses(0); known || len(got) > 0 {
		t.Errorf("got %+v, %v", got, known)
	}
}
