package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// Fail has something happen to a device: "xid N" (an error report; Means says what it
// does, and with 79 the GPU is lost), "lost", or any other text, which the GPU's checks
// then answer.
func (m *Machine) Fail(id device.ID, fault string) {
	m.updateDevice(id, func(g *simGPU) {
		var xid uint64
		if _, err := fmt.Sscanf(fault, "xid %d", &xid); err == nil {
			m.reportXid(g, id, xid)
			return
		}
		g.fault = errors.New(fault)
		if fault == "lost" {
			g.fault = device.ErrLost
		}
	})
}

// ignoredXids are what a faulty program can cause on a sound GPU, and reports of what
// is mended, contained or said elsewhere; gpuWideXids are no single slice's.
var (
	ignoredXids = []uint64{13, 31, 43, 45, 63, 68, 92, 94, 109, 154, 171, 172}
	gpuWideXids = []uint64{46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 140, 154}
)

// defaultXidEvent is what Means is at first.
func defaultXidEvent(xid uint64) (e device.Event, deviceOnly bool) {
	if !slices.Contains(ignoredXids, xid) {
		e.Recovery, e.Action = device.RecoveryAfterReset, "reset_gpu"
	}
	if xid == 79 {
		e.Action = "reboot"
	}
	return e, !slices.Contains(gpuWideXids, xid)
}

func (m *Machine) reportXid(g *simGPU, id device.ID, xid uint64) {
	e, deviceOnly := m.ClassifyXid(xid)
	e.GPU, e.Xid = g.GPU, xid
	if deviceOnly && g.findMIGDevice(id) != nil {
		e.Device = id
	}
	if xid == 79 {
		g.fault = device.ErrLost
	}
	m.events = append(m.events, e)
}

// SetCheckError has a device's GPU answer its checks with an error as device.Backend has them, a
// *device.Fault for one. It ends with a reset, or with nil.
func (m *Machine) SetCheckError(id device.ID, err error) {
	m.updateDevice(id, func(g *simGPU) { g.fault = err })
}

// SetRepairPending has a repair of a device's GPU wait for its next reset.
func (m *Machine) SetRepairPending(id device.ID) {
	m.updateDevice(id, func(g *simGPU) { g.repairPending = true })
}

// ResetGPU resets a device's GPU: whatever was wrong with it is mended.
func (m *Machine) ResetGPU(id device.ID) {
	m.updateDevice(id, func(g *simGPU) {
		g.fault, g.hung, g.removed, g.repairPending = nil, false, false, false
		g.resets++
		g.joules, g.loadSeconds, g.accumulatedAt = 0, 0, m.now()
	})
}

// RemoveGPU takes a device's GPU out of the machine. Recover puts it back.
func (m *Machine) RemoveGPU(id device.ID) { m.updateDevice(id, func(g *simGPU) { g.removed = true }) }

// HangGPU has no call about a device's GPU return until Release, or Recover.
func (m *Machine) HangGPU(id device.ID) { m.updateDevice(id, func(g *simGPU) { g.hung = true }) }

// HangAll has no call return at all, Release ends that and all stalls.
func (m *Machine) HangAll() { m.update(func() { m.allHung = true }) }

// ReleaseHangs has all calls return that do not, and those to come.
func (m *Machine) ReleaseHangs() {
	m.update(func() {
		m.allHung = false
		for _, g := range m.gpus {
			g.hung = false
		}
	})
}

// SetDriverError takes the driver away, with the reason that calls then give; nil brings
// it back.
func (m *Machine) SetDriverError(err error) { m.update(func() { m.driverErr = err }) }
