package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// waitMost bounds a Wait, as the real one does.
const waitMost = time.Second

// enter takes the lock, once no hang keeps the caller out. leave gives it back.
func (m *Machine) enter(stalled func() bool) {
	m.mu.Lock()
	m.inside++
	for m.wedged || stalled() {
		changed := m.notify
		m.mu.Unlock()
		<-changed
		m.mu.Lock()
	}
}

func (m *Machine) leave() {
	m.inside--
	m.mu.Unlock()
}

func never() bool { return false }

// Close lets go of the driver, as device.Closer says.
func (m *Machine) Close() {
	m.locked(func() {
		m.misuse = m.misuse || m.inside > 0
		m.closed = true
	})
}

// Misused tells whether Close was ever called beneath another call: NVML does not
// survive that.
func (m *Machine) Misused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.misuse
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
	m.enter(never)
	defer m.leave()
	if m.gone != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, m.gone)
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

// ask enters for one GPU. The caller leaves.
func (m *Machine) ask(id device.GPU) (*gpu, error) {
	m.enter(func() bool {
		g := m.gpu(id)
		return g != nil && g.stalled
	})
	g := m.gpu(id)
	if g == nil {
		return nil, fmt.Errorf("GPU %s is not in this machine", id)
	}
	switch {
	case m.gone != nil || m.closed:
		return nil, device.ErrNoDriver
	case g.removed:
		return nil, device.ErrLost
	}
	return g, g.fault
}

// gpu finds a GPU; nil where there is none. The caller holds mu.
func (m *Machine) gpu(id device.GPU) *gpu {
	for _, g := range m.gpus {
		if g.GPU == id {
			return g
		}
	}
	return nil
}

// Read appends the values of all rows that the machine knows how to make up.
func (m *Machine) Read(id device.GPU, buf []device.Sample) ([]device.Sample, error) {
	g, err := m.ask(id)
	defer m.leave()
	if err != nil {
		return buf, err
	}
	return m.samples(g, buf), nil
}

// Check answers with the fault that the caller set, if any.
func (m *Machine) Check(id device.GPU) (device.Vitals, error) {
	g, err := m.ask(id)
	defer m.leave()
	if g == nil {
		return device.Vitals{}, err
	}
	return g.vitals(m.now()), err
}

// vitals have the energy that was burned for an odometer, in millijoules as NVIDIA counts
// it, and one more: none at all is told by a GPU that has none. One that is lost tells no
// more than it has told.
func (g *gpu) vitals(now time.Time) device.Vitals {
	if !errors.Is(g.fault, device.ErrLost) {
		g.odometer = 1 + uint64(1000*g.energy(now))
	}
	return device.Vitals{Resets: g.resets, Odometer: g.odometer, Pending: g.pending}
}

// Wait returns the reports in the order in which they were made.
func (m *Machine) Wait(ctx context.Context) (device.Event, error) {
	timeout := time.NewTimer(waitMost)
	defer timeout.Stop()
	for {
		m.enter(never)
		if len(m.events) > 0 && !m.closed {
			e := m.events[0]
			m.events = m.events[1:]
			m.leave()
			return e, nil
		}
		changed := m.notify
		m.mu.Unlock() // it is inside while it waits
		var over bool
		select {
		case <-changed:
		case <-timeout.C:
			over = true
		case <-ctx.Done():
			over = true
		}
		m.mu.Lock()
		m.leave()
		if over {
			return device.Event{}, nil
		}
	}
}
