package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/retry"
)

const maxMinor = 1<<20 - 1 // of a device node in Linux

// describeGPU reads the constant facts of a GPU. Only the UUID is mandatory. A
// failed fact stays unknown until the next Init: a device must not change while
// it is allocated.
func (b *Backend) describeGPU(sess *nvmlSession, handle nvml.Device) (*gpu, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("get its UUID: %w", lib.Error(ret))
	}
	id := device.GPU(lib.ToValidUTF8(uuid))
	if id == "" {
		return nil, errors.New("its UUID is empty")
	}
	has := sess.Symbols
	g := &gpu{
		GPUReader:       collect.NewGPUReader(id, handle, sess.Session, b.plan, b.histories.Of(id)),
		registerBackoff: retry.Backoff{Min: minRegisterInterval, Max: maxRegisterInterval},
	}
	g.MIG.Store(&collect.MIGState{Unknown: true})
	g.device = device.Device{
		ID: device.ID(id), GPU: id, Model: readText(handle, has, "nvmlDeviceGetName", nvml.Device.GetName), Minor: -1,
		NUMANode: -1, MIGDeviceIndex: -1, GI: -1, CI: -1,
		MemoryBytes: metric.TotalMemory(handle, has), InfoLabels: append(gpuLabels(handle, has), sess.commonLabels...),
	}
	if has["nvmlDeviceGetMinorNumber"] {
		if minor, ret := handle.GetMinorNumber(); ret == nvml.SUCCESS && minor <= maxMinor {
			g.device.Minor = minor
		}
	}
	if has["nvmlDeviceGetPciInfo_v3"] {
		if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
			g.device.PCI = pciAddress(pci)
			g.device.NUMANode = numaNode(b.options.SysRoot, g.device.PCI)
		}
	}
	return g, nil
}

// pciAddress has the format of sysfs.
func pciAddress(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// numaNode returns the node in sysfs, or -1. NVML's nvmlDeviceGetNumaNodeId is
// the node of the GPU's own memory, on machines with access to it from the CPU.
func numaNode(sysRoot, pci string) int {
	text, err := os.ReadFile(filepath.Join(sysRoot, "bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return max(node, -1)
}
