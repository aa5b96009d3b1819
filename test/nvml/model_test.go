package nvmltest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// isSupported reports whether a call succeeds.
func isSupported[T any](_ T, ret nvml.Return) bool { return ret == nvml.SUCCESS }

// capabilities are the features that differ between models.
func capabilities(n *testNode, gpu nvml.Device) map[string]bool {
	n.Helper()
	support, _ := gpu.GpmQueryDeviceSupport()
	_, _, ret := gpu.GetMigMode()
	field := func(id, scope uint32) bool { return n.readScopes(gpu, id, scope)[0] >= 0 }
	return map[string]bool{
		"gpm":      support.IsSupportedDevice == 1,
		"mig":      ret == nvml.SUCCESS,
		"nvlink":   isSupported(gpu.GetNvLinkState(0)),
		"remap":    isSupported(gpu.GetRowRemapperHistogram()),
		"retire":   isSupported(gpu.GetRetiredPagesPendingStatus()),
		"sram":     isSupported(gpu.GetSramEccErrorStatus()),
		"repair":   isSupported(gpu.GetRepairStatus()),
		"fabric":   isSupported(gpu.GetGpuFabricInfoV().V3()),
		"platform": isSupported(gpu.GetPlatformInfo()),
		"limits":   isSupported(gpu.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SHUTDOWN)),
		"margin":   isSupported(gpu.GetMarginTemperature()),
		"hbm":      field(nvml.FI_DEV_MEMORY_TEMP, 0),
		"average":  field(nvml.FI_DEV_POWER_AVERAGE, 0),
		"kib":      field(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks),
		"bytes":    field(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, allLinks),
		"replay":   field(nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, 0),
		"symbol":   field(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, 0),
		"c2c":      slices.Equal(n.readScopes(gpu, nvml.FI_DEV_C2C_LINK_GET_STATUS, 0, 1, 10), []int64{1, 1, -1}),
		"module":   field(nvml.FI_DEV_POWER_INSTANT, nvml.POWER_SCOPE_MODULE),
		"pcie":     field(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, 0),
	}
}

func TestModels(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpus 11", "gpu 1 model a100", "gpu 2 model b200", "gpu 3 model t4", "gpu 4 model h100", "gpu 5 model gb200",
			"gpu 6 model h200", "gpu 7 model l40s", "gpu 8 model rtx4080s", "gpu 9 model rtx2080s", "gpu 10 model gh200")
		for i, want := range []struct {
			name string
			arch nvml.DeviceArchitecture
			has  []string
		}{
			{"NVIDIA H100 80GB HBM3", 9, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "fabric", "platform", "margin", "hbm", "average", "kib", "replay", "pcie"}},
			{"NVIDIA A100-SXM4-80GB", 7, []string{"mig", "nvlink", "remap", "sram", "limits", "hbm", "kib", "replay"}},
			{"NVIDIA B200", 10, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "fabric", "platform", "margin", "hbm", "average", "bytes", "symbol", "pcie"}},
			{"Tesla T4", 6, []string{"retire", "limits"}},
			{"NVIDIA H100 80GB HBM3", 9, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "fabric", "platform", "margin", "hbm", "average", "kib", "replay", "pcie"}},
			{"NVIDIA GB200", 10, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "fabric", "platform", "margin", "hbm", "average", "bytes", "symbol", "pcie", "c2c", "module"}},
			{"NVIDIA H200", 9, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "fabric", "platform", "margin", "hbm", "average", "kib", "replay", "pcie"}},
			{"NVIDIA L40S", 8, []string{"remap", "sram", "repair", "platform", "margin", "average"}},
			{"NVIDIA GeForce RTX 4080 SUPER", 8, []string{"sram", "repair", "platform", "limits", "average"}},
			{"NVIDIA GeForce RTX 2080 SUPER", 6, []string{"nvlink", "platform", "limits"}},
			{"NVIDIA GH200 480GB", 9, []string{"gpm", "mig", "nvlink", "remap", "sram", "repair", "platform", "margin", "hbm", "average", "pcie", "c2c", "module"}},
		} {
			gpu := n.gpu(i)
			name, _ := gpu.GetName()
			arch, _ := gpu.GetArchitecture()
			if name != want.name || arch != want.arch {
				n.Errorf("GPU %d: got %s of architecture %d, want %s of architecture %d", i, name, arch, want.name, want.arch)
			}
			got := capabilities(n, gpu)
			for _, has := range want.has {
				if !got[has] {
					n.Errorf("%s lacks %s", name, has)
				}
				delete(got, has)
			}
			for feature, has := range got {
				if has {
					n.Errorf("%s has %s", name, feature)
				}
			}
			if minor, _ := gpu.GetMinorNumber(); minor != i {
				n.Errorf("GPU %d has minor %d", i, minor)
			}
			if major, _, ret := gpu.GetCudaComputeCapability(); ret != nvml.SUCCESS || major < 7 {
				n.Errorf("%s has compute capability %d, %v", name, major, ret)
			}
		}
		n.setLines("gpu 3 power 12345", "gpu 3 model t4", "gpu 3 utilization 50")
		if watts, _ := n.gpu(3).GetPowerUsage(); watts != 9000 {
			n.Errorf("power is %d mW after the model line, want 9000", watts)
		}
		if busy, _ := n.gpu(3).GetUtilizationRates(); busy.Gpu != 50 {
			n.Errorf("utilization is %d, want 50 from the line after the model line", busy.Gpu)
		}
	})
}

func TestFabricBeforeItsVersions(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 fabric_state 2", "gpu 0 fabric_health 5")
		old, ret := n.gpu(0).GetGpuFabricInfoV().V2()
		n.want(nvml.SUCCESS, ret)
		oldest, ret := n.gpu(0).GetGpuFabricInfoV().V1()
		n.want(nvml.SUCCESS, ret)
		if old.State != 2 || old.HealthMask != 5 || oldest.State != 2 {
			n.Errorf("got %+v and %+v", old, oldest)
		}
	})
}

func TestValuesOverTime(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		begin := time.Now().Add(-time.Hour)
		n.setup(fmt.Sprintf("epoch %.6f", float64(begin.UnixNano())/1e9),
			"gpu 0 energy 5000+1000/s", "gpu 0 temperature 40~60/0.02s")
		gpu := n.gpu(0)
		since := func(t time.Time) uint64 { return 5000 + uint64(t.Sub(begin).Milliseconds()) }
		seen := map[uint32]bool{}
		var last uint64
		n.waitUntil("the temperature has more than 10 values", func() bool {
			before := time.Now()
			energy, ret := gpu.GetTotalEnergyConsumption()
			n.want(nvml.SUCCESS, ret)
			// The stand-in extrapolates the clock, so that values may differ a little.
			const slack = 100
			if energy < last || energy < since(before)-slack || energy > since(time.Now())+slack {
				n.Fatalf("energy is %d after %d, want about %d", energy, last, since(before))
			}
			last = energy
			celsius, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
			n.want(nvml.SUCCESS, ret)
			if celsius < 40 || celsius > 60 {
				n.Fatalf("temperature %d is not between 40 and 60", celsius)
			}
			seen[celsius] = true
			return len(seen) > 10
		})
	})
}

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
