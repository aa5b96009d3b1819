// Package sim simulates a node: a machine with GPUs, a kubelet and a changing
// set of pods.
//
// Development, demonstrations and tests of the whole program use the package in
// place of GPUs. A Machine is a device.Backend with the rows of the real
// backend. Values depend on each GPU's Model, load and clock alone: while the
// clock stands still, values stay the same.
package sim

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sxid"
)

const numaNodes = 2

// Machine is a machine with GPUs. All methods are safe for concurrent use.
type Machine struct {
	metrics []device.Metric
	rows    []metricRow // of metrics
	migRows []int       // rows of GPU instances
	now     func() time.Time
	changes pubsub.Value[struct{}] // set at each change of the fields below mu
	// SwitchErrors are the errors of the machine's NVSwitches.
	SwitchErrors *sxid.Log

	mu               sync.Mutex // guards all below
	classifyXid      XidClassifier
	gpus             []*simGPU
	events           []device.Event
	driverErr        error // nil while the driver works
	allHung          bool  // no call returns
	closed           bool  // by Close; Devices opens the driver
	activeCalls      int
	closedDuringCall bool
	linkReads        int
}

// NewMachine returns a machine with n H100 GPUs.
func NewMachine(metrics []device.Metric, n int, clock func() time.Time) *Machine {
	return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{H100}, n)...)
}

// NewMachineWithModels returns a machine with a GPU of each model, in order.
func NewMachineWithModels(metrics []device.Metric, clock func() time.Time, models ...*Model) *Machine {
	m := &Machine{
		classifyXid: DefaultXidEvent, metrics: metrics, now: clock,
		SwitchErrors: sxid.NewLog(slog.New(slog.DiscardHandler)),
	}
	for i, metric := range metrics {
		m.rows = append(m.rows, newRow(metric))
		if slices.Contains(migRows, metric.Name) || slices.Contains(migRows, m.rows[i].name) {
			m.migRows = append(m.migRows, i)
		}
	}
	for i, model := range models {
		m.gpus = append(m.gpus, newGPU(model, i, i*numaNodes/len(models), clock()))
	}
	return m
}

// SetXidClassifier replaces DefaultXidEvent.
func (m *Machine) SetXidClassifier(classify XidClassifier) {
	m.update(func() { m.classifyXid = classify })
}

// AddGPU adds an H100 behind the existing GPUs.
func (m *Machine) AddGPU() (gpu device.GPU) {
	m.update(func() {
		g := newGPU(H100, len(m.gpus), numaNodes-1, m.now())
		m.gpus = append(m.gpus, g)
		gpu = g.GPU
	})
	return gpu
}

// GPUs returns the GPUs in order, also after RemoveGPU.
func (m *Machine) GPUs() (gpus []device.GPU) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.gpus {
		gpus = append(gpus, g.GPU)
	}
	return gpus
}

// AllocatableIDs returns the allocatable devices in order, also after
// RemoveGPU: whole GPUs and MIG devices.
func (m *Machine) AllocatableIDs() (ids []device.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.gpus {
		for _, d := range g.devices() {
			if !d.MIGEnabled {
				ids = append(ids, d.ID)
			}
		}
	}
	return ids
}

// SetUtilization sets the load of a device, 0 to 1.
func (m *Machine) SetUtilization(id device.ID, load float64) {
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		if d := g.migDevice(id); d != nil {
			d.load = load
			load = g.migLoad()
		}
		g.baseLoad = load
	})
}

// StartProcess starts a process on a device, or changes the usage: memory in
// bytes, and SM utilization, added to the load. The driver does not report
// negative values.
func (m *Machine) StartProcess(id device.ID, pid uint32, bytes, sm float64) {
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.removeProcesses(func(p simProcess) bool { return p.pid == pid && p.device == id })
		g.processes = append(g.processes, simProcess{pid, id, bytes, sm})
	})
}

// StopProcess ends a process on all devices.
func (m *Machine) StopProcess(pid uint32) {
	m.update(func() {
		for _, g := range m.gpus {
			g.accumulate(m.now())
			g.removeProcesses(func(p simProcess) bool { return p.pid == pid })
		}
	})
}

// SetWork sets what a device's GPU does, until its last process ends. A GPU
// without load does nothing.
func (m *Machine) SetWork(id device.ID, kind string) error {
	kindOfWork, ok := works[kind]
	if !ok {
		return fmt.Errorf("unknown work %q, expected %s", kind, strings.Join(slices.Sorted(maps.Keys(works)), ", "))
	}
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.work = &kindOfWork
	})
	return nil
}

// SetSlowdown lowers clocks and power of a device's GPU by a fraction, until a
// reset. The GPU reports a thermal slowdown.
func (m *Machine) SetSlowdown(id device.ID, fraction float64) {
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.slowdown = min(max(fraction, 0), 1)
	})
}

// SetValue fixes a value of a device's GPU. Rows have the names of the text
// format without the device's labels: `nvidia_gpu_clock_hertz{clock="sm"}`.
func (m *Machine) SetValue(id device.ID, row string, value float64) {
	m.updateDevice(id, func(g *simGPU) {
		delete(g.ramps, row)
		g.fixedValues[row] = value
	})
}

// SetRate makes a value of a device's GPU grow from the current value.
func (m *Machine) SetRate(id device.ID, row string, perSecond float64) {
	m.updateDevice(id, func(g *simGPU) {
		if i := m.findRow(row); i >= 0 {
			g.accumulate(m.now())
			from, _ := g.value(&m.rows[i], m.now())
			delete(g.fixedValues, row)
			g.ramps[row] = ramp{from, perSecond, m.now()}
		}
	})
}

// findRow returns the index of a row, or -1.
func (m *Machine) findRow(name string) int {
	return slices.IndexFunc(m.rows, func(r metricRow) bool { return r.name == name })
}

// updateDevice changes the GPU of a device.
func (m *Machine) updateDevice(id device.ID, change func(*simGPU)) {
	m.update(func() {
		for _, g := range m.gpus {
			if g.ID == id || g.migDevice(id) != nil {
				change(g)
			}
		}
	})
}

func (m *Machine) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	for _, g := range m.gpus {
		g.instances = g.makeInstances()
	}
	m.changes.Set(struct{}{})
}

// locked returns a field of the machine.
func locked[T any](m *Machine, field *T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *field
}

// beginCall locks mu when no hang blocks the call. endCall unlocks.
func (m *Machine) beginCall(hung func() bool) {
	m.mu.Lock()
	m.activeCalls++
	for m.allHung || hung() {
		_, changed := m.changes.Get()
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

// beginGPUCall begins a call about a GPU.
func (m *Machine) beginGPUCall(id device.GPU) (*simGPU, error) {
	m.beginCall(func() bool {
		g := m.findGPU(id)
		return g != nil && g.hung
	})
	g := m.findGPU(id)
	switch {
	case g == nil:
		return nil, fmt.Errorf("GPU %s is not in this machine", id)
	case m.driverErr != nil || m.closed:
		return nil, device.ErrNoDriver
	case g.removed:
		return nil, device.ErrLost
	}
	return g, g.fault
}

// findGPU returns a GPU, or nil. mu is held.
func (m *Machine) findGPU(id device.GPU) *simGPU {
	i := slices.IndexFunc(m.gpus, func(g *simGPU) bool { return g.GPU == id })
	if i < 0 {
		return nil
	}
	return m.gpus[i]
}
