package sim

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

var (
	_ device.ProcessUsageReader = (*Machine)(nil)
	_ device.ProcessLister      = (*Machine)(nil)
)

// simProcess is a made-up process on a device.
type simProcess struct {
	pid    uint32
	device device.ID
	bytes  float64
	sm     float64
}

// StartProcess has a process use a device: memory in bytes, and a share of the multiprocessors,
// 0 to 1, by which the GPU is busier. Either is negative where the driver is not to
// tell it. A process that is on the device already uses that from now on.
func (m *Machine) StartProcess(id device.ID, pid uint32, bytes, sm float64) {
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.removeProcesses(func(p simProcess) bool { return p.pid == pid && p.device == id })
		g.processes = append(g.processes, simProcess{pid, id, bytes, sm})
	})
}

// StopProcess ends a process, wherever it is.
func (m *Machine) StopProcess(pid uint32) {
	m.update(func() {
		for _, g := range m.gpus {
			g.accumulate(m.now())
			g.removeProcesses(func(p simProcess) bool { return p.pid == pid })
		}
	})
}

// HideProcesses has the driver tell nothing of processes, as some versions cannot, or again.
func (m *Machine) HideProcesses(hidden bool) { m.update(func() { m.processesHidden = hidden }) }

// ReadProcessUsage appends what the processes on a GPU use, in the order in which they came.
func (m *Machine) ReadProcessUsage(id device.GPU, buf []device.ProcessUsage) (uses []device.ProcessUsage, known bool) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if err != nil || m.processesHidden {
		return buf, false
	}
	for _, p := range g.processes {
		if g.acceptsProcesses(p.device) {
			buf = append(buf, g.processUsage(p))
		}
	}
	return buf, true
}

// processUsage is what the driver tells of a process: of one on a slice its memory alone.
func (g *simGPU) processUsage(p simProcess) device.ProcessUsage {
	u := device.ProcessUsage{Device: p.device, PID: p.pid, MemoryBytes: p.bytes, SM: p.sm, MemoryController: p.sm / 2}
	if g.MIGEnabled || p.sm < 0 {
		u.SM, u.MemoryController, u.Encoder, u.Decoder = -1, -1, -1, -1
	}
	return u
}

// Processes are those that have memory on a device.
func (m *Machine) Processes(d device.Device) ([]uint32, error) {
	g, err := m.beginGPUCall(d.GPU)
	defer m.endCall()
	if err != nil || m.processesHidden {
		return nil, err
	}
	var pids []uint32
	for _, p := range g.processes {
		if g.acceptsProcesses(p.device) && (p.device == d.ID || d.WholeGPU()) {
			pids = append(pids, p.pid)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// acceptsProcesses tells whether a process can be on a device: not on a slice that is gone, nor
// on a GPU that is partitioned.
func (g *simGPU) acceptsProcesses(id device.ID) bool {
	return !g.MIGEnabled && id == g.ID || g.findMIGDevice(id) != nil
}

func (g *simGPU) removeProcesses(matches func(simProcess) bool) {
	g.processes = slices.DeleteFunc(g.processes, matches)
}

// defaultProcessBytes is what the processes on a device hold.
func (g *simGPU) processBytes(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.acceptsProcesses(id) {
			sum += max(p.bytes, 0)
		}
	}
	return sum
}

// processLoad is how busy they keep it.
func (g *simGPU) processLoad(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.acceptsProcesses(id) {
			sum += max(p.sm, 0)
		}
	}
	return sum
}
