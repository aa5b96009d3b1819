package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxWait bounds a Wait, as the real one does.
const maxWait = time.Second

// beginCall takes the lock, once no hang keeps the caller out. leave gives it back.
func (m *Machine) beginCall(stalled func() bool) {
	m.mu.Lock()
	m.activeCalls++
	for m.allHung || stalled() {
		changed := m.notify
		m.mu.Unlock()
		<-changed
		m.mu.Lock()
	}
}

func (m *Machine) endCall() {
	m.activeCalls--
	m.mu.Unlock()
}

func neverHung() bool { return false }

// Idle reports whether no call runs in the background; a Machine has none.
func (m *Machine) Idle() bool { return true }

// Close releases the driver, see device.Closer.
func (m *Machine) Close() {
	m.update(func() {
		m.closedDuringCall = m.closedDuringCall || m.activeCalls > 0
		m.closed = true
	})
}

// ClosedDuringCall tells whether Close was ever called beneath another call: NVML does not
// survive that.
func (m *Machine) ClosedDuringCall() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closedDuringCall
}

// Closed tells whether the driver is let go of.
func (m *Machine) Closed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// Metrics are the rows that the machine was given.
func (m *Machine) Metrics() []device.Metric { return m.metrics }

// Devices lists the GPUs that have not been removed, and their slices.
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

// beginGPUCall enters for one GPU. The caller leaves.
func (m *Machine) beginGPUCall(id device.GPU) (*simGPU, error) {
	m.beginCall(func() bool {
		g := m.findGPU(id)
		return g != nil && g.hung
	})
	g := m.findGPU(id)
	if g == nil {
		return nil, fmt.Errorf("GPU %s is not in this machine", id)
	}
	switch {
	case m.driverErr != nil || m.closed:
		return nil, device.ErrNoDriver
	case g.removed:
		return nil, device.ErrLost
	}
	return g, g.fault
}

// findGPU finds a GPU; nil where there is none. The caller holds mu.
func (m *Machine) findGPU(id device.GPU) *simGPU {
	for _, g := range m.gpus {
		if g.GPU == id {
			return g
		}
	}
	return nil
}

// Read appends the values of all rows that the machine knows how to make up.
func (m *Machine) Read(id device.GPU, buf []device.Sample) ([]device.Sample, error) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if err != nil {
		return buf, err
	}
	return m.appendSamples(g, buf), nil
}

// Check answers with the fault that the caller set, if any.
func (m *Machine) Check(id device.GPU) (device.ResetEvidence, error) {
	g, err := m.beginGPUCall(id)
	defer m.endCall()
	if g == nil {
		return device.ResetEvidence{}, err
	}
	return g.resetEvidence(m.now()), err
}

// resetEvidence have the energy that was burned for an odometer, in millijoules as NVIDIA counts
// it, and one more: none at all is told by a GPU that has none. One that is lost tells no
// more than it has told.
func (g *simGPU) resetEvidence(now time.Time) device.ResetEvidence {
	if !errors.Is(g.fault, device.ErrLost) {
		g.energyCounter = 1 + uint64(1000*g.totalJoules(now))
	}
	return device.ResetEvidence{Resets: g.resets, EnergyCounter: g.energyCounter, RepairPending: g.repairPending}
}

// Wait returns the reports in the order in which they were made.
func (m *Machine) Wait(ctx context.Context) (device.Event, error) {
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()
	for {
		m.beginCall(neverHung)
		if len(m.events) > 0 && !m.closed {
			e := m.events[0]
			m.events = m.events[1:]
			m.endCall()
			return e, nil
		}
		changed := m.notify
		m.mu.Unlock() // it is inside while it waits
		var done bool
		select {
		case <-changed:
		case <-timeout.C:
			done = true
		case <-ctx.Done():
			done = true
		}
		m.mu.Lock()
		m.endCall()
		if done {
			return device.Event{}, nil
		}
	}
}
