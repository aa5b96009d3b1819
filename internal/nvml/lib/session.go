// Package lib loads libnvidia-ml.so.1, knows which functions it has, and calls those for which go-nvml is too costly.
package lib

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Session is the library after one Init. It is never written.
type Session struct {
	NVML    nvml.Interface
	Symbols Symbols
	Raw     RawSymbols
	Version string // of the driver; empty: unknown
}

// NewSession looks up what an initialized library has.
func NewSession(lib nvml.Interface) *Session {
	has := lookupSymbols(lib.Extensions().LookupSymbol)
	return &Session{NVML: lib, Symbols: has, Raw: findRawSymbols(), Version: driverVersion(lib, has)}
}

// HasBrokenProcessInfo reports whether the driver fills its lists of processes with a struct that no
// header describes. From 535.43.02 until 535.98 it has a field more than nvmlProcessInfo_t
// (https://github.com/wookayin/gpustat/issues/157, and nvitop's list of versions).
func (s *Session) HasBrokenProcessInfo() bool {
	major, minor, ok := majorMinor(s.Version)
	return ok && major == 535 && minor >= 43 && minor < 98
}

func driverVersion(lib nvml.Interface, has Symbols) string {
	if !has["nvmlSystemGetDriverVersion"] {
		return ""
	}
	v, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return ToValidUTF8(v)
}

// majorMinor returns the first two numbers of a driver's version, and false where it has
// none.
func majorMinor(version string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, errA := strconv.Atoi(a)
	minor, errB := strconv.Atoi(b)
	return major, minor, errA == nil && errB == nil
}

// AtLeast58082 reports whether a driver has the field numbers of today. One whose version
// cannot be read is taken for an old one.
func (s *Session) AtLeast58082() bool {
	major, minor, ok := majorMinor(s.Version)
	return ok && (major > 580 || major == 580 && minor >= 82)
}

// ToValidUTF8 makes valid UTF-8 of what the driver says: kubelet and Prometheus refuse
// anything else.
func ToValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
