package kmsg

import (
	"fmt"
	"strconv"
	"strings"
)

// NoInstanceID stands where the number of an instance would, for a line that names none.
const NoInstanceID = 1<<32 - 1

// XidLine is what the driver's line about an Xid says.
type XidLine struct {
	// PCI is the GPU's bus address without a function, as sysfs writes it: "0000:1a:00".
	PCI    string
	Xid    uint64
	GI, CI uint32 // of a slice, or None
}

// ParseXidLine reads a message of the kernel's. The driver has written these
// (src/nvidia/src/kernel/gpu/rc/kernel_rc.c, and older ones):
//
//	NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:1a:00 GPU-I:05): 94, …
//	NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:00): 94, …
//	NVRM: Xid (0000:1a:00): 13, …
//	NVRM: Xid (001a:00): 13, …
//
// A line that merely quotes one, as one with the name of a process may, is none.
func ParseXidLine(message string) (XidLine, bool) {
	rest, isXid := strings.CutPrefix(message, "NVRM: Xid (")
	if !isXid {
		return XidLine{}, false
	}
	location, rest, closed := strings.Cut(rest, "): ")
	if !closed || len(location) > maxLocationLen {
		return XidLine{}, false
	}
	digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(rest)
	}
	xid, err := strconv.ParseUint(rest[:digits], 10, 32)
	if err != nil || xid == 0 || digits < len(rest) && rest[digits] != ',' && rest[digits] != ' ' {
		return XidLine{}, false
	}
	l := XidLine{Xid: xid, GI: NoInstanceID, CI: NoInstanceID}
	return l, l.parseLocation(location)
}

// maxLocationLen is longer than what any driver has put in the parentheses.
const maxLocationLen = 64

// parseLocation reads what is in the parentheses.
func (l *XidLine) parseLocation(location string) (ok bool) {
	address, instances, _ := strings.Cut(location, " ")
	if l.PCI, ok = busAddress(strings.TrimPrefix(address, "PCI:")); !ok {
		return false
	}
	for word := range strings.FieldsSeq(instances) {
		name, number, _ := strings.Cut(word, ":")
		n, err := strconv.ParseUint(number, 10, 32)
		switch {
		case err != nil || n >= NoInstanceID:
			return false
		case name == "GPU-I":
			l.GI = uint32(n)
		case name == "GPU-CI":
			l.CI = uint32(n)
		default:
			return false
		}
	}
	return true
}

// busAddress reads an address in any spelling: with or without a domain and a function,
// each in as many digits as there may be.
func busAddress(s string) (string, bool) {
	s, function, hasFunction := strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) == 2 { // no driver that does not know of domains knows more than one
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 || hasFunction && (len(function) != 1 || function[0] < '0' || function[0] > '7') {
		return "", false
	}
	var numbers [3]uint64
	for i, maxValue := range [...]uint64{1<<32 - 1, 0xff, 0x1f} {
		n, err := strconv.ParseUint(parts[i], 16, 32)
		if err != nil || n > maxValue {
			return "", false
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%04x:%02x:%02x", numbers[0], numbers[1], numbers[2]), true
}
