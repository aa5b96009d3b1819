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
	// maxMIGDevices is more than any GPU has; a count above it is none.
	maxMIGDevices = 64
	// maxInstanceID is above the number of any instance.
	maxInstanceID = 1 << 16
)

// migLayout are how a GPU is partitioned. They are not written once they are the GPU's.
type migLayout struct {
	enabled    bool
	devices    []*listedMIGDevice
	maxDevices int // how many there can be; 0: not known
	// handles are those that the listing was given. NVML may give one to another slice at
	// any time.
	handles map[*listedMIGDevice]nvml.Device
	// capable is true if the GPU has MIG mode, pending if the mode will be on after a reset.
	capable, pendingEnabled bool
	// denials is how often in a row listings were told that the GPU has no such mode.
	denials collect.Denials
}

// state is the layout as far as readings need it.
func (p *migLayout) state() *collect.MIGState {
	s := &collect.MIGState{Capable: p.capable, Enabled: p.enabled, PendingEnabled: p.pendingEnabled, Denied: p.denials.Confirmed()}
	for _, d := range p.devices {
		s.Devices = append(s.Devices, collect.MIGDevice{ID: d.id, GI: d.gi, CI: d.ci, Handle: p.handles[d]})
	}
	return s
}

// withDenial is what is known after a listing was told that the GPU has no such mode.
func (p *migLayout) withDenial(now time.Time) *migLayout {
	after := *p
	if after.denials.Record(true, now); after.denials.Confirmed() {
		return &migLayout{denials: after.denials}
	}
	return &after
}

// listedMIGDevice is a MIG slice as long as it is listed. It has no handle of its own: NVML gives
// that to another slice when this one is gone, so each listing asks for it anew, by
// index, and a slice is known again by its life.
type listedMIGDevice struct {
	instanceIdentity
	index     int    // under its GPU
	profile   string // "1c.3g.40gb"
	placement device.Placement
	memory    uint64   // bytes
	capNodes  []string // the nodes that open it; belongs to Devices
}

// instanceIdentity is what tells a slice from one that has its index, its instances' numbers or
// even its UUID later: up to driver 460 that is made of the numbers, which are given
// again at once.
type instanceIdentity struct {
	id         device.ID
	gi, ci     int
	attributes nvml.DeviceAttributes
}

// listMIGDevices finds the slices of a GPU whose mode is on, in the order of their
// indices, which may have holes. What cannot be told now stays as it is known.
func (sess *nvmlSession) listMIGDevices(result *probeResult) {
	previous := result.gpu.layout.Load()
	result.layout.devices, result.layout.maxDevices = slices.Clone(previous.devices), previous.maxDevices
	if !sess.Symbols.SupportsMIG() {
		result.addError("the library has no functions for its slices")
		return
	}
	if previous.maxDevices == 0 { // this is how many there can be, not how many there are
		count, ret := result.handle.GetMaxMigDeviceCount()
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
		if err.isFinal() { // what was found before it may be half the truth
			result.addError(err.text)
			return
		}
		if err != (migError{}) {
			result.addError(fmt.Sprintf("slice %d: %s", i, err.text))
			s = previous.deviceAt(i)
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

func (l *deviceListing) addError(g *gpu, text string) {
	l.errs = append(l.errs, fmt.Sprintf("%s: %s", g.ID, text))
}

// migError is why a slice cannot be told. The zero one is no error.
type migError struct {
	ret  nvml.Return
	text string
}

func (e migError) isFinal() bool { return e.text != "" && lib.IsFinal(e.ret) }

// newMIGError makes an error of an answer, and none of one that says that there is no
// such slice, or no longer.
func newMIGError(step string, ret nvml.Return) migError {
	if lib.IsNotSupported(ret) || ret == nvml.ERROR_NOT_FOUND {
		return migError{}
	}
	return migError{ret, step + ": " + lib.Error(ret).Error()}
}

// migDeviceAt is the slice at an index and its handle, nil where there is none. One that is
// known is asked only who it is.
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
	s := &listedMIGDevice{instanceIdentity: identity, index: index, memory: metric.TotalMemory(handle, sess.Symbols), placement: sess.placementOf(result.handle, identity.gi)}
	if s.memory == 0 {
		s.memory = identity.attributes.MemorySizeMB << 20
	}
	if sess.Symbols["nvmlDeviceGetName"] {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			s.profile = profileFromName(lib.ToValidUTF8(name))
		}
	}
	s.profile = cmp.Or(s.profile, profileFromAttributes(identity.attributes, result.gpu.device.MemoryBytes))
	// The handle may have become another slice's while it was asked.
	uuid, ret := handle.GetUUID()
	switch {
	case ret != nvml.SUCCESS:
		return nil, nil, newMIGError("get its UUID again", ret)
	case device.ID(lib.ToValidUTF8(uuid)) != identity.id:
		return nil, nil, migError{text: "it became another one while it was asked"}
	}
	return s, handle, migError{}
}

// placementOf asks a GPU where one of its GPU instances lies. It may be refused: the
// driver says so only to those who may see all of the GPU.
func (sess *nvmlSession) placementOf(handle nvml.Device, gi int) device.Placement {
	if !sess.Symbols["nvmlDeviceGetGpuInstanceById"] || !sess.Symbols["nvmlGpuInstanceGetInfo"] {
		return device.Placement{}
	}
	instance, ret := handle.GetGpuInstanceById(gi)
	if ret != nvml.SUCCESS {
		return device.Placement{}
	}
	info, ret := instance.GetInfo()
	if placement := info.Placement; ret != nvml.SUCCESS || info.Id != uint32(gi) ||
		info.ProfileId > maxInstanceID || placement.Start > maxInstanceID || placement.Size > maxInstanceID {
		return device.Placement{}
	}
	return device.Placement{Profile: int(info.ProfileId), Start: int(info.Placement.Start), Size: int(info.Placement.Size)}
}

// membersKeyOf asks a slice who it is. Where that fails, what says at which question.
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
		attributes, ret := handle.GetAttributes()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return identity, "get its attributes", ret
		}
		identity.attributes = attributes
	}
	return identity, "", nvml.SUCCESS
}

func (p *migLayout) deviceAt(index int) *listedMIGDevice {
	if i := slices.IndexFunc(p.devices, func(s *listedMIGDevice) bool { return s.index == index }); i >= 0 {
		return p.devices[i]
	}
	return nil
}

// profilePattern is a profile as NVIDIA writes it.
var profilePattern = regexp.MustCompile(`^(\d+c\.)?\d+g\.\d+gb([+-][a-z0-9.,]+)?$`)

// profileFromName finds the profile in a slice's name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
// It is there that the media extensions of "1g.10gb+me" can be read; attributes tell
// them on some models only.
func profileFromName(name string) string {
	_, profile, _ := strings.Cut(name, "MIG ")
	if !profilePattern.MatchString(profile) {
		return ""
	}
	return profile
}

// profileFromAttributes makes a profile's name of what a slice has, by NVIDIA's own rule
// (go-nvlib, pkg/nvlib/device/mig_profile.go): the share of the GPU's memory, in
// eighths, rounded up, of its memory in GB.
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

// asDevice is the slice as it is listed now. Of its GPU it has all but the memory.
func (m *listedMIGDevice) asDevice(parent device.Device, ownNodes int) device.Device {
	d := parent
	d.ID, d.MIGEnabled = m.id, false
	d.MIGDeviceIndex, d.GI, d.CI, d.Profile = m.index, m.gi, m.ci, m.profile
	d.Placement = m.placement
	d.MemoryBytes = m.memory
	d.DeviceNodes = slices.Concat(parent.DeviceNodes[:ownNodes], m.capNodes, parent.DeviceNodes[ownNodes:])
	return d
}

// findCapNodes finds the device nodes that open a slice: one for each of its
// instances. The driver makes them with the slice, or a little later.
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

// capMinor is the minor number of the node that opens an instance, from the file
// that the driver makes for each or from its list of all that there could be. In
// both, gpu<N> is the N of /dev/nvidia<N>, and not NVML's index.
func (l *deviceListing) capMinor(minor int, instance string) (int, bool) {
	dir := filepath.Join(l.options.ProcRoot, "driver")
	if text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("nvidia/capabilities/gpu%d/mig/%s/access", minor, instance))); err == nil {
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
				return parseMinor(value)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "nvidia-caps/mig-minors"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, fmt.Sprintf("gpu%d/%s/access ", minor, instance)); ok {
			return parseMinor(value)
		}
	}
	return 0, false
}

func parseMinor(text string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil && n >= 0 && n <= maxMinor
}
