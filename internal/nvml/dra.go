package nvml

import (
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// draDriver is NVIDIA's driver for Dynamic Resource Allocation. Its names of devices depend on its age:
//
//	gpu-<index>                                   of 2024, up to PR 428
//	gpu-<index>-mig-<profile>-<start>-<size>      likewise
//	gpu-<minor>                                   since PR 428 (July 2025)
//	gpu-<minor>-mig-<profile>-<start>-<size>      likewise, up to PR 852
//	gpu-<minor>-mig-1g10gb-me-<profile>-<start>   since PR 852 (early in 2026, v0.4)
//
// <profile> is the number of a GPU instance's profile, <start> and <size> count memory slices (CanonicalName in
// cmd/gpu-kubelet-plugin/deviceinfo.go and mig.go of kubernetes-sigs/dra-driver-nvidia-gpu, earlier NVIDIA/k8s-dra-driver-gpu and
// NVIDIA/k8s-dra-driver). "gpu-vfio-<n>" is a GPU of a virtual machine, unknown to NVML.
const draDriver = "gpu.nvidia.com"

// CDI names end in the same names: k8s.gpu.nvidia.com/device=gpu-0, and k8s.gpu.nvidia.com/claim=<UID of the claim>-gpu-0. Since PR 852
// only the second form exists (cdi.go).
const (
	cdiDevicePrefix = "k8s." + draDriver + "/device="
	cdiClaimPrefix  = "k8s." + draDriver + "/claim="
	claimUIDLength  = len("dab5ab50-d59a-42a6-af16-cfd4628c0f7a-")
)

// ClaimedDevice returns the device on the board for a claim. Claims of foreign devices, and ambiguous names, have none: an index may be
// the minor number of a different GPU.
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
	switch {
	case !ok:
		return "", false
	case name.wholeGPU:
		return wholeGPUDevice(gpu, board)
	default:
		return name.findMIGDevice(gpu, board)
	}
}

// deviceByCDIName returns the device of a CDI name with its UUID, as in NVIDIA's CDI specs ("nvidia.com/gpu=GPU-…"). Runtimes interpret
// such a name in one way, for any driver. Names of several devices are ambiguous.
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

// draName is the driver's name of a device.
type draName struct {
	number               int // of the GPU: index or minor number
	wholeGPU             bool
	profile, start, size int    // of a MIG device; size 0: not in the name
	profileName          string // "1g10gb-me"; empty: not in the name
}

// draNameOf returns the name of a claimed device, and whether its driver counts GPUs by minor number. The claim's device name decides;
// otherwise the CDI names, if they agree.
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

// parseDRAName parses a name of any age, from its end: the profile's name may contain a hyphen.
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

// parseDigits parses a number in the driver's format: 0, never 00.
func parseDigits(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && (len(text) == 1 || text[0] != '0')
}

// findGPU returns the GPU of a name. If the driver may count by either number, both must select the same GPU, or one of them none.
func (n draName) findGPU(board []device.Status, byMinor bool) (device.GPU, bool) {
	for _, gone := range []bool{false, true} { // a present GPU may have the number of a lost GPU
		var found device.GPU
		certain := false
		for i := range board {
			s := &board[i]
			matches := s.Minor == n.number || !byMinor && s.Index == n.number
			if !matches && s.Minor >= 0 || s.Gone != gone { // a GPU without a known minor number may match
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

// wholeGPUDevice returns the device of an unpartitioned GPU.
func wholeGPUDevice(gpu device.GPU, board []device.Status) (device.ID, bool) {
	for i := range board {
		if s := &board[i]; s.GPU == gpu && s.WholeGPU() && !s.MIGEnabled {
			return s.ID, true
		}
	}
	return "", false
}

// findMIGDevice finds the MIG device by the place of its GPU instance, and among several by the profile. Lost devices do not count: the
// driver gives their place, and so their name, to a device of the next claim.
func (n draName) findMIGDevice(gpu device.GPU, board []device.Status) (device.ID, bool) {
	var found, exact int
	var foundID, exactID device.ID
	for i := range board {
		s := &board[i]
		p := s.Placement
		if s.GPU != gpu || s.WholeGPU() || s.Gone || p.Size == 0 || p.Profile != n.profile || p.Start != n.start || n.size > 0 && p.Size != n.size {
			continue
		}
		found, foundID = found+1, s.ID
		if n.profileName != "" && matchesProfile(n.profileName, s.Profile) {
			exact, exactID = exact+1, s.ID
		}
	}
	switch {
	case found == 1:
		return foundID, true
	case exact == 1:
		return exactID, true
	default:
		return "", false
	}
}

// matchesProfile compares a profile in a name, "1g10gb-me", with NVIDIA's spelling, "1g.10gb+me". The driver drops dots, and replaces other
// characters invalid in Kubernetes by hyphens (toRFC1123Compliant in mig.go).
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
