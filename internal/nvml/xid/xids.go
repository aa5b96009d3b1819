// Package xid is the table of Xids, the driver's error reports: their meaning and the action of the operator.
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

// Event returns the event of an Xid, and whether it concerns only the MIG device of the report. If the meaning depends on the GPU, the
// event is the worst case.
func Event(xid uint64) (e device.Event, singleDevice bool) {
	c := ClassOf(xid)
	return c.Event(), !c.WholeGPU()
}

// Class is the meaning of a report for the GPU.
type Class uint8

// The classes of reports.
const (
	// Unknown Xids have no row. Only checks, with the driver's recovery action, mark the GPU unhealthy.
	Unknown Class = iota
	// Application errors leave the next program unaffected.
	Application
	// Information accompanies another report, or reports a repair.
	Information
	// Contained hardware errors affect only the running program.
	Contained
	// Undecided reports have their meaning in the driver's recovery action, which Check reads.
	Undecided
	// Memory errors are Undecided, or Broken without a recovery action.
	Memory
	// Broken GPUs need a reset.
	Broken
	// Fallen GPUs are off the bus: only a reboot or a power cycle of the node helps.
	Fallen
	// Locked GPUs need a restart of the virtual machine.
	Locked
	// Unpowered GPUs need an inspection of the machine.
	Unpowered
)

// classes have the action and recovery of each class. Hardware classes concern all MIG devices of a GPU.
var classes = [...]struct {
	name, action string
	recovery     device.Recovery
	wholeGPU     bool
	effect       string
}{
	Unknown: {
		"unknown", ActionInspect, device.RecoveryChecksPass, false,
		"checked at once: according to the driver's recovery action; without one, suspect until checks pass",
	},
	Application: {"application", ActionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy"},
	Information: {"information", "", device.RecoveryNone, false, "counted; the device stays healthy"},
	Contained:   {"contained", ActionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy, and the affected program needs a restart"},
	Undecided:   {"undecided", "", device.RecoveryChecksPass, true, "checked at once: according to the driver's recovery action"},
	Memory:      {"memory", ActionResetGPU, device.RecoveryAfterReset, true, "according to the driver's recovery action; without one, unhealthy until a reset"},
	Broken:      {"broken", ActionResetGPU, device.RecoveryAfterReset, true, "unhealthy until a reset"},
	Fallen:      {"fallen", ActionReboot, device.RecoveryAfterReset, true, "unhealthy until the GPU answers after a reboot or a power cycle of the node"},
	Locked:      {"locked", ActionRestartVM, device.RecoveryAfterReset, true, "unhealthy until a restart of the virtual machine"},
	Unpowered:   {"unpowered", ActionInspect, device.RecoveryAfterReset, true, "unhealthy until a reset, after an inspection of the machine"},
}

// ClassOf returns the class of an Xid.
func ClassOf(xid uint64) Class { return Xids[xid].Class }

// Event returns an event of the class, without a GPU.
func (c Class) Event() device.Event {
	return device.Event{Class: classes[c].name, Recovery: classes[c].recovery, Action: classes[c].action}
}

// WholeGPU reports whether the class concerns the whole GPU, even if the driver names a MIG device.
func (c Class) WholeGPU() bool { return classes[c].wholeGPU }

// Effect returns the effect of the class in podgauge, in a sentence.
func (c Class) Effect() string { return classes[c].effect }

// Origins are the causes of errors.
const (
	originApplication = "application"
	originDriver      = "driver"
	originHardware    = "hardware"
	originEnvironment = "environment" // the machine around the GPU
	originAccompanied = ""            // in the accompanying report
)

// Xids are NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Of the Xids with a workflow, NVLink errors are
// undecided, and 48 is memory, since the driver may know about containment. Unused numbers have no row, apart from encoders of other GPUs.
// The test compares the rows with testdata/xids.txt.
var Xids = map[uint64]struct {
	Name   string // of the event, in a few words
	Class  Class
	Origin string
}{
	8:   {"GPU stopped processing", Application, originApplication},
	11:  {"invalid or corrupted push buffer stream", Application, originApplication},
	13:  {"graphics engine exception", Application, originApplication},
	14:  {"fake error", Information, originDriver},
	25:  {"invalid or illegal push buffer stream", Application, originApplication},
	31:  {"memory page fault", Application, originApplication},
	32:  {"corrupted push buffer stream, mostly by PCIe", Contained, originHardware},
	37:  {"firmware error, unknown method", Information, originDriver},
	38:  {"firmware error, watchdog timeout", Information, originDriver},
	39:  {"copy engine 0 exception", Application, originApplication},
	40:  {"copy engine 1 exception", Application, originApplication},
	41:  {"copy engine 2 exception", Application, originApplication},
	43:  {"a program's work was stopped", Information, originApplication},
	44:  {"graphics engine fault during a context switch", Information, originDriver},
	45:  {"a program's work was cleaned up after another error", Information, originAccompanied},
	46:  {"GPU stopped processing and timed out", Broken, originDriver},
	47:  {"video encoder 0 error", Application, originApplication},
	48:  {"double-bit ECC error", Memory, originHardware},
	54:  {"auxiliary power is not connected", Unpowered, originEnvironment},
	60:  {"video processor exception", Application, originApplication},
	62:  {"internal micro-controller halt", Broken, originHardware},
	63:  {"a row was remapped or a page retired", Information, originHardware},
	64:  {"a row could not be remapped or a page retired", Broken, originHardware},
	65:  {"video encoder 1 error", Application, originApplication},
	66:  {"illegal access by the driver", Information, originDriver},
	67:  {"illegal access by the driver", Information, originDriver},
	68:  {"video decoder 0 exception", Application, originApplication},
	69:  {"graphics engine class error", Application, originApplication},
	70:  {"copy engine 3 error", Application, originApplication},
	71:  {"copy engine 4 error", Application, originApplication},
	72:  {"copy engine 5 error", Application, originApplication},
	73:  {"video encoder 2 error", Application, originApplication},
	74:  {"NVLink error", Undecided, originHardware},
	75:  {"copy engine 6 error", Application, originApplication},
	76:  {"copy engine 7 error", Application, originApplication},
	77:  {"copy engine 8 error", Application, originApplication},
	78:  {"vGPU could not be started", Information, originEnvironment},
	79:  {"GPU has fallen off the bus", Fallen, originHardware},
	80:  {"corrupted data sent to the GPU", Application, originApplication},
	82:  {"JPEG engine 0 error", Application, originApplication},
	83:  {"video decoder 1 error", Application, originApplication},
	84:  {"video decoder 2 error", Application, originApplication},
	85:  {"copy engine 9 error", Application, originApplication},
	86:  {"optical flow engine exception", Application, originApplication},
	88:  {"video decoder 3 error", Application, originApplication},
	89:  {"video decoder 4 error", Application, originApplication},
	92:  {"many single-bit ECC errors", Information, originHardware},
	93:  {"InfoROM is worn", Information, originHardware},
	94:  {"contained memory error", Contained, originHardware},
	95:  {"uncontained memory error", Broken, originHardware},
	96:  {"video decoder 5 error", Application, originApplication},
	97:  {"video decoder 6 error", Application, originApplication},
	98:  {"video decoder 7 error", Application, originApplication},
	99:  {"JPEG engine 1 error", Application, originApplication},
	100: {"JPEG engine 2 error", Application, originApplication},
	101: {"JPEG engine 3 error", Application, originApplication},
	102: {"JPEG engine 4 error", Application, originApplication},
	103: {"JPEG engine 5 error", Application, originApplication},
	104: {"JPEG engine 6 error", Application, originApplication},
	105: {"JPEG engine 7 error", Application, originApplication},
	106: {"SMBPBI test message", Information, originEnvironment},
	107: {"silent SMBPBI test message", Information, originEnvironment},
	108: {"NVLink remote translation error", Information, originApplication},
	109: {"context switch timeout", Undecided, originDriver}, // heavy time-slicing makes them too
	110: {"security fault", Broken, originDriver},
	119: {"GSP does not answer", Broken, originDriver},
	120: {"GSP error", Broken, originDriver},
	121: {"link to the CPU was corrected", Information, originHardware},
	126: {"copy engine 10 error", Application, originApplication},
	127: {"copy engine 11 error", Application, originApplication},
	128: {"copy engine 12 error", Application, originApplication},
	129: {"copy engine 13 error", Application, originApplication},
	130: {"copy engine 14 error", Application, originApplication},
	131: {"copy engine 15 error", Application, originApplication},
	132: {"copy engine 16 error", Application, originApplication},
	133: {"copy engine 17 error", Application, originApplication},
	134: {"copy engine 18 error", Application, originApplication},
	135: {"copy engine 19 error", Application, originApplication},
	136: {"link training failed", Broken, originHardware},
	137: {"NVLink privilege error", Information, originApplication},
	139: {"optical flow engine 1 error", Application, originApplication},
	140: {"ECC error that was not recovered", Broken, originHardware},
	141: {"CUDA fast path error", Information, originApplication},
	142: {"video encoder 3 error", Application, originApplication},
	143: {"GPU does not initialise", Broken, originHardware},
	144: {"NVLink 5 error, SAW", Undecided, originHardware},
	145: {"NVLink 5 error, RLW", Undecided, originHardware},
	146: {"NVLink 5 error, TLW", Undecided, originHardware},
	147: {"NVLink 5 error, TREX", Undecided, originHardware},
	148: {"NVLink 5 error, NVLPW_CTRL", Undecided, originHardware},
	149: {"NVLink 5 error, NETIR", Undecided, originHardware},
	150: {"NVLink 5 error, MSE", Undecided, originHardware},
	151: {"key rotation failed", Locked, originEnvironment},
	152: {"DLA SMMU error", Information, originDriver},
	153: {"DLA timeout", Information, originDriver},
	154: {"the recovery action changed", Undecided, originAccompanied},
	155: {"NVLink error that software defines", Undecided, originDriver}, // links that are taken down on purpose make them too
	156: {"a part of the GPU was retired", Broken, originHardware},
	157: {"a part of the GPU could not be retired", Information, originHardware},
	158: {"GPU fatal timeout", Broken, originHardware},
	159: {"CHI non-data error", Information, originHardware},
	160: {"a channel was retired", Information, originHardware},
	161: {"a channel could not be retired", Information, originHardware},
	162: {"power smoothing is engaged again", Information, originHardware},
	163: {"power smoothing is disengaged", Information, originHardware},
	164: {"power smoothing is near the end of its lifetime", Information, originHardware},
	165: {"power smoothing is at the end of its lifetime", Information, originHardware},
	166: {"NVLink traffic before its encryption was set up", Information, originEnvironment},
	167: {"PCIe fatal timeout", Fallen, originHardware},
	168: {"errors in the write-protected region", Information, originHardware},
	169: {"security micro-controller halt", Broken, originHardware},
	170: {"interrupt during confidential computing", Information, originEnvironment},
	171: {"uncorrectable error in DRAM, with 48", Information, originHardware},
	172: {"uncorrectable error in SRAM, with 48", Information, originHardware},
	173: {"link to the CPU failed", Broken, originHardware},
	174: {"a program was ended silently", Information, originDriver},
	175: {"error of the memory subsystem", Memory, originHardware},
	176: {"PCIe error that was corrected", Information, originHardware},
}
