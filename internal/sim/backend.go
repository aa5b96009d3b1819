package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

var _ device.Backend = (*Machine)(nil)

// waitTimeout is the longest duration of Wait, as in the real backend.
const waitTimeout = time.Second

// Metrics returns the machine's rows.
func (m *Machine) Metrics() []device.Metric { return m.metrics }

// Idle returns true: a Machine makes no calls in the background.
func (m *Machine) Idle() bool { return true }

// Close closes the driver, until the next Devices.
func (m *Machine) Close() {
	m.update(func() {
		m.closedDuringCall = m.closedDuringCall || m.activeCalls > 0
		m.closed = true
	})
}

// ClosedDuringCall reports whether Close was ever called during a call: NVML
// would crash.
func (m *Machine) ClosedDuringCall() bool { return locked(m, &m.closedDuringCall) }

// Closed reports whether the driver is closed.
func (m *Machine) Closed() bool { return locked(m, &m.closed) }

// Devices returns the present GPUs and MIG devices.
func (m *Machine) Devices(context.Context) ([]device.Device, error) {
	m.beginCall(neverHung)
	defer m.endCall()
	if m.driverErr != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, m.driverErr)
	}
	m.closed = false
	devices := []device.Device{}
	for _, g := range m.gpus {
		if !g.removed {
			devices = append(devices, g.devices()...)
		}
	}
	return devices, nil
}

// Links returns the links between present GPUs. GPUs of the same model have
// NVLinks through NVSwitches.
func (m *Machine) Links(context.Context) ([]device.Link, error) {
	m.beginCall(neverHung)
	defer m.endCall()
	m.linkReads++
	if m.driverErr != nil || m.closed {
		return nil, device.ErrNoDriver
	}
	links := []device.Link{}
	var lostErr error
	for _, a := range m.gpus {
		if !a.removed && a.fault != nil {
			lostErr = fmt.Errorf("%s: %w", a.GPU, a.fault)
		}
		for _, b := range m.gpus {
			if a != b && !a.removed && !b.removed && a.fault == nil {
				links = append(links, linkBetween(a, b))
			}
		}
	}
	return links, lostErr
}

func linkBetween(a, b *simGPU) device.Link {
	l := device.Link{A: a.GPU, B: b.GPU, Path: device.PathSystem}
	if a.NUMANode == b.NUMANode {
		l.Path = device.PathNUMANode
	}
	if a.model == b.model {
		l.NVLinks = a.model.nvlinks
	}
	return l
}

// LinkReads returns the number of Links calls.
func (m *Machine) LinkReads() int { return locked(m, &m.linkReads) }

// Read returns the values of all rows with a rule. A GPU with a device.Fault
// answers.
func (m *Machine) Read(id device.GPU) ([]device.Sample, error) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if _, answers := errors.AsType[*device.Fault](err); err != nil && !answers {
		return nil, err
	}
	return m.appendSamples(g, make([]device.Sample, 0, len(m.Metrics()))), nil
}

// appendSamples appends the values of a GPU and of the GPU instances.
func (m *Machine) appendSamples(g *simGPU, buf []device.Sample) []device.Sample {
	now := m.now()
	g.accumulate(now)
	for i := range m.rows {
		if value, ok := g.value(&m.rows[i], now); ok {
			buf = append(buf, device.Sample{Device: g.ID, Metric: i, Value: value})
		}
	}
	for _, in := range g.instances {
		for _, i := range m.migRows {
			if value, ok := in.value(&m.rows[i], now); ok {
				buf = append(buf, device.Sample{Device: in.ID, Metric: i, Value: value})
			}
		}
	}
	return buf
}

// Check returns the GPU's fault. The energy counter is in millijoules, as
// NVIDIA's, plus 1, since 0 means no counter. The counter stands still while
// the GPU is lost.
func (m *Machine) Check(id device.GPU) (device.ResetEvidence, error) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if g == nil {
		return device.ResetEvidence{}, err
	}
	if !errors.Is(g.fault, device.ErrLost) {
		g.accumulate(m.now())
		g.energyCounter = 1 + uint64(1000*g.joules)
	}
	return device.ResetEvidence{Resets: g.resets, EnergyCounter: g.energyCounter, RepairPending: g.repairPending}, err
}

// Wait returns events in order.
func (m *Machine) Wait(ctx context.Context) (device.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		m.beginCall(neverHung)
		if len(m.events) > 0 && !m.closed {
			e := m.events[0]
			m.events = m.events[1:]
			m.endCall()
			return e, nil
		}
		_, changed := m.changes.Get()
		m.mu.Unlock() // the call goes on
		select {
		case <-changed:
		case <-ctx.Done():
		}
		m.mu.Lock()
		m.endCall()
		if ctx.Err() != nil {
			return device.Event{}, nil
		}
	}
}

// ReadProcessUsage returns the usage of processes in start order. Processes on
// MIG devices have memory alone.
func (m *Machine) ReadProcessUsage(id device.GPU) (uses []device.ProcessUsage, known bool) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if err != nil {
		return nil, false
	}
	for _, p := range g.processes {
		if !g.acceptsProcesses(p.device) {
			continue
		}
		u := device.ProcessUsage{
			Device: p.device, PID: p.pid, MemoryBytes: p.bytes, SM: p.sm,
			MemoryController: p.sm / 2,
		}
		if g.MIGEnabled || p.sm < 0 {
			u.SM, u.MemoryController, u.Encoder, u.Decoder = -1, -1, -1, -1
		}
		uses = append(uses, u)
	}
	return uses, true
}

// Processes returns the processes with memory on a device.
func (m *Machine) Processes(d device.Device) ([]uint32, error) {
	g, err := m.beginGPUCall(d.GPU)
	defer m.endCall()
	if err != nil {
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
