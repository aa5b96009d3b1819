package sxid

import "strconv"

// Severity is the effect of an NVSwitch error on the fabric.
type Severity uint8

// The severities.
const (
	// Unknown errors have no severity in the kernel log or in the user guide.
	Unknown Severity = iota
	// Nonfatal errors were corrected, or affect one access.
	Nonfatal
	// Fatal errors end the traffic of a link until the link is reset.
	Fatal
	// AlwaysFatal errors affect the whole fabric: all GPUs and NVSwitches need a
	// reset, or the node a reboot.
	AlwaysFatal
)

// String returns the severity in metrics and logs.
func (s Severity) String() string {
	return [...]string{"unknown", "nonfatal", "fatal", "always_fatal"}[s]
}

// Row is an NVSwitch error in the user guide.
type Row struct {
	Severity Severity
	Name     string // without the unit
}

// Name returns an NVSwitch error in a few words, beginning with the unit.
func Name(number uint32) string {
	unit, name := Units[number/1000], Errors[number].Name
	switch {
	case unit == "":
		return "NVSwitch error " + strconv.Itoa(int(number))
	case name == "":
		return unit + " error"
	}
	return unit + ": " + name
}

// Units are the units of the NVSwitch by the thousands of an error.
var Units = map[uint32]string{
	10: "host interface", 11: "ingress port", 12: "egress port", 13: "request tags", 14: "response tags", 15: "routing",
	16: "port", 17: "link control", 18: "link interface", 19: "link transactions", 20: "link layer",
	21: "crossbar", 22: "link controller", 23: "crossbar", 24: "source tracking", 25: "link interface",
	26: "switch controller", 27: "cable controller", 28: "cable module", 29: "multicast tags", 30: "reduction tags",
}

// Errors are the errors of appendix D of the Fabric Manager user guide
// (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide), and those that
// the driver logs without a severity. The test compares the rows with
// testdata/sxids.txt.
var Errors = map[uint32]Row{
	10001: {Nonfatal, "register access failed"},
	10002: {Nonfatal, "register access timed out"},
	10003: {AlwaysFatal, "unhandled interrupt"},
	10004: {Nonfatal, "thermal slowdown begins"},
	10005: {Nonfatal, "thermal slowdown ends"},
	10006: {Unknown, "shutdown by temperature"},
	10007: {Unknown, "input or output failed"},
	10008: {Unknown, "firmware failed to start"},
	10009: {Unknown, "firmware is in recovery mode"},
	10010: {Unknown, "register is locked by confidential computing"},
	11001: {Fatal, "invalid command"},
	11004: {Nonfatal, "access denied by the partition"},
	11009: {Fatal, "invalid virtual channel"},
	11012: {Nonfatal, "single-bit ECC errors of headers"},
	11013: {Fatal, "double-bit ECC error of a header"},
	11018: {Fatal, "double-bit ECC error of the request id table"},
	11019: {Fatal, "double-bit ECC error of the lane table"},
	11020: {Fatal, "control parity error"},
	11021: {Nonfatal, "single-bit ECC errors of the remap table"},
	11022: {Nonfatal, "single-bit ECC errors of the request id table"},
	11023: {Nonfatal, "single-bit ECC errors of the lane table"},
	12001: {Fatal, "crossbar overflow"},
	12002: {Fatal, "wrong route of a packet"},
	12020: {AlwaysFatal, "wrong sequence id"},
	12021: {Nonfatal, "single-bit ECC errors of input headers"},
	12022: {Fatal, "double-bit ECC error of an input header"},
	12023: {Nonfatal, "single-bit ECC errors of output headers"},
	12024: {Fatal, "double-bit ECC error of an output header"},
	12025: {Fatal, "credit overflow"},
	12026: {Fatal, "wrong destination of a request"},
	12027: {Fatal, "wrong destination of a response"},
	12028: {Nonfatal, "access without privilege"},
	12030: {Fatal, "control parity error"},
	12031: {Fatal, "credit parity error"},
	12032: {Fatal, "wrong type of a flit"},
	14017: {Fatal, "timeout of the oldest request"},
	15001: {Fatal, "buffer overflow or underflow"},
	15006: {Fatal, "overflow or underflow of completed transactions"},
	15008: {Nonfatal, "single-bit ECC errors of the link table"},
	15009: {Fatal, "double-bit ECC error of the link table"},
	15010: {Fatal, "parity error"},
	15011: {Nonfatal, "single-bit ECC errors of incoming packets"},
	15012: {Fatal, "double-bit ECC error of an incoming packet"},
	15013: {Fatal, "credit parity error"},
	19047: {Fatal, "double-bit ECC error of a sent header"},
	19048: {Fatal, "double-bit ECC error of sent data"},
	19049: {Nonfatal, "single-bit ECC errors of sent packets"},
	19054: {Fatal, "double-bit ECC error of a received header"},
	19055: {Nonfatal, "single-bit ECC errors of received headers"},
	19056: {Fatal, "double-bit ECC error of received data, memory 0"},
	19057: {Nonfatal, "single-bit ECC errors of received data, memory 0"},
	19058: {Fatal, "double-bit ECC error of received data, memory 1"},
	19059: {Nonfatal, "single-bit ECC errors of received data, memory 1"},
	19060: {Fatal, "double-bit ECC error of a request header"},
	19061: {Fatal, "double-bit ECC error of request data"},
	19062: {Nonfatal, "single-bit ECC errors of requests"},
	19063: {Fatal, "double-bit ECC error of a response header"},
	19064: {Fatal, "double-bit ECC error of response data"},
	19065: {Nonfatal, "single-bit ECC errors of responses"},
	19066: {Fatal, "double-bit ECC error of a common header"},
	19067: {Fatal, "double-bit ECC error of common data"},
	19068: {Nonfatal, "single-bit ECC errors of common memory"},
	19069: {Fatal, "double-bit ECC error of a second response header"},
	19070: {Fatal, "double-bit ECC error of second response data"},
	19071: {Nonfatal, "single-bit ECC errors of second responses"},
	19084: {Nonfatal, "heartbeat timeout"},
	20001: {Nonfatal, "packets sent again"},
	20012: {Nonfatal, "checksum errors, by a broken or inconsistent connection"},
	20034: {Fatal, "link went down"},
	22003: {AlwaysFatal, "halted"},
	22011: {AlwaysFatal, "external error"},
	22012: {Fatal, "fatal interrupt of a link"},
	22013: {Nonfatal, "interrupt of a link"},
	23001: {AlwaysFatal, "input buffer overflow of a tile"},
	23002: {AlwaysFatal, "input buffer underflow of a tile"},
	23003: {AlwaysFatal, "output credit overflow of a tile"},
	23004: {AlwaysFatal, "output credit underflow of a tile"},
	23005: {AlwaysFatal, "interrupted packet at a tile"},
	23006: {AlwaysFatal, "packet changed its destination at a tile"},
	23007: {AlwaysFatal, "gaps in the input of a tile"},
	23008: {AlwaysFatal, "invalid destination of a packet at a tile"},
	23009: {AlwaysFatal, "parity error of a packet at a tile"},
	23010: {AlwaysFatal, "input buffer overflow of an output tile"},
	23011: {AlwaysFatal, "input buffer underflow of an output tile"},
	23012: {AlwaysFatal, "output credit overflow of an output tile"},
	23013: {AlwaysFatal, "output credit underflow of an output tile"},
	23014: {AlwaysFatal, "interrupted packet at an output tile"},
	23015: {AlwaysFatal, "packet changed its destination at an output tile"},
	23016: {AlwaysFatal, "gaps in the input of an output tile"},
	23017: {AlwaysFatal, "credit parity error of an output tile"},
	24001: {Nonfatal, "single-bit ECC errors of memory 0"},
	24002: {Nonfatal, "single-bit ECC errors of data in memory 0"},
	24003: {Nonfatal, "single-bit ECC errors of memory 1"},
	24004: {Fatal, "double-bit ECC error of memory 0"},
	24005: {Fatal, "double-bit ECC error of data in memory 0"},
	24006: {Fatal, "double-bit ECC error of memory 1"},
	24007: {Fatal, "timeout"},
	26001: {Unknown, "reset failed"},
	26002: {Unknown, "start failed"},
	26003: {Unknown, "command queue failed"},
	26004: {Unknown, "command timed out"},
	26005: {Unknown, "shutdown failed"},
	26006: {Unknown, "halted"},
	26007: {Unknown, "external error"},
	26008: {Unknown, "watchdog error"},
	27001: {Unknown, "reset failed"},
	27002: {Unknown, "start failed"},
	27003: {Unknown, "timed out"},
	27004: {Unknown, "shutdown"},
	27005: {Unknown, "module failed"},
	27006: {Unknown, "module failed to start"},
	27007: {Unknown, "module failed to recover"},
	28001: {Unknown, "temperature warning begins"},
	28002: {Unknown, "temperature warning ends"},
	28003: {Unknown, "temperature limit reached"},
	28004: {Unknown, "temperature below its limit again"},
	28005: {Unknown, "shutdown without a heartbeat"},
}
