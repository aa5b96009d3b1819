// Package sxid has the errors of NVSwitches (SXids) in the kernel log: their
// table, their lines and their counts.
package sxid

import (
	"regexp"
	"strconv"
)

// NoLink is the link of an error of the whole NVSwitch.
const NoLink = -1

// Line is the content of the driver's message about an NVSwitch error.
type Line struct {
	PCI      string // bus address of the NVSwitch: "0000:c1:00.0"
	Number   uint32
	Severity Severity
	Link     int // or NoLink
}

// linePattern has groups for address, number, severity and link. The message
// has one to three lines of an error: those with details do not match.
var linePattern = regexp.MustCompile(`^nvidia-nvswitch[0-9]+: SXid ` +
	`\(PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])\): ` +
	`([1-9][0-9]{4}), (?:(Fatal|Non-fatal|Correctable), (?:Link ([0-9]{1,3})(?: |$))?)?(.*)`)

// detailPattern matches the further lines of an error.
var detailPattern = regexp.MustCompile(`^(?:Severity [0-9]|Data \{|NVSWITCH Temperature |SOE HALT data)`)

// ParseLine parses a kernel message. The driver has these formats
// (src/common/nvswitch/kernel/inc/intr_nvswitch.h of its sources):
//
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Data {0x000001c0, …}
//	nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10002, Non-fatal, PBUS PRI SQUASH error, instance=0, chiplet=0
//	nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 26006, SOE HALTED
//
// Only the first line of an error is one.
func ParseLine(message string) (Line, bool) {
	m := linePattern.FindStringSubmatch(message)
	if m == nil || m[3] == "" && detailPattern.MatchString(m[5]) {
		return Line{}, false
	}
	number, _ := strconv.ParseUint(m[2], 10, 32) // in range by the pattern
	l := Line{PCI: m[1], Number: uint32(number), Severity: Errors[uint32(number)].Severity, Link: NoLink}
	switch {
	case m[3] == "Fatal" && l.Severity != AlwaysFatal:
		l.Severity = Fatal
	case m[3] == "Non-fatal", m[3] == "Correctable":
		l.Severity = Nonfatal
	}
	if m[4] != "" {
		l.Link, _ = strconv.Atoi(m[4])
	}
	return l, true
}
