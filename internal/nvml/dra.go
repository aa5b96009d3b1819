package nvml

import (
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// draDriver is the name under which NVIDIA's driver for Dynamic Resource Allocation
// gives GPUs and MIG slices. What it calls them depends on its age:
//
//	gpu-<index>                                   of 2024, up to PR 428
//	gpu-<index>-mig-<profile>-<start>-<size>      likewise
//	gpu-<minor>                                   since PR 428 (July 2025)
//	gpu-<minor>-mig-<profile>-<start>-<size>      likewise, up to PR 852
//	gpu-<minor>-mig-1g10gb-me-<profile>-<start>   since PR 852 (early in 2026, v0.4)
//
// where profile is the number of a GPU instance's profile, and start and size are in
// memory slices (CanonicalName in cmd/gpu-kubelet-plugin/deviceinfo.go and mig.go of
// kubernetes-sigs/dra-driver-nvidia-gpu, which was NVIDIA/k8s-dra-driver-gpu before and
// NVIDIA/k8s-dra-driver at first). "gpu-vfio-<n>" is a GPU that a virtual machine gets:
// NVML does not know it.
const draDriver = "gpu.nvidia.com"

// The driver's CDI names end in the same names: k8s.gpu.nvidia.com/device=gpu-0, and
// k8s.gpu.nvidia.com/claim=<the claim's UID>-gpu-0, of which PR 852 has left only the
// second (cdi.go).
const (
	cdiDevicePrefix = "k8s." + draDriver + "/device="
	cdiClaimPrefix  = "k8s." + draDriver + "/claim="
	claimUIDLength  = len("dab5ab50-d59a-42a6-af16-cfd4628c0f7a-")
)

// ClaimedDevice returns the device on the board that a claim allocates. It returns none if the
// claim is of something else, or if its name may mean several devices, as that of a GPU
// whose index is the minor number of another one.
func ClaimedDevice(c device.Claim, board []device.Status) (device.ID, bool) {
	id, ok := deviceByCDIName(c, board)
	if ok || c.Driver != draDriver {
		return id, ok
	}
	name, byMinor, ok := draNameOf(c)
	if !ok {
		return "", false
	}
	gpu, ok := name.findGPU(board, byMinor)
	if !ok {
		return "", false
	}
	if name.wholeGPU {
		return wholeGPUDevice(gpu, board)
	}
	return name.findMIGDevice(gpu, board)
}

// deviceByCDIName returns the device by a CDI name that ends in its UUID, as NVIDIA's own CDI specs
// have them ("nvidia.com/gpu=GPU-…"): the runtime understands such a name in one way,
// whichever driver uses it. Names of several devices name none.
func deviceByCDIName(c device.Claim, board []device.Status) (id device.ID, ok bool) {
	for _, cdi := range c.CDI {
		_, uuid, _ := strings.Cut(cdi, "=")
		for i := range board {
			if string(board[i].ID) != uuid {
				continue
			}
			if ok && id != board[i].ID {
				return "", false
			}
			id, ok = board[i].ID, true
		}
	}
	return id, ok
}

// draName is a device as the driver calls it.
type draName struct {
	number               int // of the GPU: its index or its minor number
	wholeGPU             bool
	profile, start, size int    // of a slice; size is 0 where the name does not have it
	profileName          string // "1g10gb-me"; "" where the name does not have it
}

// draNameOf returns the driver's name for a claimed device, and whether the driver counts GPUs
// by their minor numbers. The claim's own device name decides. If it is not understood, the
// CDI names do, as long as they do not differ.
func draNameOf(c device.Claim) (name draName, byMinor, ok bool) {
	name, fromDevice := parseDRAName(c.Device)
	ok = fromDevice
	claims, devices := false, false
	for _, cdi := range c.CDI {
		text, isDevice := strings.CutPrefix(cdi, cdiDevicePrefix)
		if !isDevice {
			var isClaim bool
			if text, isClaim = strings.CutPrefix(cdi, cdiClaimPrefix); !isClaim || len(text) < claimUIDLength {
				continue
			}
			text = text[claimUIDLength:]
		}
		devices, claims = devices || isDevice, claims || !isDevice
		other, parsed := parseDRAName(text)
		switch {
		case !parsed || fromDevice:
		case !ok:
			name, ok = other, true
		case other != name:
			return draName{}, false, false
		}
	}
	return name, name.profileName != "" || claims && !devices, ok
}

// parseDRAName reads a name of any of the forms.
func parseDRAName(text string) (draName, bool) {
	text, ok := strings.CutPrefix(text, "gpu-")
	if !ok {
		return draName{}, false
	}
	number, migPart, isMIG := strings.Cut(text, "-mig-")
	name := draName{wholeGPU: !isMIG}
	if name.number, ok = parseDigits(number); !ok || name.wholeGPU {
		return name, ok
	}
	// From the end, since the profile's name may have a hyphen.
	migPart, last, ok := cutLastNumber(migPart)
	if !ok {
		return draName{}, false
	}
	migPart, middle, ok := cutLastNumber(migPart)
	if !ok || migPart == "" {
		return draName{}, false
	}
	if profile, isNumber := parseDigits(migPart); isNumber {
		name.profile, name.start, name.size = profile, middle, last
		return name, name.size > 0
	}
	name.profileName, name.profile, name.start = migPart, middle, last
	return name, true
}

// cutLastNumber cuts "-<number>" off the end.
func cutLastNumber(text string) (rest string, n int, ok bool) {
	i := strings.LastIndexByte(text, '-')
	if i < 0 {
		return "", 0, false
	}
	n, ok = parseDigits(text[i+1:])
	return text[:i], n, ok
}

// parseDigits takes a number as the driver writes it: 0, and never 00.
func parseDigits(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && (len(text) == 1 || text[0] != '0')
}

// findGPU is the GPU that the driver means. A driver that may count by either number is
// understood where both are one GPU's, or only one of them is anybody's.
func (n draName) findGPU(board []device.Status, byMinor bool) (device.GPU, bool) {
	for _, gone := range []bool{false, true} { // another one may have the number of one that is gone
		var found device.GPU
		certain := false
		for i := range board {
			s := &board[i]
			matches := s.Minor == n.number || !byMinor && s.Index == n.number
			// One whose minor number is not known may be it as well.
			if !matches && s.Minor >= 0 || s.Gone != gone {
				continue
			}
			if found != "" && found != s.GPU {
				return "", false
			}
			found, certain = s.GPU, certain || matches
		}
		if found != "" {
			return found, certain
		}
	}
	return "", false
}

// wholeGPUDevice finds a GPU that can be held as a whole.
func wholeGPUDevice(gpu device.GPU, board []device.Status) (device.ID, bool) {
	for i := range board {
		if s := &board[i]; s.GPU == gpu && s.WholeGPU() && !s.MIGEnabled {
			return s.ID, true
		}
	}
	return "", false
}

// findMIGDevice finds the slice by the place of its GPU instance. Where an instance has several
// slices their profiles tell them apart, or nothing does. One that is gone is not meant:
// the driver makes a slice in the place of another, for the next claim, under a name that
// is the same.
func (n draName) findMIGDevice(gpu device.GPU, board []device.Status) (id device.ID, ok bool) {
	var found, exact int
	var candidate, exactID device.ID
	for i := range board {
		s := &board[i]
		placement := s.Placement
		if s.GPU != gpu || s.WholeGPU() || s.Gone || placement.Size == 0 ||
			placement.Profile != n.profile || placement.Start != n.start || n.size > 0 && placement.Size != n.size {
			continue
		}
		found, candidate = found+1, s.ID
		if n.profileName != "" && matchesProfile(n.profileName, s.Profile) {
			exact, exactID = exact+1, s.ID
		}
	}
	switch {
	case found == 1:
		return candidate, true
	case exact == 1:
		return exactID, true
	default:
		return "", false
	}
}

// matchesProfile compares a profile in a name, "1g10gb-me", with one as NVIDIA writes it,
// "1g.10gb+me": the driver leaves dots out and has a hyphen for what a name in Kubernetes
// cannot have (toRFC1123Compliant in mig.go).
func matchesProfile(inName, profile string) bool {
	plain := strings.Map(func(r rune) rune {
		switch {
		case r == '.':
			return -1
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '-'
	}, strings.ToLower(profile))
	return strings.Trim(plain, "-") == inName
}
