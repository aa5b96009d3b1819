package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DeviceIdentity is what a Ref can be held against.
type DeviceIdentity struct {
	UUID  string // the GPU's ("GPU-…") or the MIG slice's ("MIG-…")
	GPU   string // the UUID of the GPU that a slice is on; empty for a whole GPU
	Index string // the GPU's ("0") or the MIG slice's ("0:1")
	PCI   string // the GPU's bus address: "0000:3b:00.0"
	Model string // as the driver names it: "NVIDIA A100-SXM4-40GB"
}

// DeviceSelector names devices: by index ("0"), MIG index ("0:1"), UUID, PCI address, or
// as "model:" and a glob. One that names a GPU names the slices on it as well.
type DeviceSelector string

// modelPrefix begins a Ref that names devices by their GPU's model.
const modelPrefix = "model:"

// ParseDeviceSelector takes what a user wrote and returns its one normal spelling.
func ParseDeviceSelector(s string) (DeviceSelector, error) {
	if glob, ok := strings.CutPrefix(s, modelPrefix); ok && glob != "" {
		return DeviceSelector(s), nil
	}
	if isUUID(s) {
		return DeviceSelector(s), nil
	}
	if index, ok := normalizeIndex(s); ok {
		return DeviceSelector(index), nil
	}
	if address, ok := normalizePCI(s); ok {
		return DeviceSelector(address), nil
	}
	return "", fmt.Errorf("%q: want an index (0), a MIG index (0:1), a UUID (GPU-…, MIG-…), a PCI address (0000:3b:00.0) or model:GLOB", s)
}

// Matches tells whether r names d.
func (s DeviceSelector) Matches(d DeviceIdentity) bool {
	if glob, ok := strings.CutPrefix(string(s), modelPrefix); ok {
		return matchGlob(glob, d.Model)
	}
	gpu, _, _ := strings.Cut(d.Index, ":")
	address, _ := normalizePCI(d.PCI)
	return s.equals(d.UUID) || s.equals(d.GPU) || s.equals(d.Index) || s.equals(gpu) || s.equals(address)
}

// equals compares with a name of a device's, which may be unknown.
func (s DeviceSelector) equals(name string) bool {
	return name != "" && strings.EqualFold(string(s), name)
}

// isExact tells a Ref that names one device from a glob, which names a kind.
func (s DeviceSelector) isExact() bool { return !strings.HasPrefix(string(s), modelPrefix) }

// DeviceFilter says which devices are offered at all.
type DeviceFilter struct {
	Include []DeviceSelector // none: all devices
	Exclude []DeviceSelector // beats Include
}

// Allows tells whether d is offered.
func (f DeviceFilter) Allows(d DeviceIdentity) bool {
	named := func(r DeviceSelector) bool { return r.Matches(d) }
	return (len(f.Include) == 0 || slices.ContainsFunc(f.Include, named)) && !slices.ContainsFunc(f.Exclude, named)
}

// matchGlob holds s against a glob in which * stands for anything, and nothing else
// for something else; upper and lower case differ. It takes the whole of s, and
// no longer than the product of both lengths.
func matchGlob(glob, s string) bool {
	var g, i int
	star, resume := -1, 0
	for i < len(s) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, resume = g, i
			g++
		case g < len(glob) && glob[g] == s[i]:
			g++
			i++
		case star >= 0: // let the last * stand for one byte more
			resume++
			g, i = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(glob[g:], "*") == ""
}

// isUUID knows both forms of a MIG slice's: "MIG-<uuid>" and, of drivers before
// R470, "MIG-GPU-<uuid>/<gpu instance>/<compute instance>".
func isUUID(s string) bool {
	if rest, ok := strings.CutPrefix(s, "MIG-"); ok {
		if isHexUUID(rest) {
			return true
		}
		gpu, instances, ok := strings.Cut(rest, "/")
		gi, ci, both := strings.Cut(instances, "/")
		return ok && both && isNumber(gi) && isNumber(ci) && strings.HasPrefix(gpu, "GPU-") && isHexUUID(gpu[len("GPU-"):])
	}
	rest, ok := strings.CutPrefix(s, "GPU-")
	return ok && isHexUUID(rest)
}

// isHexUUID tells 8-4-4-4-12 hexadecimal digits.
func isHexUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
			return false
		}
	}
	return true
}

// normalizeIndex spells an index, or a MIG index, without leading zeros.
func normalizeIndex(s string) (string, bool) {
	gpu, migIndex, mig := strings.Cut(s, ":")
	if !isNumber(gpu) || mig && !isNumber(migIndex) {
		return "", false
	}
	if !mig {
		return trimZeros(gpu), true
	}
	return trimZeros(gpu) + ":" + trimZeros(migIndex), true
}

// compareIndex orders "2" before "10", and "0:1" after "0".
func compareIndex(a, b string) int {
	gpuA, migA, _ := strings.Cut(a, ":")
	gpuB, migB, _ := strings.Cut(b, ":")
	return cmp.Or(compareNumber(gpuA, gpuB), compareNumber(migA, migB))
}

func compareNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func trimZeros(digits string) string {
	n, _ := strconv.ParseUint(digits, 10, 16) //nolint:errcheck // isNumber has seen it
	return strconv.FormatUint(n, 10)
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// normalizePCI spells a bus address as Linux does. NVML has a domain of 8 digits
// and upper case, lspci leaves domain 0 out.
func normalizePCI(s string) (string, bool) {
	s, function, ok := strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if !ok || len(parts) != 3 {
		return "", false
	}
	var n [4]uint64
	for i, bits := range [4]int{32, 8, 5, 3} {
		var err error
		if n[i], err = strconv.ParseUint(append(parts, function)[i], 16, bits); err != nil {
			return "", false
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), true
}
