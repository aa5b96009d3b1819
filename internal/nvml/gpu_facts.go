package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	g.CheckFabricManager = b.options.CheckFabricManager && b.hasFabric() && beforeHopper(handle, has) &&
		!hasVirtualGPUs(handle, has)
	g.device = device.Device{
		ID: device.ID(id), GPU: id, Model: readText(handle, has, "nvmlDeviceGetName", nvml.Device.GetName), Minor: -1,
		NUMANode: -1, MIGDeviceIndex: -1, GI: -1, CI: -1,
		MemoryBytes: metric.TotalMemory(handle, has), InfoLabels: append(gpuLabels(handle, has), sess.commonLabels...),
	}
	if minor, ok := lib.Ask(has, "nvmlDeviceGetMinorNumber", handle.GetMinorNumber); ok && minor <= maxMinor {
		g.device.Minor = minor
	}
	if pci, ok := lib.Ask(has, "nvmlDeviceGetPciInfo_v3", handle.GetPciInfo); ok {
		g.device.PCI = pciAddress(pci)
		g.device.NUMANode = numaNode(b.options.SysRoot, g.device.PCI)
	}
	return g, nil
}

// beforeHopper reports whether the GPU is of an architecture without a state of
// the fabric.
func beforeHopper(handle nvml.Device, has lib.Symbols) bool {
	a, ok := lib.Ask(has, "nvmlDeviceGetArchitecture", handle.GetArchitecture)
	return ok && a < nvml.DEVICE_ARCH_HOPPER
}

// hasVirtualGPUs reports whether the GPU is virtual, or the host of virtual GPUs:
// its NVLinks are the hypervisor's matter.
func hasVirtualGPUs(handle nvml.Device, has lib.Symbols) bool {
	if !has["nvmlDeviceGetVirtualizationMode"] {
		return false
	}
	mode, ret := handle.GetVirtualizationMode()
	return !lib.IsUnavailable(ret) && (ret != nvml.SUCCESS || mode > nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
}

// hasFabric reports whether the node has NVSwitches and a driver with NVLinks.
func (b *Backend) hasFabric() bool {
	b.fabric.once.Do(func() {
		// without the file the NVLinks are enabled, the driver's default
		params, _ := os.ReadFile(filepath.Join(b.options.ProcRoot, "driver/nvidia/params"))
		b.fabric.found = !strings.Contains(string(params), "NvLinkDisable: 1\n") && findNVSwitches(b.options.SysRoot)
	})
	return b.fabric.found
}

// findNVSwitches looks in sysfs for PCI devices of NVIDIA with the class "other
// bridge".
func findNVSwitches(sysRoot string) bool {
	has := func(folder, file, want string) bool {
		text, _ := os.ReadFile(filepath.Join(folder, file)) // missing: another device
		return strings.TrimSpace(string(text)) == want
	}
	folders, _ := filepath.Glob(filepath.Join(sysRoot, "bus/pci/devices/*")) // the pattern is valid
	return slices.ContainsFunc(folders, func(f string) bool {
		return has(f, "class", "0x068000") && has(f, "vendor", "0x10de")
	})
}

// pciAddress has the format of sysfs.
func pciAddress(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// numaNode returns the node in sysfs, or -1. NVML's nvmlDeviceGetNumaNodeId is
// the node of the GPU's own memory, on machines with access to it from the CPU.
func numaNode(sysRoot, pci string) int {
	text, _ := os.ReadFile(filepath.Join(sysRoot, "bus/pci/devices", pci, "numa_node")) // unreadable: no number
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return max(node, -1)
}

// infoLabels are the labels of each GPU, possibly empty: all series of a family
// need the same labels.
var infoLabels = [...]struct {
	name, symbol string
	read         func(nvml.Device) (string, nvml.Return)
}{
	{"serial", "nvmlDeviceGetSerial", nvml.Device.GetSerial},
	{"vbios_version", "nvmlDeviceGetVbiosVersion", nvml.Device.GetVbiosVersion},
	{"compute_capability", "nvmlDeviceGetCudaComputeCapability", computeCapability},
	{"architecture", "nvmlDeviceGetArchitecture", architecture},
}

// platformLabels are the position of the GPU in a rack-scale machine.
var platformLabels = [...]string{"chassis_serial", "chassis_slot", "chassis_tray", "host_id", "module_id"}

func gpuLabels(handle nvml.Device, has lib.Symbols) []device.Label {
	labels := make([]device.Label, 0, len(infoLabels)+len(platformLabels))
	for _, f := range infoLabels {
		labels = append(labels, device.Label{Name: f.name, Value: readText(handle, has, f.symbol, f.read)})
	}
	platform := readPlatform(handle, has)
	for i, name := range platformLabels {
		labels = append(labels, device.Label{Name: name, Value: platform[i]})
	}
	return labels
}

// readText returns a text of the driver, empty if unknown.
func readText(handle nvml.Device, has lib.Symbols, symbol string, read func(nvml.Device) (string, nvml.Return)) string {
	text, ok := lib.Ask(has, symbol, func() (string, nvml.Return) { return read(handle) })
	if !ok {
		return ""
	}
	return lib.ToValidUTF8(text)
}

// unknownPosition is the byte of an unknown position. DCGM too treats the byte
// as invalid.
const unknownPosition = 0xFF

// readPlatform returns the values of platformLabels, empty if unknown. Without a
// chassis the driver fills in 0 and 1 for all but the module; nvidia-smi shows
// none of them either.
func readPlatform(handle nvml.Device, has lib.Symbols) (values [len(platformLabels)]string) {
	p, ok := lib.Ask(has, "nvmlDeviceGetPlatformInfo", handle.GetPlatformInfo)
	if !ok {
		return values
	}
	serial, _, _ := strings.Cut(string(p.ChassisSerialNumber[:]), "\x00")
	if strings.Count(serial, string([]byte{unknownPosition})) < len(serial) {
		values[0] = lib.ToValidUTF8(serial)
	}
	for i, n := range [...]uint8{p.SlotNumber, p.TrayIndex, p.HostId, p.ModuleId} {
		if n != unknownPosition && (values[0] != "" || platformLabels[1+i] == "module_id") {
			values[1+i] = strconv.Itoa(int(n))
		}
	}
	return values
}

// architectures have NVIDIA's names. Newer ones show their number.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "Kepler", nvml.DEVICE_ARCH_MAXWELL: "Maxwell", nvml.DEVICE_ARCH_PASCAL: "Pascal",
	nvml.DEVICE_ARCH_VOLTA: "Volta", nvml.DEVICE_ARCH_TURING: "Turing", nvml.DEVICE_ARCH_AMPERE: "Ampere",
	nvml.DEVICE_ARCH_ADA: "Ada", nvml.DEVICE_ARCH_HOPPER: "Hopper", nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	nvml.DEVICE_ARCH_RUBIN: "Rubin", nvml.DEVICE_ARCH_UNKNOWN: "",
}

func architecture(handle nvml.Device) (string, nvml.Return) {
	a, ret := handle.GetArchitecture()
	if name, known := architectures[a]; known {
		return name, ret
	}
	return strconv.Itoa(int(a)), ret
}

// computeCapability is formatted as in CUDA's documents: 9.0.
func computeCapability(handle nvml.Device) (string, nvml.Return) {
	major, minor, ret := handle.GetCudaComputeCapability()
	return strconv.Itoa(major) + "." + strconv.Itoa(minor), ret
}

// systemLabels are the same for all GPUs of a node.
func systemLabels(s *lib.Session, confidential string) []device.Label {
	var cuda string
	if v, ok := lib.Ask(s.Symbols, "nvmlSystemGetCudaDriverVersion", s.NVML.SystemGetCudaDriverVersion); ok {
		// 12080 is 12.8 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR)
		cuda = strconv.Itoa(v/1000) + "." + strconv.Itoa(v%1000/10)
	}
	return []device.Label{
		{Name: "driver_version", Value: s.Version},
		{Name: "cuda_version", Value: cuda},
		{Name: "confidential_computing", Value: confidential},
	}
}

// confidentialComputing returns the mode of the node's GPUs, empty if unknown.
func confidentialComputing(session *lib.Session) string {
	s, ok := lib.Ask(session.Symbols, "nvmlSystemGetConfComputeState", session.NVML.SystemGetConfComputeState)
	switch {
	case !ok:
		return ""
	case s.CcFeature != nvml.CC_SYSTEM_FEATURE_ENABLED:
		return "off"
	case s.DevToolsMode == nvml.CC_SYSTEM_DEVTOOLS_MODE_ON:
		return "devtools"
	default:
		return "on"
	}
}
