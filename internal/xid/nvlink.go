package xid

import (
	"slices"
	"strings"
)

// Verdict is the meaning of an NVLink 5 error (Xids 144 to 150) by its line in
// the kernel log.
type Verdict uint8

// The verdicts.
const (
	// VerdictNone is that of a line without a severity.
	VerdictNone Verdict = iota
	// VerdictNonfatal errors need no action.
	VerdictNonfatal
	// VerdictEvaluate errors are nonfatal, and the driver's recovery action
	// decides.
	VerdictEvaluate
	// VerdictReset errors are fatal, and the GPU needs a reset.
	VerdictReset
	// VerdictFatal errors are fatal by the log, without a row in the table.
	VerdictFatal
)

// String returns the verdict in the documentation.
func (v Verdict) String() string {
	return [...]string{"none", "nonfatal", "evaluate", "reset", "fatal"}[v]
}

// NVLinkRow has the errors of a unit with a verdict.
type NVLinkRow struct {
	Xid     uint64
	Units   []string // names, the older one first
	Verdict Verdict
	// Events of a link without an error status, or error statuses without an
	// event.
	Events, Statuses []uint64
}

func byStatus(xid uint64, units string, v Verdict, statuses ...uint64) NVLinkRow {
	return NVLinkRow{Xid: xid, Units: strings.Fields(units), Verdict: v, Statuses: statuses}
}

func byEvent(xid uint64, units string, v Verdict, events ...uint64) NVLinkRow {
	return NVLinkRow{Xid: xid, Units: strings.Fields(units), Verdict: v, Events: events}
}

// NoErrorStatus is the error status of a line without one.
const NoErrorStatus = 1 << 32

const linkDown = "NETIR_LINK_EVT NETIR_LINK_DOWN"

// nvlinkErrors are the rows of the sheet "XID 144-150 Decode" in NVIDIA's Xid
// catalogue
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). The test
// compares them with testdata/nvlink5.txt.
var nvlinkErrors = []NVLinkRow{
	byStatus(144, "SAW_MVB", VerdictNonfatal, 1, 4, 8, 0x20),
	byStatus(144, "SAW_MVB", VerdictReset, 2, 0x10),
	byStatus(145, "RLW_CTRL", VerdictNonfatal, 0x80000000),
	byStatus(145, "RLW_REMAP", VerdictNonfatal, 0x100, 0x200, 0x80000000),
	byStatus(145, "RLW_REMAP", VerdictEvaluate, 1, 2, 4, 8, 0x10, 0x20),
	byStatus(145, "RLW_REMAP", VerdictReset, 0x40, 0x80),
	byStatus(145, "RLW_RSPCOL", VerdictNonfatal, 1, 0x80000000),
	byStatus(145, "RLW_RSPCOL", VerdictReset, 2),
	byStatus(145, "RLW_RXPIPE", VerdictNonfatal, 1, 2, 4, 8, 0x80000000),
	byStatus(145, "RLW_SRC_TRACK", VerdictNonfatal, 2, 0x80000000),
	byStatus(145, "RLW_SRC_TRACK", VerdictEvaluate, 4, 8),
	byStatus(145, "RLW_SRC_TRACK", VerdictReset, 1, 0x10, 0x20),
	byStatus(145, "RLW_TAGSTATE", VerdictNonfatal, 1, 0x10000, 0x80000000),
	byStatus(145, "RLW_TAGSTATE", VerdictReset, 2, 0x20000, 0x100000),
	byStatus(146, "TLW_CTRL", VerdictNonfatal, 1, 2, 0x80000000),
	byStatus(146, "TLW_CTRL", VerdictReset, 4),
	byStatus(146, "TLW_RX TLW_RX_PIPE0 TLW_RX_PIPE1", VerdictNonfatal, 1, 2, 0x80000000),
	byStatus(146, "TLW_RX TLW_RX_PIPE0 TLW_RX_PIPE1", VerdictReset, 4),
	byStatus(146, "TLW_TX TLW_TX_PIPE0 TLW_TX_PIPE1", VerdictNonfatal, 1, 2, 0x80000000),
	byStatus(146, "TLW_TX TLW_TX_PIPE0 TLW_TX_PIPE1", VerdictReset, 4),
	byStatus(147, "TREX", VerdictNonfatal, 1, 0x80000000),
	byStatus(148, "NVLPW_CTRL NVLPW", VerdictNonfatal, 0x80000000),
	byStatus(149, "NETIR NETIR_INT", VerdictReset, 0),
	byStatus(149, "NETIR_BER_EVENT", VerdictNonfatal, 0, 1, 2, 3),
	byEvent(149, linkDown, VerdictReset, 0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43),
	byEvent(149, linkDown, VerdictNonfatal, 38, 40), // links taken down by software: no action
	byStatus(149, "NETIR_MFDE_EVENT", VerdictNonfatal, 3),
	byStatus(149, "NETIR_MFDE_EVENT", VerdictReset, 1, 4, 5, 7),
	byStatus(150, "MSE_WATCHDOG", VerdictReset, 0),
}

// NVLinkErrors returns the rows of all NVLink 5 errors.
func NVLinkErrors() []NVLinkRow { return slices.Clone(nvlinkErrors) }

// NVLinkVerdict returns the verdict on an NVLink 5 error with a unit and the two
// first numbers of its line; without a row, that of the line's severity.
func NVLinkVerdict(number uint64, unit string, fatal bool, info, status uint64) Verdict {
	unit, _, _ = strings.Cut(unit, "/")
	event := info >> 20 & 0x3F
	for _, r := range nvlinkErrors {
		matches := status == 0 && slices.Contains(r.Events, event) || event == 0 && slices.Contains(r.Statuses, status)
		if matches && r.Xid == number && slices.Contains(r.Units, unit) {
			return r.Verdict
		}
	}
	if fatal {
		return VerdictFatal
	}
	return VerdictNonfatal
}
