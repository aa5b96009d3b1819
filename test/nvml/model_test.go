package nvmltest

import (
	"slices"
	"testing"

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
