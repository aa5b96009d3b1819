package sim

import (
	"errors"
	"fmt"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sxid"
)

// Fail sets a fault of a device: "xid N" reports an Xid, and with 79 the GPU is
// lost; "lost"; Check returns any remaining text.
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

func (m *Machine) reportXid(g *simGPU, id device.ID, xid uint64) {
	e, deviceOnly := m.classifyXid(xid)
	e.GPU, e.Xid = g.GPU, xid
	if deviceOnly && g.migDevice(id) != nil {
		e.Device = id
	}
	if xid == 79 {
		g.fault = device.ErrLost
	}
	m.events = append(m.events, e)
}

// ReportSwitchError reports an error of an NVSwitch by the driver's message:
// "20034, Fatal, Link 30 LTSSM Fault Up".
func (m *Machine) ReportSwitchError(nvswitch int, message string) error {
	text := fmt.Sprintf("nvidia-nvswitch%d: SXid (PCI:0000:%02x:00.0): %s", nvswitch, 0xc1+nvswitch, message)
	e, ok := sxid.ParseLine(text)
	if !ok || nvswitch < 0 || nvswitch > 11 {
		return fmt.Errorf("%q: expected an NVSwitch and the message of an error", text)
	}
	m.SwitchErrors.Record(e, m.now(), false)
	return nil
}

// SetCheckError sets the error of Check for a device's GPU, until a reset; nil
// clears the error.
func (m *Machine) SetCheckError(id device.ID, err error) {
	m.updateDevice(id, func(g *simGPU) { g.fault = err })
}

// SetRepairPending schedules a repair at the next reset of a device's GPU.
func (m *Machine) SetRepairPending(id device.ID) {
	m.updateDevice(id, func(g *simGPU) { g.repairPending = true })
}

// ResetGPU resets a device's GPU and ends all faults.
func (m *Machine) ResetGPU(id device.ID) {
	m.updateDevice(id, func(g *simGPU) {
		g.fault, g.hung, g.removed, g.repairPending = nil, false, false, false
		g.resets++
		g.slowdown = 0
		g.joules, g.loadSeconds, g.trafficSeconds, g.slowSeconds, g.accumulatedAt = 0, 0, 0, 0, m.now()
	})
}

// BeginProcess begins the count of resets at 0, as a new process does.
func (m *Machine) BeginProcess() {
	m.update(func() {
		for _, g := range m.gpus {
			g.resets = 0
		}
	})
}

// RemoveGPU removes a device's GPU from the machine, until ResetGPU.
func (m *Machine) RemoveGPU(id device.ID) { m.updateDevice(id, func(g *simGPU) { g.removed = true }) }

// HangGPU blocks all calls about a device's GPU, until ReleaseHangs or
// ResetGPU.
func (m *Machine) HangGPU(id device.ID) { m.updateDevice(id, func(g *simGPU) { g.hung = true }) }

// HangAll blocks all calls, until ReleaseHangs.
func (m *Machine) HangAll() { m.update(func() { m.allHung = true }) }

// ReleaseHangs ends all hangs.
func (m *Machine) ReleaseHangs() {
	m.update(func() {
		m.allHung = false
		for _, g := range m.gpus {
			g.hung = false
		}
	})
}

// SetDriverError removes the driver, and calls return an error; nil brings the
// driver back.
func (m *Machine) SetDriverError(err error) { m.update(func() { m.driverErr = err }) }
