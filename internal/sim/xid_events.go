package sim

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// XidClassifier returns the event of an Xid, and whether an Xid naming a MIG
// device affects this device alone.
type XidClassifier func(xid uint64) (e device.Event, deviceOnly bool)

// ignoredXids need no reset: programs cause the fault, or the GPU contains or
// repairs it. gpuWideXids affect all MIG devices.
var (
	ignoredXids = []uint64{13, 31, 43, 45, 63, 68, 92, 94, 109, 154, 171, 172}
	gpuWideXids = []uint64{46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 140, 154}
)

// DefaultXidEvent classifies all Xids except ignoredXids as faults until a
// reset.
func DefaultXidEvent(xid uint64) (e device.Event, deviceOnly bool) {
	if !slices.Contains(ignoredXids, xid) {
		e.Recovery, e.Action = device.RecoveryAfterReset, "reset_gpu"
	}
	if xid == 79 {
		e.Action = "reboot"
	}
	return e, !slices.Contains(gpuWideXids, xid)
}
