// Package xid has the catalogue of Xids, the driver's error reports, and the
// words for reasons and actions of health.
package xid

import "github.com/podgauge/podgauge/internal/device"

// Actions of faults and events.
const (
	ActionRestartApp = "restart_app"
	ActionResetGPU   = "reset_gpu"
	ActionReboot     = "reboot"
	ActionRestartVM  = "restart_vm"
	ActionReplaceGPU = "replace"
	ActionInspect    = "inspect"
)

// Event returns the event of an Xid, and whether it concerns only the MIG
// device of the report. If the meaning depends on the GPU, the event is the
// worst case.
func Event(xid uint64) (e device.Event, singleDevice bool) {
	c := ClassOf(xid)
	e = c.Event()
	e.Severity = SeverityOf(xid)
	return e, !c.WholeGPU()
}

// SeverityOf returns the severity of an Xid in the driver's report. NVLink 5
// errors have a severity in the kernel log.
func SeverityOf(xid uint64) device.Severity {
	if xid >= 144 && xid <= 150 {
		return device.SeverityUndecided
	}
	return device.SeverityOfClass
}

// Class is the meaning of a report for the GPU.
type Class uint8

// The classes of reports.
const (
	// Unknown Xids have no row. Only checks, with the driver's recovery action,
	// mark the GPU unhealthy.
	Unknown Class = iota
	// Application errors leave the next program unaffected.
	Application
	// Information accompanies another report, or reports a repair.
	Information
	// Contained hardware errors affect only the running program.
	Contained
	// Undecided reports have their meaning in the driver's recovery action,
	// which Check reads.
	Undecided
	// Memory errors are Undecided, or Broken without a recovery action.
	Memory
	// Broken GPUs need a reset.
	Broken
	// Fallen GPUs are off the bus: only a reboot or a power cycle of the node
	// helps.
	Fallen
	// Locked GPUs need a restart of the virtual machine.
	Locked
	// Unpowered GPUs need an inspection of the machine.
	Unpowered
)

// classes have the action and recovery of each class. Hardware classes concern
// all MIG devices of a GPU.
var classes = [...]struct {
	name, action string
	recovery     device.Recovery
	wholeGPU     bool
	effect       string
}{
	Unknown: {
		"unknown", ActionInspect, device.RecoveryChecksPass, false,
		"the driver's recovery action decides; without one, suspect until checks pass",
	},
	Application: {"application", ActionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy"},
	Information: {"information", "", device.RecoveryNone, false, "counted; the device stays healthy"},
	Contained: {
		"contained", ActionRestartApp, device.RecoveryNone, false,
		"counted; the device stays healthy, the affected application needs a restart",
	},
	Undecided: {"undecided", "", device.RecoveryChecksPass, true, "the driver's recovery action decides"},
	Memory: {
		"memory", ActionResetGPU, device.RecoveryAfterReset, true,
		"the driver's recovery action decides; without one, unhealthy until a reset",
	},
	Broken: {"broken", ActionResetGPU, device.RecoveryAfterReset, true, "unhealthy until a reset"},
	Fallen: {
		"fallen", ActionReboot, device.RecoveryAfterReset, true,
		"unhealthy until the GPU responds after a reboot or power cycle of the node",
	},
	Locked: {
		"locked", ActionRestartVM, device.RecoveryAfterReset, true,
		"unhealthy until a restart of the virtual machine",
	},
	Unpowered: {
		"unpowered", ActionInspect, device.RecoveryAfterReset, true,
		"unhealthy until a reset; inspect the machine",
	},
}

// ClassOf returns the class of an Xid.
func ClassOf(xid uint64) Class { return Xids[xid].Class }

// Event returns an event of the class, without a GPU.
func (c Class) Event() device.Event {
	return device.Event{Class: classes[c].name, Recovery: classes[c].recovery, Action: classes[c].action}
}

// WholeGPU reports whether the class concerns the whole GPU, even if the driver
// names a MIG device.
func (c Class) WholeGPU() bool { return classes[c].wholeGPU }

// Effect returns the effect of the class in podgauge, in a sentence.
func (c Class) Effect() string { return classes[c].effect }

// catalogueRow is an Xid in the catalogue.
type catalogueRow struct {
	Class  Class
	Origin string // of the error; empty: of the accompanying report
	Name   string // of the event, in a few words
}

// The origins.
const (
	fromApplication = "application"
	fromDriver      = "driver"
	fromHardware    = "hardware"
	fromEnvironment = "environment" // the machine around the GPU
	fromReport      = ""
)

// Xids are NVIDIA's catalogue
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Of the Xids
// with a workflow, NVLink errors are undecided, and 48 is memory, since the
// driver may know about containment. Unused numbers have no row, apart from
// encoders of other GPUs. The test compares the rows with testdata/xids.txt.
// Heavy time-slicing causes 109 as well, and links taken down on purpose cause
// 155.
var Xids = map[uint64]catalogueRow{
	8:   {Application, fromApplication, "GPU stopped processing"},
	11:  {Application, fromApplication, "invalid or corrupted push buffer stream"},
	13:  {Application, fromApplication, "graphics engine exception"},
	14:  {Information, fromDriver, "fake error, for tests"},
	25:  {Application, fromApplication, "invalid or illegal push buffer stream"},
	31:  {Application, fromApplication, "memory page fault"},
	32:  {Contained, fromHardware, "corrupted push buffer stream, usually a PCIe fault"},
	37:  {Information, fromDriver, "firmware error, unknown method"},
	38:  {Information, fromDriver, "firmware error, watchdog timeout"},
	39:  {Application, fromApplication, "copy engine 0 exception"},
	40:  {Application, fromApplication, "copy engine 1 exception"},
	41:  {Application, fromApplication, "copy engine 2 exception"},
	43:  {Information, fromApplication, "application's GPU work stopped"},
	44:  {Information, fromDriver, "graphics engine fault during a context switch"},
	45:  {Information, fromReport, "application's GPU work removed after another error"},
	46:  {Broken, fromDriver, "GPU stopped processing and timed out"},
	47:  {Application, fromApplication, "video encoder 0 error"},
	48:  {Memory, fromHardware, "double-bit ECC error"},
	54:  {Unpowered, fromEnvironment, "auxiliary power not connected"},
	60:  {Application, fromApplication, "video processor exception"},
	62:  {Broken, fromHardware, "internal micro-controller halt"},
	63:  {Information, fromHardware, "row remapped or page retired"},
	64:  {Broken, fromHardware, "row remapping or page retirement failed"},
	65:  {Application, fromApplication, "video encoder 1 error"},
	66:  {Information, fromDriver, "illegal access by the driver"},
	67:  {Information, fromDriver, "illegal access by the driver"},
	68:  {Application, fromApplication, "video decoder 0 exception"},
	69:  {Application, fromApplication, "graphics engine class error"},
	70:  {Application, fromApplication, "copy engine 3 error"},
	71:  {Application, fromApplication, "copy engine 4 error"},
	72:  {Application, fromApplication, "copy engine 5 error"},
	73:  {Application, fromApplication, "video encoder 2 error"},
	74:  {Undecided, fromHardware, "NVLink error"},
	75:  {Application, fromApplication, "copy engine 6 error"},
	76:  {Application, fromApplication, "copy engine 7 error"},
	77:  {Application, fromApplication, "copy engine 8 error"},
	78:  {Information, fromEnvironment, "vGPU start error"},
	79:  {Fallen, fromHardware, "GPU has fallen off the bus"},
	80:  {Application, fromApplication, "corrupted data sent to the GPU"},
	82:  {Application, fromApplication, "JPEG engine 0 error"},
	83:  {Application, fromApplication, "video decoder 1 error"},
	84:  {Application, fromApplication, "video decoder 2 error"},
	85:  {Application, fromApplication, "copy engine 9 error"},
	86:  {Application, fromApplication, "optical flow engine exception"},
	88:  {Application, fromApplication, "video decoder 3 error"},
	89:  {Application, fromApplication, "video decoder 4 error"},
	92:  {Information, fromHardware, "high rate of single-bit ECC errors"},
	93:  {Information, fromHardware, "InfoROM wear limit exceeded"},
	94:  {Contained, fromHardware, "contained memory error"},
	95:  {Broken, fromHardware, "uncontained memory error"},
	96:  {Application, fromApplication, "video decoder 5 error"},
	97:  {Application, fromApplication, "video decoder 6 error"},
	98:  {Application, fromApplication, "video decoder 7 error"},
	99:  {Application, fromApplication, "JPEG engine 1 error"},
	100: {Application, fromApplication, "JPEG engine 2 error"},
	101: {Application, fromApplication, "JPEG engine 3 error"},
	102: {Application, fromApplication, "JPEG engine 4 error"},
	103: {Application, fromApplication, "JPEG engine 5 error"},
	104: {Application, fromApplication, "JPEG engine 6 error"},
	105: {Application, fromApplication, "JPEG engine 7 error"},
	106: {Information, fromEnvironment, "SMBPBI test message"},
	107: {Information, fromEnvironment, "silent SMBPBI test message"},
	108: {Information, fromApplication, "NVLink remote translation error"},
	109: {Undecided, fromDriver, "context switch timeout"},
	110: {Broken, fromDriver, "security fault"},
	119: {Broken, fromDriver, "GSP RPC timeout"},
	120: {Broken, fromDriver, "GSP error"},
	121: {Information, fromHardware, "corrected C2C (GPU-to-CPU) link error"},
	126: {Application, fromApplication, "copy engine 10 error"},
	127: {Application, fromApplication, "copy engine 11 error"},
	128: {Application, fromApplication, "copy engine 12 error"},
	129: {Application, fromApplication, "copy engine 13 error"},
	130: {Application, fromApplication, "copy engine 14 error"},
	131: {Application, fromApplication, "copy engine 15 error"},
	132: {Application, fromApplication, "copy engine 16 error"},
	133: {Application, fromApplication, "copy engine 17 error"},
	134: {Application, fromApplication, "copy engine 18 error"},
	135: {Application, fromApplication, "copy engine 19 error"},
	136: {Broken, fromHardware, "link training failed"},
	137: {Information, fromApplication, "NVLink privilege error"},
	139: {Application, fromApplication, "optical flow engine 1 error"},
	140: {Broken, fromHardware, "unrecovered ECC error"},
	141: {Information, fromApplication, "CUDA fast path error"},
	142: {Application, fromApplication, "video encoder 3 error"},
	143: {Broken, fromHardware, "GPU initialization error"},
	144: {Undecided, fromHardware, "NVLink 5 error, SAW"},
	145: {Undecided, fromHardware, "NVLink 5 error, RLW"},
	146: {Undecided, fromHardware, "NVLink 5 error, TLW"},
	147: {Undecided, fromHardware, "NVLink 5 error, TREX"},
	148: {Undecided, fromHardware, "NVLink 5 error, NVLPW_CTRL"},
	149: {Undecided, fromHardware, "NVLink 5 error, NETIR"},
	150: {Undecided, fromHardware, "NVLink 5 error, MSE"},
	151: {Locked, fromEnvironment, "key rotation failed"},
	152: {Information, fromDriver, "DLA SMMU error"},
	153: {Information, fromDriver, "DLA timeout"},
	154: {Undecided, fromReport, "recovery action changed"},
	155: {Undecided, fromDriver, "software-defined NVLink error"},
	156: {Broken, fromHardware, "GPU resource retired"},
	157: {Information, fromHardware, "GPU resource retirement failed"},
	158: {Broken, fromHardware, "GPU fatal timeout"},
	159: {Information, fromHardware, "CHI non-data error"},
	160: {Information, fromHardware, "channel retired"},
	161: {Information, fromHardware, "channel retirement failed"},
	162: {Information, fromHardware, "power smoothing re-engaged"},
	163: {Information, fromHardware, "power smoothing disengaged"},
	164: {Information, fromHardware, "power smoothing lifetime low"},
	165: {Information, fromHardware, "power smoothing lifetime exhausted"},
	166: {Information, fromEnvironment, "NVLink traffic before encryption setup"},
	167: {Fallen, fromHardware, "PCIe fatal timeout"},
	168: {Information, fromHardware, "errors in the write-protected region"},
	169: {Broken, fromHardware, "security micro-controller halt"},
	170: {Information, fromEnvironment, "interrupt during confidential computing"},
	171: {Information, fromHardware, "uncorrectable DRAM error, follows Xid 48"},
	172: {Information, fromHardware, "uncorrectable SRAM error, follows Xid 48"},
	173: {Broken, fromHardware, "fatal C2C (GPU-to-CPU) link failure"},
	174: {Information, fromDriver, "process ended silently"},
	175: {Memory, fromHardware, "memory subsystem error"},
	176: {Information, fromHardware, "corrected PCIe error"},
}
