package nvml

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

const (
	maxMIGDevices = 64      // above any GPU
	maxInstanceID = 1 << 16 // above any instance
)

// migLayout is the partitioning of a GPU. After publication it is never written.
type migLayout struct {
	capable, enabled bool
	pendingEnabled   bool // after a reset
	devices          []*listedMIGDevice
	maxDevices       int // 0: unknown
	// handles are those of the listing. NVML may give a handle to another MIG device at any time.
	handles map[*listedMIGDevice]nvml.Device
	denials collect.Denials // of the MIG mode, by listings in a row
}

// state returns the part for readings.
func (p *migLayout) state() *collect.MIGState {
	s := &collect.MIGState{Capable: p.capable, Enabled: p.enabled, PendingEnabled: p.pendingEnabled, Denied: p.denials.Confirmed()}
	for _, d := range p.devices {
		s.Devices = append(s.Devices, collect.MIGDevice{ID: d.id, GI: d.gi, CI: d.ci, Handle: p.handles[d]})
	}
	return s
}

// withDenial returns the layout after a denial of the MIG mode, unpartitioned only with enough of them.
func (p *migLayout) withDenial(now time.Time) *migLayout {
	after := *p
	if after.denials.Record(true, now); after.denials.Confirmed() {
		return &migLayout{denials: after.denials}
	}
	return &after
}

// listedMIGDevice is a MIG device as long as it is listed. NVML reuses handles, so each listing gets a new handle by
// index, and compares the identity.
type listedMIGDevice struct {
	instanceIdentity
	index     int    // on its GPU
	profile   string // "1c.3g.40gb"
	placement device.Placement
	memory    uint64   // bytes
	capNodes  []string // device nodes; belongs to Devices
}

// instanceIdentity tells a MIG device from a later one with its index, its instances' numbers or even its UUID: up to driver 460 UUIDs
// consist of the numbers, and numbers are reused at once.
type instanceIdentity struct {
	id         device.ID
	gi, ci     int
	attributes nvml.DeviceAttributes
}

// listMIGDevices finds the MIG devices in the order of their indices, possibly with gaps. Unknown devices keep their earlier state.
func (sess *nvmlSession) listMIGDevices(result *probeResult) {
	previous := result.gpu.layout.Load()
	result.layout.devices, result.layout.maxDevices = slices.Clone(previous.devices), previous.maxDevices
	if !sess.Symbols.SupportsMIG() {
		result.addError("the library has no functions for its slices")
		return
	}
	if previous.maxDevices == 0 {
		count, ret := result.handle.GetMaxMigDeviceCount() // possible devices, not present ones
		if ret != nvml.SUCCESS {
			result.addError("count its slices: " + lib.Error(ret).Error())
			return
		}
		if count > maxMIGDevices {
			result.addError(fmt.Sprintf("count its slices: the driver says %d", count))
			return
		}
		result.layout.maxDevices = count
	}
	var found []*listedMIGDevice
	handles := map[*listedMIGDevice]nvml.Device{}
	for i := range result.layout.maxDevices {
		s, handle, err := sess.migDeviceAt(result, i)
		if err.isFinal() { // the devices so far may be incomplete
			result.addError(err.text)
			return
		}
		if err != (migError{}) {
			result.addError(fmt.Sprintf("slice %d: %s", i, err.text))
			if at := slices.IndexFunc(previous.devices, func(d *listedMIGDevice) bool { return d.index == i }); at >= 0 {
				s = previous.devices[at]
			}
		}
		if s != nil {
			found = append(found, s)
		}
		if handle != nil {
			handles[s] = handle
		}
	}
	result.layout.devices, result.layout.handles = found, handles
}

func (r *probeResult) addError(text string) { r.migErrs = append(r.migErrs, text) }

// migError is the reason for an unknown MIG device; the zero value is no error.
type migError struct {
	ret  nvml.Return
	text string
}

func (e migError) isFinal() bool { return e.text != "" && lib.IsFinal(e.ret) }

// newMIGError returns no error for the code of an absent MIG device.
func newMIGError(step string, ret nvml.Return) migError {
	if lib.IsNotSupported(ret) || ret == nvml.ERROR_NOT_FOUND {
		return migError{}
	}
	return migError{ret, step + ": " + lib.Error(ret).Error()}
}

// migDeviceAt returns the MIG device at an index with its handle; nil: absent. A known device is asked only for its identity.
func (sess *nvmlSession) migDeviceAt(result *probeResult, index int) (*listedMIGDevice, nvml.Device, migError) {
	handle, ret := result.handle.GetMigDeviceHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, nil, newMIGError("get its handle", ret)
	}
	identity, step, ret := sess.identify(handle)
	if ret != nvml.SUCCESS {
		return nil, nil, newMIGError(step, ret)
	}
	if identity.id == "" || identity.gi > maxInstanceID || identity.ci > maxInstanceID {
		return nil, nil, migError{text: fmt.Sprintf("it cannot be %q, GI %d, CI %d", identity.id, identity.gi, identity.ci)}
	}
	for _, known := range result.layout.devices {
		if known.instanceIdentity == identity && known.index == index {
			return known, handle, migError{}
		}
	}
	s := &listedMIGDevice{
		instanceIdentity: identity, index: index, placement: sess.placementOf(result.handle, identity.gi),
		memory: cmp.Or(metric.TotalMemory(handle, sess.Symbols), identity.attributes.MemorySizeMB<<20),
	}
	if sess.Symbols["nvmlDeviceGetName"] {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			s.profile = profileFromName(lib.ToValidUTF8(name))
		}
	}
	s.profile = cmp.Or(s.profile, profileFromAttributes(identity.attributes, result.gpu.device.MemoryBytes))
	uuid, ret := handle.GetUUID() // the handle may be another device's by now
	switch {
	case ret != nvml.SUCCESS:
		return nil, nil, newMIGError("get its UUID again", ret)
	case device.ID(lib.ToValidUTF8(uuid)) != identity.id:
		return nil, nil, migError{text: "it became another one while it was asked"}
	}
	return s, handle, migError{}
}

// placementOf reads the place of a GPU instance. The driver tells only those with access to the whole GPU.
func (sess *nvmlSession) placementOf(handle nvml.Device, gi int) device.Placement {
	if !sess.Symbols["nvmlDeviceGetGpuInstanceById"] || !sess.Symbols["nvmlGpuInstanceGetInfo"] {
		return device.Placement{}
	}
	instance, ret := handle.GetGpuInstanceById(gi)
	if ret != nvml.SUCCESS {
		return device.Placement{}
	}
	info, ret := instance.GetInfo()
	p := info.Placement
	if ret != nvml.SUCCESS || info.Id != uint32(gi) || info.ProfileId > maxInstanceID || p.Start > maxInstanceID || p.Size > maxInstanceID {
		return device.Placement{}
	}
	return device.Placement{Profile: int(info.ProfileId), Start: int(p.Start), Size: int(p.Size)}
}

// identify reads the identity of a MIG device. On failure step names the call.
func (sess *nvmlSession) identify(handle nvml.Device) (identity instanceIdentity, step string, ret nvml.Return) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return identity, "get its UUID", ret
	}
	identity.id = device.ID(lib.ToValidUTF8(uuid))
	if identity.gi, ret = handle.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return identity, "get its GPU instance", ret
	}
	if identity.ci, ret = handle.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return identity, "get its compute instance", ret
	}
	if sess.Symbols["nvmlDeviceGetAttributes_v2"] {
		if identity.attributes, ret = handle.GetAttributes(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return identity, "get its attributes", ret
		}
	}
	return identity, "", nvml.SUCCESS
}

// profilePattern matches NVIDIA's names of profiles.
var profilePattern = regexp.MustCompile(`^(\d+c\.)?\d+g\.\d+gb([+-][a-z0-9.,]+)?$`)

// profileFromName returns the profile in a MIG device's name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb". Names have the media extensions of
// "1g.10gb+me" too; attributes have them on some models only.
func profileFromName(name string) string {
	_, profile, _ := strings.Cut(name, "MIG ")
	if !profilePattern.MatchString(profile) {
		return ""
	}
	return profile
}

// profileFromAttributes composes the profile by NVIDIA's rule (go-nvlib, pkg/nvlib/device/mig_profile.go): its memory is a share of the
// GPU's, in eighths, rounded up, in GB.
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

// asDevice returns the MIG device, with the facts of its GPU apart from the memory.
func (m *listedMIGDevice) asDevice(parent device.Device, ownNodes int) device.Device {
	d := parent
	d.ID, d.MIGEnabled, d.MemoryBytes = m.id, false, m.memory
	d.MIGDeviceIndex, d.GI, d.CI, d.Profile, d.Placement = m.index, m.gi, m.ci, m.profile, m.placement
	d.DeviceNodes = slices.Concat(parent.DeviceNodes[:ownNodes], m.capNodes, parent.DeviceNodes[ownNodes:])
	return d
}

// findCapNodes finds the device nodes of both instances. The driver creates them with the MIG device or a little later.
func (l *deviceListing) findCapNodes(s *listedMIGDevice, minor int) {
	if len(s.capNodes) == 2 || minor < 0 {
		return
	}
	s.capNodes = nil
	gi := fmt.Sprintf("gi%d", s.gi)
	for _, instance := range []string{gi, gi + "/ci" + strconv.Itoa(s.ci)} {
		if n, ok := l.capMinor(minor, instance); ok {
			s.capNodes = append(s.capNodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
		}
	}
}

// capMinor returns the minor number of an instance's node, from the driver's file for the instance or from its list of all instances. In
// both, gpu<N> is /dev/nvidia<N>, not NVML's index.
func (l *deviceListing) capMinor(minor int, instance string) (int, bool) {
	dir := filepath.Join(l.options.ProcRoot, "driver")
	file := filepath.Join(dir, fmt.Sprintf("nvidia/capabilities/gpu%d/mig/%s/access", minor, instance))
	if text, found := findLine(file, "DeviceFileMinor:"); found {
		return parseMinor(text)
	}
	text, _ := findLine(filepath.Join(dir, "nvidia-caps/mig-minors"), fmt.Sprintf("gpu%d/%s/access ", minor, instance))
	return parseMinor(text)
}

// findLine returns the rest of the first line with a prefix.
func findLine(file, prefix string) (rest string, found bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, prefix); found {
			return rest, true
		}
	}
	return "", false
}

func parseMinor(text string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil && n >= 0 && n <= maxMinor
}
