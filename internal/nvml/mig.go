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
)

const (
	// mostSlices is more than any GPU has; a count above it is none.
	mostSlices = 64
	// mostInstance is above the number of any instance.
	mostInstance = 1 << 16
)

// parts are how a GPU is partitioned. They are not written once they are the GPU's.
type parts struct {
	mig    bool
	slices []*slice
	most   int // how many there can be; 0: not known
	// handles are those that the listing was given. NVML may give one to another slice at
	// any time.
	handles map[*slice]nvml.Device
	// capable is true if the GPU has MIG mode, pending if the mode will be on after a reset.
	capable, pending bool
	// absent is how often in a row listings were told that the GPU has no such mode.
	absent absence
}

// deniedAgain is what is known after a listing was told that the GPU has no such mode.
func (p *parts) deniedAgain(now time.Time) *parts {
	after := *p
	if after.absent.note(true, now); after.absent.believed() {
		return &parts{absent: after.absent}
	}
	return &after
}

// slice is a MIG slice as long as it is listed. It has no handle of its own: NVML gives
// that to another slice when this one is gone, so each listing asks for it anew, by
// index, and a slice is known again by its life.
type slice struct {
	life
	index     int    // under its GPU
	profile   string // "1c.3g.40gb"
	placement device.Placement
	memory    uint64   // bytes
	caps      []string // the nodes that open it; belongs to Devices
}

// life is what tells a slice from one that has its index, its instances' numbers or
// even its UUID later: up to driver 460 that is made of the numbers, which are given
// again at once.
type life struct {
	id         device.ID
	gi, ci     int
	attributes nvml.DeviceAttributes
}

// partition finds the slices of a GPU whose mode is on, in the order of their
// indices, which may have holes. What cannot be told now stays as it is known.
func (d *driver) partition(f *finding) {
	known := f.gpu.parts.Load()
	f.parts.slices, f.parts.most = slices.Clone(known.slices), known.most
	if !d.has.slices() {
		f.complain("the library has no functions for its slices")
		return
	}
	if known.most == 0 { // this is how many there can be, not how many there are
		count, ret := f.handle.GetMaxMigDeviceCount()
		if ret != nvml.SUCCESS {
			f.complain("count its slices: " + answer(ret).Error())
			return
		}
		if count > mostSlices {
			f.complain(fmt.Sprintf("count its slices: the driver says %d", count))
			return
		}
		f.parts.most = count
	}
	var found []*slice
	handles := map[*slice]nvml.Device{}
	for i := range f.parts.most {
		s, handle, err := d.sliceAt(f, i)
		if err.isFinal() { // what was found before it may be half the truth
			f.complain(err.text)
			return
		}
		if err != (sliceError{}) {
			f.complain(fmt.Sprintf("slice %d: %s", i, err.text))
			s = known.at(i)
		}
		if s != nil {
			found = append(found, s)
		}
		if handle != nil {
			handles[s] = handle
		}
	}
	f.parts.slices, f.parts.handles = found, handles
}

func (f *finding) complain(what string) { f.errs = append(f.errs, what) }

func (l *listing) complain(g *gpu, what string) {
	l.errs = append(l.errs, fmt.Sprintf("%s: %s", g.id, what))
}

// sliceError is why a slice cannot be told. The zero one is no error.
type sliceError struct {
	ret  nvml.Return
	text string
}

func (e sliceError) isFinal() bool { return e.text != "" && isFinal(e.ret) }

// failed makes an error of an answer, and none of one that says that there is no
// such slice, or no longer.
func failed(what string, ret nvml.Return) sliceError {
	if notHere(ret) || ret == nvml.ERROR_NOT_FOUND {
		return sliceError{}
	}
	return sliceError{ret, what + ": " + answer(ret).Error()}
}

// sliceAt is the slice at an index and its handle, nil where there is none. One that is
// known is asked only who it is.
func (d *driver) sliceAt(f *finding, index int) (*slice, nvml.Device, sliceError) {
	handle, ret := f.handle.GetMigDeviceHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, nil, failed("get its handle", ret)
	}
	life, what, ret := d.lifeOf(handle)
	if ret != nvml.SUCCESS {
		return nil, nil, failed(what, ret)
	}
	if life.id == "" || life.gi > mostInstance || life.ci > mostInstance {
		return nil, nil, sliceError{text: fmt.Sprintf("it cannot be %q, GI %d, CI %d", life.id, life.gi, life.ci)}
	}
	for _, known := range f.parts.slices {
		if known.life == life && known.index == index {
			return known, handle, sliceError{}
		}
	}
	s := &slice{life: life, index: index, memory: totalMemory(handle, d.has), placement: d.placementOf(f.handle, life.gi)}
	if s.memory == 0 {
		s.memory = life.attributes.MemorySizeMB << 20
	}
	if d.has["nvmlDeviceGetName"] {
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			s.profile = profileIn(clean(name))
		}
	}
	s.profile = cmp.Or(s.profile, profileOf(life.attributes, f.gpu.device.MemoryBytes))
	// The handle may have become another slice's while it was asked.
	uuid, ret := handle.GetUUID()
	switch {
	case ret != nvml.SUCCESS:
		return nil, nil, failed("get its UUID again", ret)
	case device.ID(clean(uuid)) != life.id:
		return nil, nil, sliceError{text: "it became another one while it was asked"}
	}
	return s, handle, sliceError{}
}

// placementOf asks a GPU where one of its GPU instances lies. It may be refused: the
// driver says so only to those who may see all of the GPU.
func (d *driver) placementOf(handle nvml.Device, gi int) device.Placement {
	if !d.has["nvmlDeviceGetGpuInstanceById"] || !d.has["nvmlGpuInstanceGetInfo"] {
		return device.Placement{}
	}
	instance, ret := handle.GetGpuInstanceById(gi)
	if ret != nvml.SUCCESS {
		return device.Placement{}
	}
	info, ret := instance.GetInfo()
	if at := info.Placement; ret != nvml.SUCCESS || info.Id != uint32(gi) ||
		info.ProfileId > mostInstance || at.Start > mostInstance || at.Size > mostInstance {
		return device.Placement{}
	}
	return device.Placement{Profile: int(info.ProfileId), Start: int(info.Placement.Start), Size: int(info.Placement.Size)}
}

// lifeOf asks a slice who it is. Where that fails, what says at which question.
func (d *driver) lifeOf(handle nvml.Device) (life life, what string, ret nvml.Return) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return life, "get its UUID", ret
	}
	life.id = device.ID(clean(uuid))
	if life.gi, ret = handle.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return life, "get its GPU instance", ret
	}
	if life.ci, ret = handle.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return life, "get its compute instance", ret
	}
	if d.has["nvmlDeviceGetAttributes_v2"] {
		attributes, ret := handle.GetAttributes()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return life, "get its attributes", ret
		}
		life.attributes = attributes
	}
	return life, "", nvml.SUCCESS
}

func (p *parts) at(index int) *slice {
	if i := slices.IndexFunc(p.slices, func(s *slice) bool { return s.index == index }); i >= 0 {
		return p.slices[i]
	}
	return nil
}

// profilePattern is a profile as NVIDIA writes it.
var profilePattern = regexp.MustCompile(`^(\d+c\.)?\d+g\.\d+gb([+-][a-z0-9.,]+)?$`)

// profileIn finds the profile in a slice's name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
// It is there that the media extensions of "1g.10gb+me" can be read; attributes tell
// them on some models only.
func profileIn(name string) string {
	_, profile, _ := strings.Cut(name, "MIG ")
	if !profilePattern.MatchString(profile) {
		return ""
	}
	return profile
}

// profileOf makes a profile's name of what a slice has, by NVIDIA's own rule
// (go-nvlib, pkg/nvlib/device/mig_profile.go): the share of the GPU's memory, in
// eighths, rounded up, of its memory in GB.
func profileOf(a nvml.DeviceAttributes, gpuMemory uint64) string {
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

// at is the slice as it is listed now. Of its GPU it has all but the memory.
func (s *slice) at(gpu device.Device, own int) device.Device {
	d := gpu
	d.ID, d.MIG = s.id, false
	d.Slice, d.GI, d.CI, d.Profile = s.index, s.gi, s.ci, s.profile
	d.Placement = s.placement
	d.MemoryBytes = s.memory
	d.Nodes = slices.Concat(gpu.Nodes[:own], s.caps, gpu.Nodes[own:])
	return d
}

// capabilities finds the device nodes that open a slice: one for each of its
// instances. The driver makes them with the slice, or a little later.
func (l *listing) capabilities(s *slice, minor int) {
	if len(s.caps) == 2 || minor < 0 {
		return
	}
	s.caps = nil
	gi := fmt.Sprintf("gi%d", s.gi)
	for _, instance := range []string{gi, gi + "/ci" + strconv.Itoa(s.ci)} {
		if n, ok := l.capMinor(minor, instance); ok {
			s.caps = append(s.caps, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
		}
	}
}

// capMinor is the minor number of the node that opens an instance, from the file
// that the driver makes for each or from its list of all that there could be. In
// both, gpu<N> is the N of /dev/nvidia<N>, and not NVML's index.
func (l *listing) capMinor(minor int, instance string) (int, bool) {
	dir := filepath.Join(l.options.ProcRoot, "driver")
	if text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("nvidia/capabilities/gpu%d/mig/%s/access", minor, instance))); err == nil {
		for line := range strings.Lines(string(text)) {
			if value, is := strings.CutPrefix(line, "DeviceFileMinor:"); is {
				return parseMinor(value)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "nvidia-caps/mig-minors"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, fmt.Sprintf("gpu%d/%s/access ", minor, instance)); is {
			return parseMinor(value)
		}
	}
	return 0, false
}

func parseMinor(text string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil && n >= 0 && n <= mostMinor
}

// sliceOf is the slice that an event of a GPU names. It names none where it lacks
// the numbers, which the driver gives to the privileged only, or where they are of no
// slice that is listed: then it is the GPU's. That of a GPU instance alone names the slice
// where that is the only one in it.
func (t *table) sliceOf(g *gpu, gi, ci uint32) device.ID {
	var only device.ID
	inside := 0
	for _, s := range t.slices[g] {
		if gi == NoInstance || uint32(s.gi) != gi {
			continue
		}
		if uint32(s.ci) == ci {
			return s.id
		}
		only = s.id
		inside++
	}
	if ci == NoInstance && inside == 1 {
		return only
	}
	return ""
}
