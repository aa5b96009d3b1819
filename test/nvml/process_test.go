package nvmltest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestProcesses(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 2 process 100 4096", "gpu 2 process 200 8192 gi 3 ci 1", "gpu 2 process 300 1", "gpu 1 process 400 1")
		processes, ret := n.gpu(2).GetComputeRunningProcesses()
		n.want(nvml.SUCCESS, ret)
		const none = 0xFFFFFFFF
		want := []nvml.ProcessInfo{
			{Pid: 100, UsedGpuMemory: 4096, GpuInstanceId: none, ComputeInstanceId: none},
			{Pid: 200, UsedGpuMemory: 8192, GpuInstanceId: 3, ComputeInstanceId: 1},
			{Pid: 300, UsedGpuMemory: 1, GpuInstanceId: none, ComputeInstanceId: none},
		}
		if !slices.Equal(processes, want) {
			n.Errorf("got %+v, want %+v", processes, want)
		}
		processes, ret = n.gpu(0).GetComputeRunningProcesses()
		n.want(nvml.SUCCESS, ret)
		if len(processes) != 0 {
			n.Errorf("an idle GPU has %+v", processes)
		}
	})
}

func TestProcessKinds(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 process 1 10", "gpu 0 process 2 20 type graphics", "gpu 0 process 3 none type mps", "gpu 0 process 4 40 type compute+graphics")
		gpu := n.gpu(0)
		for name, list := range map[string]struct {
			get  func() ([]nvml.ProcessInfo, nvml.Return)
			want string
		}{
			"compute":  {gpu.GetComputeRunningProcesses, "1:10 4:40 "},
			"graphics": {gpu.GetGraphicsRunningProcesses, "2:20 4:40 "},
			"mps":      {gpu.GetMPSComputeRunningProcesses, "3:18446744073709551615 "},
		} {
			processes, ret := list.get()
			n.want(nvml.SUCCESS, ret)
			got := ""
			for _, p := range processes {
				got += fmt.Sprintf("%d:%d ", p.Pid, p.UsedGpuMemory)
			}
			if got != list.want {
				n.Errorf("%s: %s, want %s", name, got, list.want)
			}
		}
	})
}

func TestProcessUtilization(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup(fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix()), "gpu 0 process 1 10 sm 60 mem 30", "gpu 0 process 2 10 enc 5 dec 6", "gpu 0 process 3 10 sm 0", "gpu 0 process 4 10", "gpu 0 process 5 10 sm 0~100/0.001s")
		gpu := n.gpu(0)
		start := time.Now()
		got, ret := gpu.GetProcessUtilization(0)
		n.want(nvml.SUCCESS, ret)
		if len(got) != 3 {
			n.Fatalf("got %+v, want three processes", got)
		}
		seen := got[0].TimeStamp
		if age := start.Sub(time.UnixMicro(int64(seen))); age < -time.Second || age > time.Second {
			n.Errorf("the newest sample is %v old", age)
		}
		for i, want := range []nvml.ProcessUtilizationSample{
			{Pid: 1, TimeStamp: seen, SmUtil: 60, MemUtil: 30},
			{Pid: 2, TimeStamp: seen, EncUtil: 5, DecUtil: 6},
			{Pid: 5, TimeStamp: seen, SmUtil: 50}, // a mean over many waves
		} {
			if got[i] != want {
				n.Errorf("got %+v, want %+v", got[i], want)
			}
		}
		// No sample is newer than the newest until the next sample.
		n.want(nvml.ERROR_NOT_FOUND, returnOf(gpu.GetProcessUtilization(seen+uint64(time.Hour.Microseconds()))))
		n.waitUntil("there is a newer sample", func() bool {
			newer, ret := gpu.GetProcessUtilization(seen)
			return ret == nvml.SUCCESS && newer[0].TimeStamp > seen
		})
		n.want(nvml.ERROR_NOT_FOUND, returnOf(n.gpu(1).GetProcessUtilization(0)))
		n.setLines("gpu 0 mig_mode 1")
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetProcessUtilization(0)))
	})
}
