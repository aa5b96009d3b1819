package nvml_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// usage reads a GPU and returns its processes in the order of pids.
func (s *fixture) usage(i int) ([]device.ProcessUsage, bool) {
	s.Helper()
	usage, known := s.ReadProcessUsage(s.id(i))
	slices.SortFunc(usage, func(a, b device.ProcessUsage) int { return cmp.Compare(a.PID, b.PID) })
	return usage, known
}

// wantProcesses requires n known processes; -1: the usage is unknown.
func (s *fixture) wantProcesses(what string, i, n int) {
	s.Helper()
	if got, known := s.usage(i); known != (n >= 0) || len(got) != max(n, 0) {
		s.Errorf("%s: got %+v, %v, want %d processes", what, got, known, n)
	}
}

// TestProcessUsage reads processes of all kinds. Repeated readings before the
// driver has a new sample return the same utilization.
func TestProcessUsage(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 uuid GPU-0",
		"gpu 0 process 11 1000 sm 50 mem 20", "gpu 0 process 12 2000 type compute+graphics+mps enc 10 dec 5",
		"gpu 0 process 13 none type mps", "gpu 0 process 14 3000 type graphics sm 150") // above 100 %
	s.eventually("utilization is reported", func() bool { usage, _ := s.usage(0); return usage[0].SM > 0 })
	want := []device.ProcessUsage{
		{Device: "GPU-0", PID: 11, MemoryBytes: 1000, SM: 0.5, MemoryController: 0.2},
		{Device: "GPU-0", PID: 12, MemoryBytes: 2000, Encoder: 0.1, Decoder: 0.05},
		{Device: "GPU-0", PID: 13, MemoryBytes: -1},
		{Device: "GPU-0", PID: 14, MemoryBytes: 3000, SM: 1},
	}
	for range 5 {
		if got, known := s.usage(0); !known || !slices.Equal(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, known, want)
		}
		time.Sleep(20 * time.Millisecond) // the distance of two readers, not a wait
	}
	s.wantProcesses("without processes", 1, 0)
	s.set("gpu 0 process 11 1000 sm 0")
	s.eventually("the process is idle", func() bool { usage, _ := s.usage(0); return usage[0].SM == 0 })
	s.set("fail nvmlDeviceGetProcessUtilization gpu 0 NOT_SUPPORTED")
	if got, known := s.usage(0); !known || got[0].SM != -1 || got[0].Decoder != -1 {
		t.Errorf("unsupported: got %+v, %v, want no utilization", got, known)
	}
	s.set("fail nvmlDeviceGetProcessUtilization gpu 0 NOT_FOUND")
	if got, known := s.usage(0); !known || got[0].SM != 0 || got[0].Decoder != 0 {
		t.Errorf("no active process: got %+v, %v, want utilization 0", got, known)
	}
}

func TestProcessUsageOfMIGDevices(t *testing.T) {
	s := newListedFixture(t, append(twoInstanceGPU, "gpu 0 process 1 100 gi 7 ci 0", "gpu 0 process 2 200 gi 2 ci 1",
		"gpu 0 process 3 300 gi 2 ci 0", "gpu 0 process 4 400 gi 5 ci 0", "gpu 0 process 6 50 gi 2 ci 0")...)
	got, known := s.usage(0)
	var want []device.ProcessUsage
	for pid, of := range []device.ID{1: "MIG-a", 2: "MIG-c", 3: "MIG-b", 4: "GPU-0", 6: "MIG-b"} {
		if of != "" {
			bytes := []float64{1: 100, 2: 200, 3: 300, 4: 400, 6: 50}[pid]
			want = append(want, device.ProcessUsage{
				Device: of, PID: uint32(pid), MemoryBytes: bytes, SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1,
			})
		}
	}
	if !known || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, known, want)
	}
	s.set("gpu 0 process 5 100") // only privileged processes get the instance ids
	s.wantProcesses("without privilege", 0, -1)
}

// TestUnknownProcesses has drivers whose lists fail or cannot be right: from
// 535.43.02 until 535.98 they have an undocumented struct. The usage of the GPU
// is unknown, and no process is in the way of a container.
func TestUnknownProcesses(t *testing.T) {
	const fail, graphics = "fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 ", "gpu 0 process 12 5 type graphics sm 40"
	for _, c := range []struct {
		line string
		want int
	}{
		{fail + "NOT_SUPPORTED", -1}, // a vGPU
		{fail + "NO_PERMISSION", -1},
		{"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 UNKNOWN", -1},
		{"fail nvmlDeviceGetMPSComputeRunningProcesses_v3 gpu 0 UNKNOWN", -1},
		{"fail nvmlDeviceGetGraphicsRunningProcesses_v3 gpu 0 NOT_SUPPORTED", 1},
		{"gpu 0 process 0 5", -1},
		{"gpu 0 process 4194305 5", -1}, // above any pid
		{"short processes,gpu 0 process 4712 2097152", -1},
		{"gpu 0 process 12 5 gi 4711 ci 0", -1},
		{"driver 535.43.02", -1},
		{"driver 535.86.05", -1},
		{"driver 535.97", -1},
		{"driver 530.43.02", 2},
		{"driver 535.98", 2},
		{"driver 535", 2},
		{"driver unknown", 2},
	} {
		s := newListedFixture(t, "gpus 2", "gpu 0 process 11 2097152", "gpu 1 process 21 1000", graphics)
		s.Close() // Init reads the version
		s.set(strings.Split(c.line, ",")...)
		s.list(2)
		s.wantProcesses(c.line, 0, c.want)
		got, err := s.Processes(s.devices[0])
		if !strings.HasPrefix(c.line, "fail ") && (err != nil || len(got) != max(c.want, 0)) {
			t.Errorf("%s: got pids %v, error %v, want %d", c.line, got, err, c.want)
		}
		s.clear("short")
		if s.Library().Version[:3] != "535" {
			s.wantProcesses(c.line+": other GPU", 1, 1)
		}
		s.Close()
	}
}

// TestManyProcesses has more processes than the buffers hold. They are read
// once the buffers have grown, up to a limit.
func TestManyProcesses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, "gpus 1")
		for i := range 300 {
			s.set(fmt.Sprintf("gpu 0 process %d 10", 100+i))
		}
		s.usage(0)
		s.usage(0)
		s.wantProcesses("grown buffers", 0, 300)
		for _, function := range []string{
			"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization",
		} {
			s.set("fail " + function + " gpu 0 INSUFFICIENT_SIZE")
			for range 14 {
				before := s.calls()
				s.usage(0)
				if n := s.calls().Since(before).Count(function, 0); n > 2 {
					t.Errorf("%s: got %d calls, want at most 2", function, n)
				}
			}
			s.clear("fail")
		}
	})
}

// TestEmptyListIsSlow starts processes of graphics and MPS beside a compute
// process. They appear as slow values do, or with a compute process: MPS adds
// its server. A denied list is read again later.
func TestEmptyListIsSlow(t *testing.T) {
	for kind, list := range map[string]string{"graphics": "Graphics", "mps": "MPSCompute"} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 1", "gpu 0 process 11 1000")
			s.wantProcesses(kind+" before", 0, 1)
			s.set("gpu 0 process 12 1000 type " + kind)
			s.wantProcesses(kind+" at once", 0, 1)
			time.Sleep(slowInterval)
			s.wantProcesses(kind+" later", 0, 2)
			s.set("gpu 0 process 13 1000 type " + kind)
			s.wantProcesses(kind+" beside another", 0, 3)
			s.clear("gpu 0 process")
			s.wantProcesses("without processes", 0, 0)
			s.set("gpu 0 process 14 1000", "gpu 0 process 15 1000 type "+kind)
			s.wantProcesses(kind+" with a compute process", 0, 2)
			s.set("fail nvmlDeviceGet" + list + "RunningProcesses_v3 gpu 0 NOT_SUPPORTED")
			s.wantProcesses(kind+" denied", 0, 1)
			s.clear("fail")
			s.wantProcesses(kind+" denied before", 0, 1)
			time.Sleep(deniedInterval)
			s.wantProcesses(kind+" again", 0, 2)
			s.set("fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NOT_SUPPORTED")
			s.wantProcesses("compute denied", 0, -1)
			s.clear("fail")
			s.wantProcesses("compute denied before", 0, -1)
			if pids, err := s.Processes(s.devices[0]); err != nil || len(pids) != 2 {
				t.Errorf("all processes: got %v, %v, want both", pids, err)
			}
		})
	}
}
