// Package xid is the table of Xids, the driver's error reports: their meaning and the action of the operator.
package xid

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

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
	e = c.Event()
	e.Severity = SeverityOf(xid)
	return e, !c.WholeGPU()
}

// SeverityOf returns the severity of an Xid in the driver's report. NVLink 5 errors have a severity in the kernel log.
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
		"the driver's recovery action decides; without one, suspect until checks pass",
	},
	Application: {"application", ActionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy"},
	Information: {"information", "", device.RecoveryNone, false, "counted; the device stays healthy"},
	Contained:   {"contained", ActionRestartApp, device.RecoveryNone, false, "counted; the device stays healthy, the affected application needs a restart"},
	Undecided:   {"undecided", "", device.RecoveryChecksPass, true, "the driver's recovery action decides"},
	Memory:      {"memory", ActionResetGPU, device.RecoveryAfterReset, true, "the driver's recovery action decides; without one, unhealthy until a reset"},
	Broken:      {"broken", ActionResetGPU, device.RecoveryAfterReset, true, "unhealthy until a reset"},
	Fallen:      {"fallen", ActionReboot, device.RecoveryAfterReset, true, "unhealthy until the GPU responds after a reboot or power cycle of the node"},
	Locked:      {"locked", ActionRestartVM, device.RecoveryAfterReset, true, "unhealthy until a restart of the virtual machine"},
	Unpowered:   {"unpowered", ActionInspect, device.RecoveryAfterReset, true, "unhealthy until a reset; inspect the machine"},
}

// ClassOf returns the class of an Xid.
func ClassOf(xid uint64) Class { return Xids[xid].Class }

// BySoftware reports whether an Xid is an error of an application or of the driver that leaves the GPU usable. A container can cause such
// errors at will.
func BySoftware(xid uint64) bool {
	row := Xids[xid]
	return row.Class == Application || row.Class == Information && row.Origin != "hardware" && row.Origin != "environment" ||
		row.Class == Undecided && row.Origin == "driver"
}

// Event returns an event of the class, without a GPU.
func (c Class) Event() device.Event {
	return device.Event{Class: classes[c].name, Recovery: classes[c].recovery, Action: classes[c].action}
}

// WholeGPU reports whether the class concerns the whole GPU, even if the driver names a MIG device.
func (c Class) WholeGPU() bool { return classes[c].wholeGPU }

// Effect returns the effect of the class in podgauge, in a sentence.
func (c Class) Effect() string { return classes[c].effect }

// xidTable has a line for each Xid: the number, the class, the origin of the error (application, driver, hardware, environment for the
// machine around the GPU, or - for the origin of the accompanying report) and the name of the event, in a few words.
//
//go:embed xids.txt
var xidTable string

// Xids are NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Of the Xids with a workflow, NVLink errors are
// undecided, and 48 is memory, since the driver may know about containment. Unused numbers have no row, apart from encoders of other GPUs.
// The test compares the rows with testdata/xids.txt. Heavy time-slicing causes 109 as well, and links taken down on purpose cause 155.
var Xids = readTable()

type catalogueRow struct {
	Name   string
	Class  Class
	Origin string // empty: of the accompanying report
}

func readTable() map[uint64]catalogueRow {
	entries := map[uint64]catalogueRow{}
	for line := range strings.Lines(xidTable) {
		column := strings.SplitN(strings.TrimSpace(line), " | ", 4)
		number, err := strconv.ParseUint(column[0], 10, 64)
		class := Unknown + 1
		for class < Class(len(classes)) && classes[class].name != column[1] {
			class++
		}
		if err != nil || class == Class(len(classes)) {
			panic("xid: xids.txt: " + line)
		}
		entries[number] = catalogueRow{column[3], class, strings.TrimPrefix(column[2], "-")}
	}
	return entries
}
