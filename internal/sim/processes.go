package sim

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

var (
	_ device.Peopled  = (*Machine)(nil)
	_ device.Occupied = (*Machine)(nil)
)

// process is a made-up process on a device.
type process struct {
	pid    uint32
	device device.ID
	bytes  float64
	sm     float64
}

// Run has a process use a device: memory in bytes, and a share of the multiprocessors,
// 0 to 1, by which the GPU is busier. Either is negative where the driver is not to
// tell it. A process that is on the device already uses that from now on.
func (m *Machine) Run(id device.ID, pid uint32, bytes, sm float64) {
	m.change(id, func(g *gpu) {
		g.settle(m.now())
		g.quit(func(p process) bool { return p.pid == pid && p.device == id })
		g.processes = append(g.processes, process{pid, id, bytes, sm})
	})
}

// Quit ends a process, wherever it is.
func (m *Machine) Quit(pid uint32) {
	m.locked(func() {
		for _, g := range m.gpus {
			g.settle(m.now())
			g.quit(func(p process) bool { return p.pid == pid })
		}
	})
}

// Veil has the driver tell nothing of processes, as some versions cannot, or again.
func (m *Machine) Veil(veiled bool) { m.locked(func() { m.veiled = veiled }) }

// Uses appends what the processes on a GPU use, in the order in which they came.
func (m *Machine) Uses(id device.GPU, buf []device.Use) (uses []device.Use, known bool) {
	g, err := m.ask(id)
	defer m.leave()
	if err != nil || m.veiled {
		return buf, false
	}
	for _, p := range g.processes {
		if g.carries(p.device) {
			buf = append(buf, g.use(p))
		}
	}
	return buf, true
}

// use is what the driver tells of a process: of one on a slice its memory alone.
func (g *gpu) use(p process) device.Use {
	u := device.Use{Device: p.device, PID: p.pid, MemoryBytes: p.bytes, SM: p.sm, MemoryController: p.sm / 2}
	if g.MIG || p.sm < 0 {
		u.SM, u.MemoryController, u.Encoder, u.Decoder = -1, -1, -1, -1
	}
	return u
}

// Processes are those that have memory on a device.
func (m *Machine) Processes(d device.Device) ([]uint32, error) {
	g, err := m.ask(d.GPU)
	defer m.leave()
	if err != nil || m.veiled {
		return nil, err
	}
	var pids []uint32
	for _, p := range g.processes {
		if g.carries(p.device) && (p.device == d.ID || d.WholeGPU()) {
			pids = append(pids, p.pid)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// carries tells whether a process can be on a device: not on a slice that is gone, nor
// on a GPU that is partitioned.
func (g *gpu) carries(id device.ID) bool { return !g.MIG && id == g.ID || g.sliceOf(id) != nil }

func (g *gpu) quit(who func(process) bool) { g.processes = slices.DeleteFunc(g.processes, who) }

// processBytes is what the processes on a device hold.
func (g *gpu) processBytes(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.carries(id) {
			sum += max(p.bytes, 0)
		}
	}
	return sum
}

// processLoad is how busy they keep it.
func (g *gpu) processLoad(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.carries(id) {
			sum += max(p.sm, 0)
		}
	}
	return sum
}
