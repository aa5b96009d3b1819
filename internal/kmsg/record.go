package kmsg

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// logRecord is a record of the kernel log in the format of /dev/kmsg
// (Documentation/ABI/testing/dev-kmsg): "6,339,5140900,-;NVRM: …", then lines
// with keys, which begin with a blank.
type logRecord struct {
	sequence uint64
	uptime   time.Duration // since the boot, without suspend
	message  string
}

// parseRecord parses one read of /dev/kmsg. It returns false for an invalid
// record and for a record of a program: the facility of such a record is in the
// priority's bits above the third, so no program can imitate the driver.
func parseRecord(data []byte) (r logRecord, ok bool) {
	head, message, found := bytes.Cut(data, []byte(";"))
	fields := bytes.SplitN(head, []byte(","), 4)
	if !found || len(fields) < 3 {
		return logRecord{}, false
	}
	_, err1 := strconv.ParseUint(string(fields[0]), 10, 3)
	sequence, err2 := strconv.ParseUint(string(fields[1]), 10, 64)
	micros, err3 := strconv.ParseUint(string(fields[2]), 10, 50) // at most 35 years
	if err1 != nil || err2 != nil || err3 != nil {
		return logRecord{}, false
	}
	message, _, _ = bytes.Cut(message, []byte("\n"))
	return logRecord{sequence, time.Duration(micros) * time.Microsecond, string(message)}, true
}

// NoInstanceID is the GI or CI of a line without an instance.
const NoInstanceID = 1<<32 - 1

// XidLine is the content of the driver's message about an Xid.
type XidLine struct {
	PCI    string // bus address of the GPU without function, in sysfs' spelling: "0000:1a:00"
	Xid    uint64
	GI, CI uint32 // of a MIG device, or NoInstanceID
	// Verdict is that of an NVLink 5 error; zero: another Xid.
	Verdict xid.Verdict
}

// refine returns the event with the severity of the line, if the driver's
// report lacks a severity. In each case but Nonfatal, the driver's recovery
// action decides about the health.
func (l XidLine) refine(e device.Event) device.Event {
	if e.Severity != device.SeverityUndecided {
		return e
	}
	switch l.Verdict {
	case xid.VerdictFatal:
		e.Severity = device.SeverityOfClass
	case xid.VerdictReset:
		e.Severity, e.Action = device.SeverityOfClass, xid.ActionResetGPU
	case xid.VerdictEvaluate:
		e.Severity = device.SeverityNonfatal
	case xid.VerdictNonfatal:
		e.Severity, e.Recovery = device.SeverityNonfatal, device.RecoveryNone
	}
	return e
}

// xidPattern has groups for domain, bus, device, GI, CI and Xid. Domain,
// function and leading zeros are optional.
var xidPattern = regexp.MustCompile(`^NVRM: Xid \((?:PCI:)?` +
	`(?:0*([0-9A-Fa-f]{1,8}):)?0*([0-9A-Fa-f]{1,2}):0*([01]?[0-9A-Fa-f])(?:\.[0-7])?` +
	`(?: GPU-I:([0-9]{1,9}))?(?: GPU-CI:([0-9]{1,9}))?\): 0*([1-9][0-9]{0,8})(?:[, ]|$)`)

// nvlinkPattern has groups for the unit, the severity and two numbers of an
// NVLink error. A process name of 15 bytes cannot imitate them.
var nvlinkPattern = regexp.MustCompile(`, ([A-Z][A-Z0-9_/]*) (Fatal|Nonfatal) XC ?[0-9]+ i ?[0-9]+ Link ` +
	`(?:-?[0-9]+ [(\[]0x([0-9a-f]{1,8})[, ]+0x([0-9a-f]{1,8}))?`)

// ParseXidLine parses a kernel message. Drivers have written these formats
// (src/nvidia/src/kernel/gpu/rc/kernel_rc.c, and older):
//
//	NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:1a:00 GPU-I:05): 94, …
//	NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:00): 94, …
//	NVRM: Xid (0000:1a:00): 13, …
//	NVRM: Xid (001a:00): 13, …
//	NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 …)
//
// A message that quotes such a line, for example as the name of a process, does
// not match.
func ParseXidLine(message string) (XidLine, bool) {
	m := xidPattern.FindStringSubmatch(message)
	if m == nil {
		return XidLine{}, false
	}
	number := func(text string, base int) uint64 {
		n, _ := strconv.ParseUint(text, base, 32) // in range by the pattern; 0 for an empty text
		return n
	}
	l := XidLine{
		PCI: fmt.Sprintf("%04x:%02x:%02x", number(m[1], 16), number(m[2], 16), number(m[3], 16)),
		Xid: number(m[6], 10), GI: NoInstanceID, CI: NoInstanceID,
	}
	if m[4] != "" {
		l.GI = uint32(number(m[4], 10))
	}
	if m[5] != "" {
		l.CI = uint32(number(m[5], 10))
	}
	if m := nvlinkPattern.FindStringSubmatch(message); m != nil {
		status := number(m[4], 16)
		if m[4] == "" {
			status = xid.NoErrorStatus
		}
		l.Verdict = xid.NVLinkVerdict(l.Xid, m[1], m[2] == "Fatal", number(m[3], 16), status)
	}
	return l, true
}
