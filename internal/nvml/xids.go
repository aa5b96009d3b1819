package nvml

import (
	"maps"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// What a fault can ask for.
const (
	actionRestartApp = "restart_app"
	actionResetGPU   = "reset_gpu"
	actionReboot     = "reboot"
	actionRestartVM  = "restart_vm"
	actionReplaceGPU = "replace"
	actionInspect    = "inspect"
)

// XidInfo is what is known of one of the driver's error reports.
type XidInfo struct {
	Number uint64
	Name   string // what happened, in a few words
	Class  string // as in device.Event
	// Origin is who brought it about: "application", "driver", "hardware" or "environment",
	// which is the machine around the GPU. It is empty where only the report that it
	// accompanies can tell.
	Origin   string
	Action   string // what it asks for, as in device.Status
	Recovery device.Recovery
	// WholeGPU says that it hits the whole GPU, also where the driver names a slice.
	WholeGPU bool
	// Effect is what podgauge makes of it, in a sentence.
	Effect string
}

// UnknownXidEffect is what podgauge makes of an Xid that the table does not have.
const UnknownXidEffect = "checked at once: as the driver's recovery action says; suspect until checks pass where it has none"

// Xids are the rows of the table, by number.
func Xids() []XidInfo {
	list := make([]XidInfo, 0, len(xids))
	for _, number := range slices.Sorted(maps.Keys(xids)) {
		row := xids[number]
		c := eventClasses[row.class]
		list = append(list, XidInfo{number, row.name, c.name, string(row.fault), c.action, c.heals, c.wholeGPU, c.means})
	}
	return list
}

// XidEvent says whether an Xid is fatal, what it asks for, and whether it hits alone the
// slice that its report names. Of one that depends on the GPU it says the worst.
func XidEvent(xid uint64) (e device.Event, singleDevice bool) {
	c := xids[xid].class
	return c.newEvent(), !eventClasses[c].wholeGPU
}

// eventClass is what the driver's report means for the GPU.
type eventClass uint8

const (
	// classUnknown Xids have no row. They do not mark a GPU unhealthy by themselves: checks do,
	// which read the driver's recovery action.
	classUnknown eventClass = iota
	// classApplication: a program did something wrong, and the next one will run.
	classApplication
	// classInformation: a report that accompanies another one, or of something mended.
	classInformation
	// classContained: the hardware failed under a program, which alone is hit.
	classContained
	// classUndecided: what it means stands in the driver's recovery action, which Check reads.
	classUndecided
	// classMemory: as the recovery action says, or broken if the driver has none.
	classMemory
	// classBroken: nothing runs before the GPU was reset.
	classBroken
	// classFallen: nothing runs before the node was booted or its power cycled. A GPU that is off
	// the bus cannot be reset.
	classFallen
	// classLocked: nothing runs before the virtual machine was started anew.
	classLocked
	// classUnpowered: somebody has to look at the machine.
	classUnpowered
)

// eventClasses say what a class asks for, how it heals, and whether it is of the hardware: then
// all slices of a GPU share it, whichever the driver names.
var eventClasses = [...]struct {
	name, action string
	heals        device.Recovery
	wholeGPU     bool
	means        string
}{
	classUnknown:     {"unknown", actionInspect, device.RecoveryChecksPass, false, UnknownXidEffect},
	classApplication: {"application", actionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy"},
	classInformation: {"information", "", device.RecoveryNone, false, "counted; the device stays healthy"},
	classContained:   {"contained", actionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy, and who held it has to start anew"},
	classUndecided:   {"undecided", "", device.RecoveryChecksPass, true, "checked at once: as the driver's recovery action says"},
	classMemory:      {"memory", actionResetGPU, device.RecoveryAfterReset, true, "as the driver's recovery action says; unhealthy until a reset was seen where it has none"},
	classBroken:      {"broken", actionResetGPU, device.RecoveryAfterReset, true, "unhealthy until a reset was seen"},
	classFallen:      {"fallen", actionReboot, device.RecoveryAfterReset, true, "unhealthy until the GPU answers again after a reboot or a power cycle of the node"},
	classLocked:      {"locked", actionRestartVM, device.RecoveryAfterReset, true, "unhealthy until the virtual machine was started anew"},
	classUnpowered:   {"unpowered", actionInspect, device.RecoveryAfterReset, true, "unhealthy until a reset was seen: somebody has to look at the machine"},
}

// newEvent is a report of the class, of nobody yet.
func (c eventClass) newEvent() device.Event {
	return device.Event{Class: eventClasses[c].name, Recovery: eventClasses[c].heals, Action: eventClasses[c].action}
}

// faultOrigin is who brought something about.
type faultOrigin string

const (
	originApplication faultOrigin = "application"
	originDriver      faultOrigin = "driver"
	originHardware    faultOrigin = "hardware"
	originEnvironment faultOrigin = "environment"
	originAccompanied faultOrigin = "" // as the report says that it accompanies
)

// xids are NVIDIA's catalogue of error reports
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), each with what it
// means here. Where the catalogue gives a workflow, those of NVLink are undecided, and so
// is 48 where the driver can say whether the error was contained. What the catalogue calls
// unused has no row, except the encoders', which other GPUs have. The test holds the rows
// against testdata/xids.txt.
var xids = map[uint64]struct {
	name  string
	class eventClass
	fault faultOrigin
}{
	8:   {"GPU stopped processing", classApplication, originApplication},
	11:  {"invalid or corrupted push buffer stream", classApplication, originApplication},
	13:  {"graphics engine exception", classApplication, originApplication},
	14:  {"fake error", classInformation, originDriver},
	25:  {"invalid or illegal push buffer stream", classApplication, originApplication},
	31:  {"memory page fault", classApplication, originApplication},
	32:  {"corrupted push buffer stream, mostly by PCIe", classContained, originHardware},
	37:  {"firmware error, unknown method", classInformation, originDriver},
	38:  {"firmware error, watchdog timeout", classInformation, originDriver},
	39:  {"copy engine 0 exception", classApplication, originApplication},
	40:  {"copy engine 1 exception", classApplication, originApplication},
	41:  {"copy engine 2 exception", classApplication, originApplication},
	43:  {"a program's work was stopped", classInformation, originApplication},
	44:  {"graphics engine fault during a context switch", classInformation, originDriver},
	45:  {"a program's work was cleaned up after another error", classInformation, originAccompanied},
	46:  {"GPU stopped processing and timed out", classBroken, originDriver},
	47:  {"video encoder 0 error", classApplication, originApplication},
	48:  {"double-bit ECC error", classMemory, originHardware},
	54:  {"auxiliary power is not connected", classUnpowered, originEnvironment},
	60:  {"video processor exception", classApplication, originApplication},
	62:  {"internal micro-controller halt", classBroken, originHardware},
	63:  {"a row was remapped or a page retired", classInformation, originHardware},
	64:  {"a row could not be remapped or a page retired", classBroken, originHardware},
	65:  {"video encoder 1 error", classApplication, originApplication},
	66:  {"illegal access by the driver", classInformation, originDriver},
	67:  {"illegal access by the driver", classInformation, originDriver},
	68:  {"video decoder 0 exception", classApplication, originApplication},
	69:  {"graphics engine class error", classApplication, originApplication},
	70:  {"copy engine 3 error", classApplication, originApplication},
	71:  {"copy engine 4 error", classApplication, originApplication},
	72:  {"copy engine 5 error", classApplication, originApplication},
	73:  {"video encoder 2 error", classApplication, originApplication},
	74:  {"NVLink error", classUndecided, originHardware},
	75:  {"copy engine 6 error", classApplication, originApplication},
	76:  {"copy engine 7 error", classApplication, originApplication},
	77:  {"copy engine 8 error", classApplication, originApplication},
	78:  {"vGPU could not be started", classInformation, originEnvironment},
	79:  {"GPU has fallen off the bus", classFallen, originHardware},
	80:  {"corrupted data sent to the GPU", classApplication, originApplication},
	82:  {"JPEG engine 0 error", classApplication, originApplication},
	83:  {"video decoder 1 error", classApplication, originApplication},
	84:  {"video decoder 2 error", classApplication, originApplication},
	85:  {"copy engine 9 error", classApplication, originApplication},
	86:  {"optical flow engine exception", classApplication, originApplication},
	88:  {"video decoder 3 error", classApplication, originApplication},
	89:  {"video decoder 4 error", classApplication, originApplication},
	92:  {"many single-bit ECC errors", classInformation, originHardware},
	93:  {"InfoROM is worn", classInformation, originHardware},
	94:  {"contained memory error", classContained, originHardware},
	95:  {"uncontained memory error", classBroken, originHardware},
	96:  {"video decoder 5 error", classApplication, originApplication},
	97:  {"video decoder 6 error", classApplication, originApplication},
	98:  {"video decoder 7 error", classApplication, originApplication},
	99:  {"JPEG engine 1 error", classApplication, originApplication},
	100: {"JPEG engine 2 error", classApplication, originApplication},
	101: {"JPEG engine 3 error", classApplication, originApplication},
	102: {"JPEG engine 4 error", classApplication, originApplication},
	103: {"JPEG engine 5 error", classApplication, originApplication},
	104: {"JPEG engine 6 error", classApplication, originApplication},
	105: {"JPEG engine 7 error", classApplication, originApplication},
	106: {"SMBPBI test message", classInformation, originEnvironment},
	107: {"silent SMBPBI test message", classInformation, originEnvironment},
	108: {"NVLink remote translation error", classInformation, originApplication},
	109: {"context switch timeout", classUndecided, originDriver}, // heavy time-slicing makes them too
	110: {"security fault", classBroken, originDriver},
	119: {"GSP does not answer", classBroken, originDriver},
	120: {"GSP error", classBroken, originDriver},
	121: {"link to the CPU was corrected", classInformation, originHardware},
	126: {"copy engine 10 error", classApplication, originApplication},
	127: {"copy engine 11 error", classApplication, originApplication},
	128: {"copy engine 12 error", classApplication, originApplication},
	129: {"copy engine 13 error", classApplication, originApplication},
	130: {"copy engine 14 error", classApplication, originApplication},
	131: {"copy engine 15 error", classApplication, originApplication},
	132: {"copy engine 16 error", classApplication, originApplication},
	133: {"copy engine 17 error", classApplication, originApplication},
	134: {"copy engine 18 error", classApplication, originApplication},
	135: {"copy engine 19 error", classApplication, originApplication},
	136: {"link training failed", classBroken, originHardware},
	137: {"NVLink privilege error", classInformation, originApplication},
	139: {"optical flow engine 1 error", classApplication, originApplication},
	140: {"ECC error that was not recovered", classBroken, originHardware},
	141: {"CUDA fast path error", classInformation, originApplication},
	142: {"video encoder 3 error", classApplication, originApplication},
	143: {"GPU does not initialise", classBroken, originHardware},
	144: {"NVLink 5 error, SAW", classUndecided, originHardware},
	145: {"NVLink 5 error, RLW", classUndecided, originHardware},
	146: {"NVLink 5 error, TLW", classUndecided, originHardware},
	147: {"NVLink 5 error, TREX", classUndecided, originHardware},
	148: {"NVLink 5 error, NVLPW_CTRL", classUndecided, originHardware},
	149: {"NVLink 5 error, NETIR", classUndecided, originHardware},
	150: {"NVLink 5 error, MSE", classUndecided, originHardware},
	151: {"key rotation failed", classLocked, originEnvironment},
	152: {"DLA SMMU error", classInformation, originDriver},
	153: {"DLA timeout", classInformation, originDriver},
	154: {"the recovery action changed", classUndecided, originAccompanied},
	155: {"NVLink error that software defines", classUndecided, originDriver}, // links that are taken down on purpose make them too
	156: {"a part of the GPU was retired", classBroken, originHardware},
	157: {"a part of the GPU could not be retired", classInformation, originHardware},
	158: {"GPU fatal timeout", classBroken, originHardware},
	159: {"CHI non-data error", classInformation, originHardware},
	160: {"a channel was retired", classInformation, originHardware},
	161: {"a channel could not be retired", classInformation, originHardware},
	162: {"power smoothing is engaged again", classInformation, originHardware},
	163: {"power smoothing is disengaged", classInformation, originHardware},
	164: {"power smoothing is near the end of its lifetime", classInformation, originHardware},
	165: {"power smoothing is at the end of its lifetime", classInformation, originHardware},
	166: {"NVLink traffic before its encryption was set up", classInformation, originEnvironment},
	167: {"PCIe fatal timeout", classFallen, originHardware},
	168: {"errors in the write-protected region", classInformation, originHardware},
	169: {"security micro-controller halt", classBroken, originHardware},
	170: {"interrupt during confidential computing", classInformation, originEnvironment},
	171: {"uncorrectable error in DRAM, with 48", classInformation, originHardware},
	172: {"uncorrectable error in SRAM, with 48", classInformation, originHardware},
	173: {"link to the CPU failed", classBroken, originHardware},
	174: {"a program was ended silently", classInformation, originDriver},
	175: {"error of the memory subsystem", classMemory, originHardware},
	176: {"PCIe error that was corrected", classInformation, originHardware},
}
