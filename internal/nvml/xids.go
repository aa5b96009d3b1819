package nvml

import (
	"maps"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// Xid is what is known of one of the driver's error reports.
type Xid struct {
	Number uint64
	Name   string // what happened, in a few words
	Class  string // as in device.Event
	// Fault is who brought it about: "application", "driver", "hardware" or "environment",
	// which is the machine around the GPU. It is empty where only the report that it
	// accompanies can tell.
	Fault  string
	Action string // what it asks for, as in device.Status
	Heals  device.Heals
	// WholeGPU says that it hits the whole GPU, also where the driver names a slice.
	WholeGPU bool
	// Means is what podgauge makes of it, in a sentence.
	Means string
}

// Unknown is what podgauge makes of an Xid that the table does not have.
const Unknown = "checked at once: as the driver's recovery action says; suspect until checks pass where it has none"

// Xids are the rows of the table, by number.
func Xids() []Xid {
	list := make([]Xid, 0, len(xids))
	for _, number := range slices.Sorted(maps.Keys(xids)) {
		row := xids[number]
		c := classes[row.class]
		list = append(list, Xid{number, row.name, c.name, string(row.fault), c.action, c.heals, c.wholeGPU, c.means})
	}
	return list
}

// Means says whether an Xid is fatal, what it asks for, and whether it hits alone the
// slice that its report names. Of one that depends on the GPU it says the worst.
func Means(xid uint64) (e device.Event, alone bool) {
	c := xids[xid].class
	return c.event(), !classes[c].wholeGPU
}

// class is what the driver's report means for the GPU.
type class uint8

const (
	// unknown Xids have no row. They do not mark a GPU unhealthy by themselves: checks do,
	// which read the driver's recovery action.
	unknown class = iota
	// application: a program did something wrong, and the next one will run.
	application
	// information: a report that accompanies another one, or of something mended.
	information
	// contained: the hardware failed under a program, which alone is hit.
	contained
	// undecided: what it means stands in the driver's recovery action, which Check reads.
	undecided
	// memory: as the recovery action says, or broken if the driver has none.
	memory
	// broken: nothing runs before the GPU was reset.
	broken
	// fallen: nothing runs before the node was booted or its power cycled. A GPU that is off
	// the bus cannot be reset.
	fallen
	// locked: nothing runs before the virtual machine was started anew.
	locked
	// unpowered: somebody has to look at the machine.
	unpowered
)

// classes say what a class asks for, how it heals, and whether it is of the hardware: then
// all slices of a GPU share it, whichever the driver names.
var classes = [...]struct {
	name, action string
	heals        device.Heals
	wholeGPU     bool
	means        string
}{
	unknown:     {"unknown", inspect, device.ByCheck, false, Unknown},
	application: {"application", restartApp, device.ByItself, false, "counted; the device stays healthy"},
	information: {"information", "", device.ByItself, false, "counted; the device stays healthy"},
	contained:   {"contained", restartApp, device.ByItself, false, "counted; the device stays healthy, and who held it has to start anew"},
	undecided:   {"undecided", "", device.ByCheck, true, "checked at once: as the driver's recovery action says"},
	memory:      {"memory", resetGPU, device.ByReset, true, "as the driver's recovery action says; unhealthy until a reset was seen where it has none"},
	broken:      {"broken", resetGPU, device.ByReset, true, "unhealthy until a reset was seen"},
	fallen:      {"fallen", reboot, device.ByReset, true, "unhealthy until the GPU answers again after a reboot or a power cycle of the node"},
	locked:      {"locked", restartVM, device.ByReset, true, "unhealthy until the virtual machine was started anew"},
	unpowered:   {"unpowered", inspect, device.ByReset, true, "unhealthy until a reset was seen: somebody has to look at the machine"},
}

// event is a report of the class, of nobody yet.
func (c class) event() device.Event {
	return device.Event{Class: classes[c].name, Heals: classes[c].heals, Action: classes[c].action}
}

// blame is who brought something about.
type blame string

const (
	ofApplication blame = "application"
	ofDriver      blame = "driver"
	ofHardware    blame = "hardware"
	ofEnvironment blame = "environment"
	ofAnother     blame = "" // as the report says that it accompanies
)

// xids are NVIDIA's catalogue of error reports
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), each with what it
// means here. Where the catalogue gives a workflow, those of NVLink are undecided, and so
// is 48 where the driver can say whether the error was contained. What the catalogue calls
// unused has no row, except the encoders', which other GPUs have. The test holds the rows
// against testdata/xids.txt.
var xids = map[uint64]struct {
	name  string
	class class
	fault blame
}{
	8:   {"GPU stopped processing", application, ofApplication},
	11:  {"invalid or corrupted push buffer stream", application, ofApplication},
	13:  {"graphics engine exception", application, ofApplication},
	14:  {"fake error", information, ofDriver},
	25:  {"invalid or illegal push buffer stream", application, ofApplication},
	31:  {"memory page fault", application, ofApplication},
	32:  {"corrupted push buffer stream, mostly by PCIe", contained, ofHardware},
	37:  {"firmware error, unknown method", information, ofDriver},
	38:  {"firmware error, watchdog timeout", information, ofDriver},
	39:  {"copy engine 0 exception", application, ofApplication},
	40:  {"copy engine 1 exception", application, ofApplication},
	41:  {"copy engine 2 exception", application, ofApplication},
	43:  {"a program's work was stopped", information, ofApplication},
	44:  {"graphics engine fault during a context switch", information, ofDriver},
	45:  {"a program's work was cleaned up after another error", information, ofAnother},
	46:  {"GPU stopped processing and timed out", broken, ofDriver},
	47:  {"video encoder 0 error", application, ofApplication},
	48:  {"double-bit ECC error", memory, ofHardware},
	54:  {"auxiliary power is not connected", unpowered, ofEnvironment},
	60:  {"video processor exception", application, ofApplication},
	62:  {"internal micro-controller halt", broken, ofHardware},
	63:  {"a row was remapped or a page retired", information, ofHardware},
	64:  {"a row could not be remapped or a page retired", broken, ofHardware},
	65:  {"video encoder 1 error", application, ofApplication},
	66:  {"illegal access by the driver", information, ofDriver},
	67:  {"illegal access by the driver", information, ofDriver},
	68:  {"video decoder 0 exception", application, ofApplication},
	69:  {"graphics engine class error", application, ofApplication},
	70:  {"copy engine 3 error", application, ofApplication},
	71:  {"copy engine 4 error", application, ofApplication},
	72:  {"copy engine 5 error", application, ofApplication},
	73:  {"video encoder 2 error", application, ofApplication},
	74:  {"NVLink error", undecided, ofHardware},
	75:  {"copy engine 6 error", application, ofApplication},
	76:  {"copy engine 7 error", application, ofApplication},
	77:  {"copy engine 8 error", application, ofApplication},
	78:  {"vGPU could not be started", information, ofEnvironment},
	79:  {"GPU has fallen off the bus", fallen, ofHardware},
	80:  {"corrupted data sent to the GPU", application, ofApplication},
	82:  {"JPEG engine 0 error", application, ofApplication},
	83:  {"video decoder 1 error", application, ofApplication},
	84:  {"video decoder 2 error", application, ofApplication},
	85:  {"copy engine 9 error", application, ofApplication},
	86:  {"optical flow engine exception", application, ofApplication},
	88:  {"video decoder 3 error", application, ofApplication},
	89:  {"video decoder 4 error", application, ofApplication},
	92:  {"many single-bit ECC errors", information, ofHardware},
	93:  {"InfoROM is worn", information, ofHardware},
	94:  {"contained memory error", contained, ofHardware},
	95:  {"uncontained memory error", broken, ofHardware},
	96:  {"video decoder 5 error", application, ofApplication},
	97:  {"video decoder 6 error", application, ofApplication},
	98:  {"video decoder 7 error", application, ofApplication},
	99:  {"JPEG engine 1 error", application, ofApplication},
	100: {"JPEG engine 2 error", application, ofApplication},
	101: {"JPEG engine 3 error", application, ofApplication},
	102: {"JPEG engine 4 error", application, ofApplication},
	103: {"JPEG engine 5 error", application, ofApplication},
	104: {"JPEG engine 6 error", application, ofApplication},
	105: {"JPEG engine 7 error", application, ofApplication},
	106: {"SMBPBI test message", information, ofEnvironment},
	107: {"silent SMBPBI test message", information, ofEnvironment},
	108: {"NVLink remote translation error", information, ofApplication},
	109: {"context switch timeout", undecided, ofDriver}, // heavy time-slicing makes them too
	110: {"security fault", broken, ofDriver},
	119: {"GSP does not answer", broken, ofDriver},
	120: {"GSP error", broken, ofDriver},
	121: {"link to the CPU was corrected", information, ofHardware},
	126: {"copy engine 10 error", application, ofApplication},
	127: {"copy engine 11 error", application, ofApplication},
	128: {"copy engine 12 error", application, ofApplication},
	129: {"copy engine 13 error", application, ofApplication},
	130: {"copy engine 14 error", application, ofApplication},
	131: {"copy engine 15 error", application, ofApplication},
	132: {"copy engine 16 error", application, ofApplication},
	133: {"copy engine 17 error", application, ofApplication},
	134: {"copy engine 18 error", application, ofApplication},
	135: {"copy engine 19 error", application, ofApplication},
	136: {"link training failed", broken, ofHardware},
	137: {"NVLink privilege error", information, ofApplication},
	139: {"optical flow engine 1 error", application, ofApplication},
	140: {"ECC error that was not recovered", broken, ofHardware},
	141: {"CUDA fast path error", information, ofApplication},
	142: {"video encoder 3 error", application, ofApplication},
	143: {"GPU does not initialise", broken, ofHardware},
	144: {"NVLink 5 error, SAW", undecided, ofHardware},
	145: {"NVLink 5 error, RLW", undecided, ofHardware},
	146: {"NVLink 5 error, TLW", undecided, ofHardware},
	147: {"NVLink 5 error, TREX", undecided, ofHardware},
	148: {"NVLink 5 error, NVLPW_CTRL", undecided, ofHardware},
	149: {"NVLink 5 error, NETIR", undecided, ofHardware},
	150: {"NVLink 5 error, MSE", undecided, ofHardware},
	151: {"key rotation failed", locked, ofEnvironment},
	152: {"DLA SMMU error", information, ofDriver},
	153: {"DLA timeout", information, ofDriver},
	154: {"the recovery action changed", undecided, ofAnother},
	155: {"NVLink error that software defines", undecided, ofDriver}, // links that are taken down on purpose make them too
	156: {"a part of the GPU was retired", broken, ofHardware},
	157: {"a part of the GPU could not be retired", information, ofHardware},
	158: {"GPU fatal timeout", broken, ofHardware},
	159: {"CHI non-data error", information, ofHardware},
	160: {"a channel was retired", information, ofHardware},
	161: {"a channel could not be retired", information, ofHardware},
	162: {"power smoothing is engaged again", information, ofHardware},
	163: {"power smoothing is disengaged", information, ofHardware},
	164: {"power smoothing is near the end of its lifetime", information, ofHardware},
	165: {"power smoothing is at the end of its lifetime", information, ofHardware},
	166: {"NVLink traffic before its encryption was set up", information, ofEnvironment},
	167: {"PCIe fatal timeout", fallen, ofHardware},
	168: {"errors in the write-protected region", information, ofHardware},
	169: {"security micro-controller halt", broken, ofHardware},
	170: {"interrupt during confidential computing", information, ofEnvironment},
	171: {"uncorrectable error in DRAM, with 48", information, ofHardware},
	172: {"uncorrectable error in SRAM, with 48", information, ofHardware},
	173: {"link to the CPU failed", broken, ofHardware},
	174: {"a program was ended silently", information, ofDriver},
	175: {"error of the memory subsystem", memory, ofHardware},
	176: {"PCIe error that was corrected", information, ofHardware},
}
