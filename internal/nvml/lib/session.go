// Package lib loads libnvidia-ml.so.1, looks up its functions, and calls those
// for which go-nvml is too expensive.
package lib

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Session is the library after one Init. It is never written.
type Session struct {
	NVML    nvml.Interface
	Symbols Symbols
	// ProcessLists are the present functions by kind of process; empty: absent.
	ProcessLists [len(ProcessListSymbols)]string
	Version      string // of the driver; empty: unknown
}

// NewSession looks up Functions and more in an initialized library.
func NewSession(library nvml.Interface, more []string) *Session {
	s := &Session{NVML: library, Symbols: lookUp(library.Extensions().LookupSymbol, more)}
	for i, symbol := range ProcessListSymbols {
		for _, version := range []string{OlderVersions[symbol][0], symbol} {
			if library.Extensions().LookupSymbol(version) == nil {
				s.ProcessLists[i] = version
			}
		}
	}
	if v, ok := Ask(s.Symbols, "nvmlSystemGetDriverVersion", library.SystemGetDriverVersion); ok {
		s.Version = ToValidUTF8(v)
	}
	return s
}

// HasBrokenProcessInfo reports whether the driver fills process lists with a
// struct of no header: from 535.43.02 until 535.98 it has one field more than
// nvmlProcessInfo_t (https://github.com/wookayin/gpustat/issues/157, and
// nvitop's list of versions).
func (s *Session) HasBrokenProcessInfo() bool {
	major, minor, ok := s.majorMinor()
	return ok && major == 535 && minor >= 43 && minor < 98
}

// AtLeast58082 reports whether the driver has the current field numbers.
// Unreadable versions count as old.
func (s *Session) AtLeast58082() bool {
	major, minor, ok := s.majorMinor()
	return ok && (major > 580 || major == 580 && minor >= 82)
}

func (s *Session) majorMinor() (major, minor int, ok bool) {
	_, err := fmt.Sscanf(s.Version, "%d.%d", &major, &minor)
	return major, minor, err == nil
}

// ToValidUTF8 replaces invalid bytes in a text of the driver: kubelet and
// Prometheus reject them.
func ToValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
