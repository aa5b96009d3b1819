package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// migDevice returns the handle of a MIG device.
func (n *testNode) migDevice(gpu nvml.Device, index int) nvml.Device {
	n.Helper()
	d, ret := gpu.GetMigDeviceHandleByIndex(index)
	n.want(nvml.SUCCESS, ret)
	return d
}

// wantMIGDevice checks the identity of a MIG device.
func (n *testNode) wantMIGDevice(d nvml.Device, uuid, name string, gi, ci int) {
	n.Helper()
	gotUUID, ret := d.GetUUID()
	n.want(nvml.SUCCESS, ret)
	gotName, ret := d.GetName()
	n.want(nvml.SUCCESS, ret)
	gotGI, ret := d.GetGpuInstanceId()
	n.want(nvml.SUCCESS, ret)
	gotCI, ret := d.GetComputeInstanceId()
	n.want(nvml.SUCCESS, ret)
	if gotUUID != uuid || gotName != name || gotGI != gi || gotCI != ci {
		n.Errorf("got %s, %q, GI %d, CI %d; want %s, %q, %d, %d", gotUUID, gotName, gotGI, gotCI, uuid, name, gi, ci)
	}
}

func TestMIGDevices(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 1 uuid GPU-11111111-2222-3333-4444-555555555555",
			"gpu 1 slice 0 1g.10gb gi 7 ci 0", "gpu 1 slice 2 1c.3g.40gb gi 2 ci 0 memory 42412802048 used 4096",
			"gpu 1 slice 3 2c.3g.40gb gi 2 ci 1 uuid old", "gpu 1 slice 6 1g.10gb+me gi 9 ci 0 uuid MIG-of-mine")
		gpu := n.gpu(1)
		count, ret := gpu.GetMaxMigDeviceCount()
		n.want(nvml.SUCCESS, ret)
		if count != 0 {
			n.Errorf("maximum is %d MIG devices without MIG mode", count)
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetMigDeviceHandleByIndex(0)))

		n.setLines("gpu 1 mig_mode 1")
		if count, _ = gpu.GetMaxMigDeviceCount(); count != 7 {
			n.Errorf("maximum is %d MIG devices, want 7", count)
		}
		for _, unused := range []int{1, 4, 5} {
			n.want(nvml.ERROR_NOT_FOUND, returnOf(gpu.GetMigDeviceHandleByIndex(unused)))
		}
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(gpu.GetMigDeviceHandleByIndex(7)))
		const model = "NVIDIA H100 80GB HBM3 MIG "
		n.wantMIGDevice(n.migDevice(gpu, 0), "MIG-11111111-0007-5000-8000-555555555555", model+"1g.10gb", 7, 0)
		n.wantMIGDevice(n.migDevice(gpu, 2), "MIG-11111111-0002-5000-8000-555555555555", model+"1c.3g.40gb", 2, 0)
		n.wantMIGDevice(n.migDevice(gpu, 3), "MIG-GPU-11111111-2222-3333-4444-555555555555/2/1", model+"2c.3g.40gb", 2, 1)
		n.wantMIGDevice(n.migDevice(gpu, 6), "MIG-of-mine", model+"1g.10gb+me", 9, 0)
		if n.migDevice(gpu, 2) != n.migDevice(gpu, 2) {
			n.Error("a MIG device has two handles")
		}

		mig := n.migDevice(gpu, 2)
		attributes, ret := mig.GetAttributes()
		n.want(nvml.SUCCESS, ret)
		if a := attributes; a.ComputeInstanceSliceCount != 1 || a.GpuInstanceSliceCount != 3 || a.MemorySizeMB != 40448 {
			n.Errorf("attributes are %+v", attributes)
		}
		memory, ret := mig.GetMemoryInfo_v2()
		n.want(nvml.SUCCESS, ret)
		if memory.Total != 42412802048 || memory.Used != 4096 || memory.Free != memory.Total-4096 {
			n.Errorf("memory is %+v", memory)
		}
		if old, ret := n.migDevice(gpu, 0).GetMemoryInfo(); ret != nvml.SUCCESS || old.Total != 10<<30 {
			n.Errorf("memory is %+v, %v", old, ret)
		}
		index, _ := mig.GetIndex()
		parent, ret := mig.GetDeviceHandleFromMigDeviceHandle()
		n.want(nvml.SUCCESS, ret)
		isMIG, _ := mig.IsMigDeviceHandle()
		gpuIsMIG, _ := gpu.IsMigDeviceHandle()
		if index != 2 || parent != gpu || !isMIG || gpuIsMIG {
			n.Errorf("index %d, parent %v, MIG device %v, GPU a MIG device %v", index, parent == gpu, isMIG, gpuIsMIG)
		}
		uuid, _ := mig.GetUUID()
		if found, ret := n.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS || found != mig {
			n.Errorf("%s is not found: %v", uuid, ret)
		}
		n.want(nvml.ERROR_NOT_FOUND, returnOf(n.DeviceGetHandleByUUID("MIG-GPU-11111111-2222-3333-4444-555555555555/2/1")))

		// Values of the GPU only, and values that MIG mode excludes.
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(mig.GetPowerUsage()))
		n.want(nvml.SUCCESS, returnOf(gpu.GetPowerUsage()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetUtilizationRates()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetAttributes()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetGpuInstanceId()))
	})
}

func TestMIGProcesses(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 1 ci 0", "gpu 0 process 100 4096 gi 1 ci 0", "gpu 0 process 200 1 gi 2 ci 0")
		gpu := n.gpu(0)
		for d, want := range map[nvml.Device]int{gpu: 2, n.migDevice(gpu, 0): 1} {
			processes, ret := d.GetComputeRunningProcesses()
			n.want(nvml.SUCCESS, ret)
			if len(processes) != want || processes[0].Pid != 100 {
				n.Errorf("got %+v, want %d", processes, want)
			}
		}
	})
}

// TestStaleHandle replaces a MIG device by a new device with the same index and instance ids.
func TestStaleHandle(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a")
		gpu := n.gpu(0)
		first := n.migDevice(gpu, 0)
		n.setLines("gpu 0 slice 0 2g.20gb gi 1 ci 0 uuid MIG-b")
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(first.GetUUID()))
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(first.GetGpuInstanceId()))
		second := n.migDevice(gpu, 0)
		if second == first {
			n.Error("a handle is reused without \"reuse handles\"")
		}
		n.wantMIGDevice(second, "MIG-b", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 1, 0)

		n.setLines("reuse handles", "gpu 0 slice 0 3g.40gb gi 1 ci 0 uuid MIG-c")
		third := n.migDevice(gpu, 0)
		if third != first && third != second {
			n.Error("no handle is reused")
		}
		n.wantMIGDevice(third, "MIG-c", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 1, 0)

		n.setLines("gpu 0 mig_mode 0")
		_, ret := third.GetUUID()
		n.want(nvml.ERROR_INVALID_ARGUMENT, ret)
		n.setLines("gpu 0 mig_mode 1", "gpu 0 lost")
		_, ret = third.GetUUID()
		n.want(nvml.ERROR_GPU_IS_LOST, ret)
		n.clear("gpu 0 lost")
		n.setLines("fail nvmlDeviceGetGpuInstanceId gpu 0 UNKNOWN") // applies to the MIG devices of the GPU
		_, ret = third.GetGpuInstanceId()
		n.want(nvml.ERROR_UNKNOWN, ret)
		if calls := n.readCalls(); calls.Count("nvmlDeviceGetGpuInstanceId", 0) != 4 {
			n.Errorf("%d calls counted", calls.Count("nvmlDeviceGetGpuInstanceId", 0))
		}
	})
}

// TestManyMIGDevices creates more MIG devices than the stand-in has handles.
func TestManyMIGDevices(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 mig_mode 1")
		gpu := n.gpu(0)
		for i := range 200 {
			uuid := "MIG-" + string(rune('a'+i/20)) + string(rune('a'+i%20))
			n.setLines("gpu 0 slice 3 1g.10gb gi 1 ci 0 uuid " + uuid)
			n.wantMIGDevice(n.migDevice(gpu, 3), uuid, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 0)
		}
	})
}

func TestMIGEvent(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		set := n.eventSet()
		n.want(nvml.SUCCESS, n.gpu(3).RegisterEvents(nvml.EventMigConfigChange, set))
		n.event(3, "type 0x100")
		n.wantEvent(set, nvml.EventData{
			Device: n.gpu(3), EventType: nvml.EventMigConfigChange, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF,
		})
	})
}

// TestSharedInstanceMemory checks that two compute instances share the memory of a GPU instance.
func TestSharedInstanceMemory(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 mig_mode 1", "gpu 0 bar1_total 8000", "gpu 0 slice 0 1c.3g.40gb gi 2 ci 0 memory 9000 used 100~300/5s bar1 16",
			"gpu 0 slice 1 2c.3g.40gb gi 2 ci 1", "gpu 0 slice 2 1g.10gb gi 3 ci 0 used 7")
		gpu := n.gpu(0)
		first, second, separate := n.migDevice(gpu, 0), n.migDevice(gpu, 1), n.migDevice(gpu, 2)
		for _, mig := range []nvml.Device{first, second} {
			memory, ret := mig.GetMemoryInfo_v2()
			n.want(nvml.SUCCESS, ret)
			if memory.Total != 9000 || memory.Used < 100 || memory.Used > 300 || memory.Free != 9000-memory.Used {
				n.Errorf("memory is %+v", memory)
			}
			window, ret := mig.GetBAR1MemoryInfo()
			n.want(nvml.SUCCESS, ret)
			if want := (nvml.BAR1Memory{Bar1Total: 3000, Bar1Free: 2984, Bar1Used: 16}); window != want {
				n.Errorf("the BAR1 window is %+v, want %+v", window, want)
			}
		}
		memory, ret := separate.GetMemoryInfo_v2()
		n.want(nvml.SUCCESS, ret)
		if memory.Total != 10<<30 || memory.Used != 7 {
			n.Errorf("memory of the second instance is %+v", memory)
		}
	})
}

// TestPartitionedGPU checks that a MIG-enabled GPU lacks the readings that nvml.h excludes.
func TestPartitionedGPU(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 slice 0 1g.10gb gi 1 ci 0", "gpu 0 sram_volatile_parity 3", "gpu 0 sram_volatile_secded 4", "gpu 0 ecc_aggregate_corrected 5")
		gpu := n.gpu(0)
		counter := func(d nvml.Device, e nvml.MemoryErrorType, c nvml.EccCounterType, l nvml.MemoryLocation) (uint64, nvml.Return) {
			return d.GetMemoryErrorCounter(e, c, l)
		}
		n.want(nvml.SUCCESS, returnOf(counter(gpu, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM)))
		n.setLines("gpu 0 mig_mode 1")
		mig := n.migDevice(gpu, 0)
		for _, get := range []func() nvml.Return{
			func() nvml.Return { _, _, ret := gpu.GetEncoderUtilization(); return ret },
			func() nvml.Return { _, _, ret := gpu.GetJpgUtilization(); return ret },
			func() nvml.Return { return returnOf(gpu.GetRemappedRows_v2()) },
			func() nvml.Return {
				return returnOf(counter(gpu, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM))
			},
			func() nvml.Return {
				return returnOf(counter(mig, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM))
			},
		} {
			n.want(nvml.ERROR_NOT_SUPPORTED, get())
		}
		if got, ret := counter(mig, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM); ret != nvml.SUCCESS || got != 7 {
			n.Errorf("SRAM errors of a MIG device: %d, %v", got, ret)
		}
		if got, ret := counter(gpu, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_DRAM); ret != nvml.SUCCESS || got != 5 {
			n.Errorf("aggregate errors of the GPU: %d, %v", got, ret)
		}
		if a, _ := mig.GetAttributes(); a.MultiprocessorCount != 16 {
			n.Errorf("1g MIG device has %d multiprocessors", a.MultiprocessorCount)
		}
		n.setLines("gpu 0 slice_multiprocessors 14")
		if a, _ := mig.GetAttributes(); a.MultiprocessorCount != 14 {
			n.Errorf("1g MIG device of an A100 has %d multiprocessors", a.MultiprocessorCount)
		}
	})
}
