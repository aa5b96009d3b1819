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
func (m *Machine) Fail(id device.ID, what string) {
	m.change(id, func(g *gpu) {
		var xid uint64
		if _, err := fmt.Sscanf(what, "xid %d", &xid); err == nil {
			m.report(g, id, xid)
			return
		}
		g.fault = errors.New(what)
		if what == "lost" {
			g.fault = device.ErrLost
		}
	})
}

// harmlessXids are what a faulty program can cause on a sound GPU, and reports of what
// is mended, contained or said elsewhere; hardwareXids are no single slice's.
var (
	harmlessXids = []uint64{13, 31, 43, 45, 63, 68, 92, 94, 109, 154, 171, 172}
	hardwareXids = []uint64{46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 140, 154}
)

// meaning is what Means is at first.
func meaning(xid uint64) (e device.Event, alone bool) {
	if !slices.Contains(harmlessXids, xid) {
		e.Heals, e.Action = device.ByReset, "reset_gpu"
	}
	if xid == 79 {
		e.Action = "reboot"
	}
	return e, !slices.Contains(hardwareXids, xid)
}

func (m *Machine) report(g *gpu, id device.ID, xid uint64) {
	e, alone := m.Means(xid)
	e.GPU, e.Xid = g.GPU, xid
	if alone && g.sliceOf(id) != nil {
		e.Device = id
	}
	if xid == 79 {
		g.fault = device.ErrLost
	}
	m.events = append(m.events, e)
}

// Ail has a device's GPU answer its checks with an error as device.Backend has them, a
// *device.Fault for one. It ends with a reset, or with nil.
func (m *Machine) Ail(id device.ID, err error) { m.change(id, func(g *gpu) { g.fault = err }) }

// Await has a repair of a device's GPU wait for its next reset.
func (m *Machine) Await(id device.ID) { m.change(id, func(g *gpu) { g.pending = true }) }

// Recover resets a device's GPU: whatever was wrong with it is mended.
func (m *Machine) Recover(id device.ID) {
	m.change(id, func(g *gpu) {
		g.fault, g.stalled, g.removed, g.pending = nil, false, false, false
		g.resets++
		g.joules, g.worked, g.settled = 0, 0, m.now()
	})
}

// Remove takes a device's GPU out of the machine. Recover puts it back.
func (m *Machine) Remove(id device.ID) { m.change(id, func(g *gpu) { g.removed = true }) }

// Stall has no call about a device's GPU return until Release, or Recover.
func (m *Machine) Stall(id device.ID) { m.change(id, func(g *gpu) { g.stalled = true }) }

// Wedge has no call return at all, Release ends that and all stalls.
func (m *Machine) Wedge() { m.locked(func() { m.wedged = true }) }

// Release has all calls return that do not, and those to come.
func (m *Machine) Release() {
	m.locked(func() {
		m.wedged = false
		for _, g := range m.gpus {
			g.stalled = false
		}
	})
}

// Unload takes the driver away, with the reason that calls then give; nil brings
// it back.
func (m *Machine) Unload(why error) { m.locked(func() { m.gone = why }) }
