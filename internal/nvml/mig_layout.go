package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

const maxMIGDevices = 64 // above any GPU

// readMIGMode reads the MIG mode. Old drivers and GPUs have none.
func (sess *nvmlSession) readMIGMode(handle nvml.Device) (*collect.MIGState, error) {
	if !sess.Symbols["nvmlDeviceGetMigMode"] {
		return &collect.MIGState{}, nil
	}
	mode, pending, ret := handle.GetMigMode()
	switch {
	case lib.IsNotSupported(ret):
		return &collect.MIGState{Denials: 1}, nil
	case ret != nvml.SUCCESS:
		return nil, fmt.Errorf("get its MIG mode: %w", lib.Error(ret))
	}
	return &collect.MIGState{
		Capable: true, Enabled: mode == nvml.DEVICE_MIG_ENABLE, PendingEnabled: pending == nvml.DEVICE_MIG_ENABLE,
	}, nil
}

// listMIGDevices finds the MIG devices in the order of their indices, possibly
// with gaps. Unknown devices keep their earlier state.
func (sess *nvmlSession) listMIGDevices(result *probeResult) {
	mig, previous := result.mig, result.gpu.MIG.Load()
	mig.Devices, mig.MaxDevices = previous.Devices, previous.MaxDevices
	if !sess.Symbols.HasAll(lib.MIGFunctions) {
		result.addError("the library has no functions for MIG devices")
		return
	}
	if mig.MaxDevices == 0 {
		count, ret := result.handle.GetMaxMigDeviceCount() // possible devices, not present ones
		if ret != nvml.SUCCESS {
			result.addError("count its MIG devices: " + lib.Error(ret).Error())
			return
		}
		mig.MaxDevices = min(count, maxMIGDevices)
	}
	var found []collect.MIGDevice
	for i := range mig.MaxDevices {
		var known *collect.MIGDevice
		if at := slices.IndexFunc(previous.Devices, func(d collect.MIGDevice) bool { return d.Index == i }); at >= 0 {
			known = &previous.Devices[at]
		}
		d, err := sess.migDeviceAt(result, i, known)
		// the devices so far may be incomplete
		if code, ok := errors.AsType[lib.Error](err); ok && lib.IsFinal(nvml.Return(code)) {
			result.addError(err.Error())
			return
		}
		if err != nil {
			result.addError(fmt.Sprintf("MIG device %d: %v", i, err))
			d = known
		}
		if d != nil {
			found = append(found, *d)
		}
	}
	mig.Devices = found
}

// migError returns the error of a call about a MIG device; nil for the codes of
// an absent device.
func migError(step string, ret nvml.Return) error {
	if lib.IsNotSupported(ret) || ret == nvml.ERROR_NOT_FOUND {
		return nil
	}
	return fmt.Errorf("%s: %w", step, lib.Error(ret))
}

// migDeviceAt returns the MIG device at an index; nil: absent. A known device is
// asked only for its identity.
func (sess *nvmlSession) migDeviceAt(
	result *probeResult, index int, known *collect.MIGDevice,
) (*collect.MIGDevice, error) {
	handle, ret := result.handle.GetMigDeviceHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, migError("get its handle", ret)
	}
	identity, step, ret := sess.identify(handle)
	if ret != nvml.SUCCESS {
		return nil, migError(step, ret)
	}
	if known != nil && known.MIGIdentity == identity {
		d := *known
		d.Handle = handle
		return &d, nil
	}
	d := &collect.MIGDevice{
		MIGIdentity: identity, Index: index, Handle: handle,
		Placement:   sess.placementOf(result.handle, identity.GI),
		MemoryBytes: cmp.Or(metric.TotalMemory(handle, sess.Symbols), identity.Attributes.MemorySizeMB<<20),
	}
	name := readText(handle, sess.Symbols, "nvmlDeviceGetName", nvml.Device.GetName)
	d.Profile = cmp.Or(profileFromName(name), profileFromAttributes(identity.Attributes, result.gpu.device.MemoryBytes))
	uuid, ret := handle.GetUUID() // the handle may be another device's by now
	switch {
	case ret != nvml.SUCCESS:
		return nil, migError("get its UUID again", ret)
	case device.ID(lib.ToValidUTF8(uuid)) != identity.ID:
		return nil, errors.New("another device has its handle")
	}
	return d, nil
}

// placementOf reads the place of a GPU instance, unknown without access to the
// whole GPU.
func (sess *nvmlSession) placementOf(handle nvml.Device, gi int) device.Placement {
	if !sess.Symbols["nvmlDeviceGetGpuInstanceById"] || !sess.Symbols["nvmlGpuInstanceGetInfo"] {
		return device.Placement{}
	}
	instance, ret := handle.GetGpuInstanceById(gi)
	if ret != nvml.SUCCESS {
		return device.Placement{}
	}
	info, ret := instance.GetInfo()
	if ret != nvml.SUCCESS || info.Id != uint32(gi) {
		return device.Placement{}
	}
	return device.Placement{
		Profile: int(info.ProfileId), Start: int(info.Placement.Start),
		Size: int(info.Placement.Size),
	}
}

// identify reads the identity of a MIG device. On failure step names the call.
func (sess *nvmlSession) identify(handle nvml.Device) (identity collect.MIGIdentity, step string, ret nvml.Return) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return identity, "get its UUID", ret
	}
	identity.ID = device.ID(lib.ToValidUTF8(uuid))
	if identity.GI, ret = handle.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return identity, "get its GPU instance", ret
	}
	if identity.CI, ret = handle.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return identity, "get its compute instance", ret
	}
	if sess.Symbols["nvmlDeviceGetAttributes_v2"] {
		if identity.Attributes, ret = handle.GetAttributes(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return identity, "get its attributes", ret
		}
	}
	return identity, "", nvml.SUCCESS
}

// profilePattern matches NVIDIA's names of profiles.
var profilePattern = regexp.MustCompile(`^(\d+c\.)?\d+g\.\d+gb([+-][a-z0-9.,]+)?$`)

// profileFromName returns the profile in a MIG device's name: "NVIDIA H100 80GB
// HBM3 MIG 1g.10gb". Names have the media extensions of "1g.10gb+me" too;
// attributes have them on some models only.
func profileFromName(name string) string {
	_, profile, _ := strings.Cut(name, "MIG ")
	if !profilePattern.MatchString(profile) {
		return ""
	}
	return profile
}

// profileFromAttributes composes the profile by NVIDIA's rule (go-nvlib,
// pkg/nvlib/device/mig_profile.go): its memory is a share of the GPU's, in
// eighths, rounded up, in GB.
func profileFromAttributes(a nvml.DeviceAttributes, gpuMemory uint64) string {
	if a.GpuInstanceSliceCount == 0 || a.ComputeInstanceSliceCount == 0 || a.MemorySizeMB == 0 {
		return ""
	}
	gb := math.Round(float64(a.MemorySizeMB) / (1 << 10))
	if gpuMemory > 0 {
		eighths := math.Ceil(8 * float64(a.MemorySizeMB<<20) / float64(gpuMemory))
		gb = math.Round(eighths / 8 * float64((gpuMemory+1<<30-1)>>30))
	}
	profile := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, int(gb))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		profile = fmt.Sprintf("%dc.", a.ComputeInstanceSliceCount) + profile
	}
	return profile
}

// asDevice returns the MIG device, with the facts of its GPU apart from memory
// and device nodes.
func asDevice(m collect.MIGDevice, gpu device.Device, maxDevices int) device.Device {
	d := gpu
	d.ComputeSlices = maxDevices // the smallest MIG device has one slice
	d.ID, d.MIGEnabled, d.MemoryBytes = m.ID, false, m.MemoryBytes
	d.MIGDeviceIndex, d.GI, d.CI, d.Profile, d.Placement = m.Index, m.GI, m.CI, m.Profile, m.Placement
	return d
}

// capNodes returns the device nodes of both instances of a MIG device in the
// driver's list of all instances. There, gpu<N> is /dev/nvidia<N>, not NVML's
// index.
func capNodes(migMinors string, d device.Device) (nodes []string) {
	gi := fmt.Sprintf("gpu%d/gi%d/access", d.Minor, d.GI)
	ci := fmt.Sprintf("gpu%d/gi%d/ci%d/access", d.Minor, d.GI, d.CI)
	for line := range strings.Lines(migMinors) {
		file, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(number, 10, 20); err == nil && (file == gi || file == ci) {
			nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
		}
	}
	return nodes
}
