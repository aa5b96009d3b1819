package nvml

import (
	"errors"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

func TestProcesses(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "gpu 1 mig_mode 1",
		"gpu 1 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a", "gpu 1 slice 1 3g.40gb gi 2 ci 0 uuid MIG-b",
		"gpu 0 process 4711 1000", "gpu 0 process 12 1000",
		"gpu 1 process 77 1000 gi 1 ci 0", "gpu 1 process 78 1000 gi 2 ci 0")
	devices := s.list(5)
	for i, want := range [][]uint32{{12, 4711}, {77, 78}, {77}, {78}, {}} {
		got, err := s.Processes(devices[i])
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("processes on %s: got %v, %v, want %v", devices[i].ID, got, err, want)
		}
	}
	s.set("fail nvmlDeviceGetComputeRunningProcesses_v3 gpu 0 NOT_SUPPORTED")
	if got, err := s.Processes(devices[0]); err != nil || len(got) > 0 {
		t.Errorf("unsupported list: got %v, %v, want none", got, err)
	}
	s.clear("fail")
	s.set("gpu 0 lost")
	if _, err := s.Processes(devices[0]); !errors.Is(err, device.ErrLost) {
		t.Errorf("lost GPU: got %v, want ErrLost", err)
	}
	if _, err := s.Processes(device.Device{GPU: "GPU-none"}); err == nil {
		t.Error("Processes of a GPU that is not listed: got no error")
	}
	if got, known := s.ReadProcessUsage("GPU-none"); known || len(got) > 0 {
		t.Errorf("usage of a GPU that is not listed: got %v, %v, want unknown", got, known)
	}
}

// TestBrokenProcessInfo checks drivers from 535.43.02 until 535.98, which fill
// their lists with an undocumented struct.
func TestBrokenProcessInfo(t *testing.T) {
	for version, known := range map[string]bool{
		"535.43.02": false, "535.54.03": false, "535.86.05": false, "535.86.10": false, "535.97": false,
		"530.43.02": true, "535.98": true, "535.104.05": true, "545.54.03": true, "535": true, "unknown": true,
	} {
		s := newListedFixture(t, "gpus 1", "driver "+version, "gpu 0 process 4711 1000")
		got, err := s.Processes(s.list(1)[0])
		if err != nil || (len(got) == 1) != known {
			t.Errorf("%s: got %v, %v, want processes: %v", version, got, err, known)
		}
		if _, got := s.ReadProcessUsage(s.id(0)); got != known {
			t.Errorf("%s: usage known: got %v, want %v", version, got, known)
		}
		s.Close()
	}
}
