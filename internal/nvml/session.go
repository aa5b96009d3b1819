package nvml

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// librarySession is the library after one Init. It is never written.
type librarySession struct {
	lib     nvml.Interface
	symbols symbols
	raw     RawSymbols
	version string // of the driver; empty: unknown
}

// newLibrarySession looks up what an initialized library has.
func newLibrarySession(lib nvml.Interface) *librarySession {
	has := lookupSymbols(lib.Extensions().LookupSymbol)
	return &librarySession{lib: lib, symbols: has, raw: findRawSymbols(), version: driverVersion(lib, has)}
}

// hasBrokenProcessInfo reports whether the driver fills its lists of processes with a struct that no
// header describes. From 535.43.02 until 535.98 it has a field more than nvmlProcessInfo_t
// (https://github.com/wookayin/gpustat/issues/157, and nvitop's list of versions).
func (s *librarySession) hasBrokenProcessInfo() bool {
	major, minor, ok := majorMinor(s.version)
	return ok && major == 535 && minor >= 43 && minor < 98
}

func driverVersion(lib nvml.Interface, has symbols) string {
	if !has["nvmlSystemGetDriverVersion"] {
		return ""
	}
	v, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return toValidUTF8(v)
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

// atLeast58082 reports whether a driver has the field numbers of today. One whose version
// cannot be read is taken for an old one.
func (s *librarySession) atLeast58082() bool {
	major, minor, ok := majorMinor(s.version)
	return ok && (major > 580 || major == 580 && minor >= 82)
}

// toValidUTF8 makes valid UTF-8 of what the driver says: kubelet and Prometheus refuse
// anything else.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
