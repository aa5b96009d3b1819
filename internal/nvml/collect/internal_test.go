package collect

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestUtilizationSamples averages values that drivers returned, and that the
// stand-in cannot return: several samples of a process, values above 100,
// unknown pids, times in the future.
func TestUtilizationSamples(t *testing.T) {
	now := uint64(time.Now().UnixMicro())
	usage := []device.ProcessUsage{{PID: 1}, {PID: 2}, {PID: 3}}
	averageSamples(usage, []nvml.ProcessUtilizationSample{
		{Pid: 1, TimeStamp: now - 50, SmUtil: 10},
		{Pid: 1, TimeStamp: now - 10, SmUtil: 30, MemUtil: 40},
		{Pid: 2, TimeStamp: now - 20, SmUtil: 4000000000, DecUtil: 101},
		{Pid: 77, TimeStamp: now - 20, SmUtil: 50},
		{Pid: 1, TimeStamp: now - 100, SmUtil: 100}, // before the window
		{Pid: 3, TimeStamp: 1 << 63, SmUtil: 100},
	}, now-100)
	want := []device.ProcessUsage{{PID: 1, SM: 0.2, MemoryController: 0.2}, {PID: 2, SM: 1, Decoder: 1}, {PID: 3}}
	expect.EqualSlices(t, usage, want)
}
