package collect_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// usage returns the processes of a GPU in the order of pids.
func (s *readerFixture) usage(i int) ([]device.ProcessUsage, bool) {
	s.Helper()
	_, usage, known := s.collectAll(i)
	slices.SortFunc(usage, func(a, b device.ProcessUsage) int { return cmp.Compare(a.PID, b.PID) })
	return usage, known
}

func TestProcessUsage(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 uuid GPU-0",
		"gpu 0 process 11 1000 sm 50 mem 20", "gpu 0 process 12 2000 type compute+graphics+mps enc 10 dec 5",
		"gpu 0 process 13 none type mps", "gpu 0 process 14 3000 type graphics")
	var got []device.ProcessUsage
	// The driver reports averages over the last sixth of a second.
	s.eventually("utilization is reported", func() bool {
		usage, known := s.usage(0)
		if !known {
			t.Fatal("process usage: got unknown, want known")
		}
		got = usage
		return usage[0].SM > 0
	})
	want := []device.ProcessUsage{
		{Device: "GPU-0", PID: 11, MemoryBytes: 1000, SM: 0.5, MemoryController: 0.2},
		{Device: "GPU-0", PID: 12, MemoryBytes: 2000, Encoder: 0.1, Decoder: 0.05},
		{Device: "GPU-0", PID: 13, MemoryBytes: -1},
		{Device: "GPU-0", PID: 14, MemoryBytes: 3000},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if usage, known := s.usage(1); !known || len(usage) != 0 {
		t.Errorf("without processes: got %v, %v, want none, true", usage, known)
	}
}

func TestProcessUsageOfMIGDevices(t *testing.T) {
	s := newListedFixture(t, append(twoInstanceGPU, "gpu 0 process 1 100 gi 7 ci 0", "gpu 0 process 2 200 gi 2 ci 1",
		"gpu 0 process 3 300 gi 2 ci 0",
		"gpu 0 process 4 400 gi 5 ci 0", "gpu 0 process 6 50 gi 2 ci 0")...)
	got, known := s.usage(0)
	slices.SortStableFunc(got, func(a, b device.ProcessUsage) int { return cmp.Compare(a.Device, b.Device) })
	none := device.ProcessUsage{SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1}
	use := func(of device.ID, pid uint32, bytes float64) device.ProcessUsage {
		u := none
		u.Device, u.PID, u.MemoryBytes = of, pid, bytes
		return u
	}
	want := []device.ProcessUsage{
		use("GPU-0", 4, 400), use("MIG-a", 1, 100), use("MIG-b", 3, 300), use("MIG-b", 6, 50),
		use("MIG-c", 2, 200),
	}
	if !known || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, known, want)
	}
	s.set("gpu 0 process 5 100") // only privileged processes get the instance ids
	if got, known := s.usage(0); known || len(got) > 0 {
		t.Errorf("without privilege: got %v, %v, want unknown", got, known)
	}
}

// TestProcessUsageUnknown checks that a failed process list makes the usage
// unknown, not empty.
func TestProcessUsageUnknown(t *testing.T) {
	for _, lines := range [][]string{
		{"fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NOT_SUPPORTED"}, // a vGPU
		{"fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NO_PERMISSION"},
		{"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 UNKNOWN"},
		{"fail nvmlDeviceGetMPSComputeRunningProcesses_v3 gpu 0 UNKNOWN"},
		{"driver 535.86.05"},
	} {
		s := newListedFixture(t, append([]string{"gpus 1", "gpu 0 process 11 1000"}, lines...)...)
		if got, known := s.usage(0); known || len(got) > 0 {
			t.Errorf("%v: got %v, %v, want unknown", lines, got, known)
		}
		s.Close()
	}
}

// TestImpossibleProcesses has drivers whose lists cannot be right. The usage of
// the GPU is unknown, and no process is in the way of a container.
func TestImpossibleProcesses(t *testing.T) {
	for name, lines := range map[string][]string{
		"pid 0":                      {"gpu 0 process 0 5"},
		"a pid above any":            {"gpu 0 process 4194305 5"},
		"short entries":              {"short processes", "gpu 0 process 4712 2097152"},
		"short entries, another MiB": {"short processes", "gpu 0 process 12 3145728", "gpu 0 process 13 6442450944"},
		"an instance above any":      {"gpu 0 process 12 5 gi 4711 ci 0"},
	} {
		s := newListedFixture(t, append([]string{"gpus 2", "gpu 0 process 11 2097152", "gpu 1 process 21 1000"},
			lines...)...)
		if got, known := s.usage(0); known || len(got) > 0 {
			t.Errorf("%s: got %+v, %v, want unknown", name, got, known)
		}
		if got, err := s.gpu(0).ProcessIDs(device.Device{ID: device.ID(s.id(0)), GPU: s.id(0)}); err != nil ||
			len(got) > 0 {
			t.Errorf("%s: got pids %v, error %v, want none", name, got, err)
		}
		s.clear("short")
		if got, known := s.usage(1); !known || len(got) != 1 {
			t.Errorf("%s: other GPU: got %+v, %v, want one process", name, got, known)
		}
		s.Close()
	}
}

// TestPartialProcessUsage has a driver that lacks a list, or the utilization of
// processes.
func TestPartialProcessUsage(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000 sm 50", "gpu 0 process 12 1000 type graphics",
		"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 NOT_SUPPORTED",
		"fail nvmlDeviceGetProcessUtilization gpu 0 NOT_SUPPORTED")
	for range 2 {
		got, known := s.usage(0)
		if !known || len(got) != 1 || got[0].PID != 11 || got[0].SM != -1 {
			t.Errorf("got %+v, %v, want process 11 without utilization", got, known)
		}
	}
	s.set("fail nvmlDeviceGetProcessUtilization gpu 0 NOT_FOUND") // idle
	if got, known := s.usage(0); !known || got[0].SM != 0 || got[0].Decoder != 0 {
		t.Errorf("idle: got %+v, %v, want utilization 0", got, known)
	}
}

// TestUtilizationOfCloseCollections reads a busy process again before the
// driver has a new sample. The utilization does not change.
func TestUtilizationOfCloseCollections(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000 sm 50", "gpu 0 process 12 1000")
	utilization := func() (busy, idle float64) {
		t.Helper()
		usage, known := s.usage(0)
		if !known || len(usage) != 2 {
			t.Fatalf("got %+v, %v, want two processes", usage, known)
		}
		return usage[0].SM, usage[1].SM
	}
	s.eventually("utilization is reported", func() bool { busy, _ := utilization(); return busy == 0.5 })
	for i := range 5 {
		time.Sleep(20 * time.Millisecond) // the distance of two readers, not a wait
		if busy, idle := utilization(); busy != 0.5 || idle != 0 {
			t.Errorf("collection %d: got %v and %v, want 0.5 and 0", i+1, busy, idle)
		}
	}
	s.set("gpu 0 process 11 1000 sm 0")
	s.eventually("the process is idle", func() bool { busy, _ := utilization(); return busy == 0 })
}

// TestManyProcesses has more processes than the buffers hold. They are read
// once the buffers have grown.
func TestManyProcesses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		lines := []string{"gpus 1"}
		for i := range 300 {
			lines = append(lines, fmt.Sprintf("gpu 0 process %d 10", 100+i))
		}
		s := newListedFixture(t, lines...)
		for i := range 3 {
			got, known := s.usage(0)
			if i == 2 && (!known || len(got) != 300) {
				t.Errorf("got %d processes, known %v, want 300, true", len(got), known)
			}
		}
	})
}

// TestBuffersStopGrowing has a driver that always reports too short buffers.
// They grow up to the limit.
func TestBuffersStopGrowing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, function := range []string{
			"nvmlDeviceGetComputeRunningProcesses_v3",
			"nvmlDeviceGetProcessUtilization",
		} {
			s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000", "fail "+function+" gpu 0 INSUFFICIENT_SIZE")
			for range 14 {
				before := s.calls()
				s.collectAll(0)
				if n := s.calls().Since(before).Count(function, 0); n > 2 {
					t.Errorf("%s: got %d calls, want at most 2", function, n)
				}
			}
			s.Close()
		}
	})
}

// TestListReturns lets the driver deny a process list once. The list is
// requested again later, otherwise its processes stay unattributed.
func TestListReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 process 12 1000 type graphics",
			"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 NOT_SUPPORTED")
		if got, known := s.usage(0); !known || len(got) != 0 {
			t.Fatalf("without the list: got %+v, %v, want none, true", got, known)
		}
		s.clear("fail")
		if got, known := s.usage(0); !known || len(got) != 0 {
			t.Errorf("at once: got %+v, %v, want no request", got, known)
		}
		time.Sleep(slowInterval)
		if got, known := s.usage(0); !known || len(got) != 1 {
			t.Errorf("later: got %+v, %v, want one process", got, known)
		}
	})
}

// TestEmptyListIsSlow starts processes of graphics and MPS beside a compute
// process. They appear as slow values do, or with a compute process: MPS adds
// its server.
func TestEmptyListIsSlow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, kind := range []string{"graphics", "mps"} {
			s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000")
			want := func(when string, n int) {
				t.Helper()
				if got, known := s.usage(0); !known || len(got) != n {
					t.Errorf("%s, %s: got %+v, %v, want %d processes", kind, when, got, known, n)
				}
			}
			want("before", 1)
			s.set("gpu 0 process 12 1000 type " + kind)
			want("at once", 1)
			time.Sleep(slowInterval)
			want("later", 2)
			s.set("gpu 0 process 13 1000 type " + kind)
			want("beside another", 3)
			s.clear("gpu 0 process")
			want("without processes", 0)
			s.set("gpu 0 process 14 1000", "gpu 0 process 15 1000 type "+kind)
			want("with a compute process", 2)
			s.clear("")
			s.Close()
		}
	})
}

// TestNoComputeProcessList has a library that cannot list compute processes.
// The usage is unknown, even with a complete graphics list.
func TestNoComputeProcessList(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1", "gpu 0 process 12 1000 type graphics")
		s.session.Raw.ProcessLists[0] = nil
		if got, known := s.usage(0); known || len(got) > 0 {
			t.Errorf("got %+v, %v, want unknown", got, known)
		}
	})
}
