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

// TestMIGDevices checks what the tests of internal/nvml do not use.
func TestMIGDevices(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 1 uuid GPU-11111111-2222-3333-4444-555555555555", "gpu 1 slice 0 1g.10gb gi 7 ci 0",
			"gpu 1 slice 2 1c.3g.40gb gi 2 ci 0", "gpu 1 slice 3 2c.3g.40gb gi 2 ci 1 uuid old")
		gpu := n.gpu(1)
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetMigDeviceHandleByIndex(0)))
		n.setLines("gpu 1 mig_mode 1")
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(gpu.GetMigDeviceHandleByIndex(7)))
		const model = "NVIDIA H100 80GB HBM3 MIG "
		n.wantMIGDevice(n.migDevice(gpu, 0), "MIG-11111111-0007-5000-8000-555555555555", model+"1g.10gb", 7, 0)
		n.wantMIGDevice(n.migDevice(gpu, 2), "MIG-11111111-0002-5000-8000-555555555555", model+"1c.3g.40gb", 2, 0)
		mig := n.migDevice(gpu, 2)
		if mig != n.migDevice(gpu, 2) {
			n.Error("a MIG device has two handles")
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
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(mig.GetPowerUsage()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetAttributes()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetGpuInstanceId()))
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
				return returnOf(counter(mig, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM))
			},
		} {
			n.want(nvml.ERROR_NOT_SUPPORTED, get())
		}
		if got, ret := counter(mig, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM); ret != nvml.SUCCESS || got != 7 {
			n.Errorf("SRAM errors of a MIG device: %d, %v", got, ret)
		}
		if got, ret := counter(gpu, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM); ret != nvml.SUCCESS || got != 7 {
			n.Errorf("SRAM errors of the GPU: %d, %v", got, ret)
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
