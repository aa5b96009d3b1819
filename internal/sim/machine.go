// Package sim is a simulated node: a machine full of accelerators that obeys its
// caller, and a workload that makes pods come and go on them.
//
// It is the documented way to develop without a GPU, and what the tests of the
// whole program run on. A Machine is a device.Backend, with the rows of the real
// one and made-up values: they follow from what a GPU's Model has, from how busy it is
// and from the clock, so that a machine with a clock that stands still reads the same
// each time.
package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const numaNodes = 2

// Machine is a machine full of GPUs. All methods may be called at any time, by
// anybody.
type Machine struct {
	// ClassifyXid says of an Xid what the driver's report of it means: what heals it and what it
	// asks for, and whether it hits a slice alone that it names. Set before use; at first it
	// knows a few, and takes a reset to be what heals all others.
	ClassifyXid func(xid uint64) (e device.Event, alone bool)

	metrics []device.Metric
	rows    []metricRow // one for each of metrics
	// migRows are the rows that slices have too.
	migRows []int
	now     func() time.Time

	mu sync.Mutex
	// All below are guarded by mu.
	gpus             []*simGPU
	events           []device.Event
	notify           chan struct{} // closed when there is an event, or a hang has ended
	driverErr        error         // why there is no driver; nil when there is
	allHung          bool          // no call returns
	processesHidden  bool          // processes are not told
	closed           bool          // by Close; Devices opens it
	activeCalls      int           // calls that have not returned
	closedDuringCall bool          // Close was called beneath another call
	startedAt        time.Time
	// links are those that were said; linkReads counts how often they were read.
	links     map[[2]device.GPU]device.Link
	linkReads int
}

// simGPU is one simulated GPU.
type simGPU struct {
	device.Device
	model      *Model
	migDevices []*simMIGDevice
	// instances are those that the slices are in.
	instances     []*simInstance
	removed       bool
	hung          bool               // calls about it do not return
	fault         error              // what Read and Check return
	resets        uint64             // how often it was recovered
	energyCounter uint64             // as it has last told
	repairPending bool               // a repair waits for the next reset
	baseLoad      float64            // 0 to 1, without what processes add
	joules        float64            // burned up to settled
	loadSeconds   float64            // load times seconds, likewise
	accumulatedAt time.Time          // when the load was last changed
	fixedValues   map[string]float64 // values set by the caller, by row
	ramps         map[string]ramp    // likewise, that grow
	// processes are on the GPU or its slices, in the order in which they came.
	processes []simProcess
	// partitionCount counts how often it was partitioned.
	partitionCount int
}

// NewMachine makes a machine with n H100s that has the rows given. The clock is
// what the values over time follow.
func NewMachine(metrics []device.Metric, n int, clock func() time.Time) *Machine {
	return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{H100}, n)...)
}

// NewMachineWithModels makes a machine with a GPU of each model, in their order.
func NewMachineWithModels(metrics []device.Metric, clock func() time.Time, models ...*Model) *Machine {
	m := &Machine{ClassifyXid: defaultXidEvent, metrics: metrics, now: clock, notify: make(chan struct{}), startedAt: clock(), links: map[[2]device.GPU]device.Link{}}
	for i, metric := range metrics {
		m.rows = append(m.rows, newRow(metric))
		if slices.Contains(migFamilies, metric.Name) {
			m.migRows = append(m.migRows, i)
		}
	}
	for i, model := range models {
		m.gpus = append(m.gpus, m.newGPU(model, i, i*numaNodes/len(models)))
	}
	return m
}

func (m *Machine) newGPU(model *Model, i, numaNode int) *simGPU {
	uuid := fmt.Sprintf("GPU-%08x-5eed-4000-8000-%012x", 0xa100+i, i)
	return &simGPU{
		model: model,
		Device: device.Device{
			ID: device.ID(uuid), GPU: device.GPU(uuid), Index: i, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: i, Model: model.name,
			PCI:      fmt.Sprintf("0000:%02x:00.0", 0x1a+0x10*i),
			NUMANode: numaNode, MemoryBytes: uint64(model.memory),
			DeviceNodes: []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm"},
			InfoLabels: []device.Label{
				{Name: "serial", Value: fmt.Sprintf("16500%05d", i)},
				{Name: "vbios_version", Value: model.vbios},
				{Name: "compute_capability", Value: model.capability},
				{Name: "driver_version", Value: "580.95.05"},
				{Name: "cuda_version", Value: "13.0"},
			},
		},
		accumulatedAt: m.now(), fixedValues: map[string]float64{}, ramps: map[string]ramp{},
	}
}

// AddGPU puts another H100 into the machine, behind the others.
func (m *Machine) AddGPU() device.GPU {
	var gpu device.GPU
	m.update(func() {
		g := m.newGPU(H100, len(m.gpus), numaNodes-1)
		m.gpus = append(m.gpus, g)
		gpu = g.GPU
	})
	return gpu
}

// GPUs are the machine's GPUs, in order, also those that were taken out.
func (m *Machine) GPUs() []device.GPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	gpus := make([]device.GPU, len(m.gpus))
	for i, g := range m.gpus {
		gpus[i] = g.GPU
	}
	return gpus
}

// AllocatableIDs are what a container could hold, in order: GPUs, also those that were taken
// out, and in the place of one that is partitioned its slices.
func (m *Machine) AllocatableIDs() []device.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []device.ID
	for _, g := range m.gpus {
		for _, d := range g.devices() {
			if !d.MIGEnabled {
				ids = append(ids, d.ID)
			}
		}
	}
	return ids
}

// SetUtilization sets how much of a device is in use, 0 to 1.
func (m *Machine) SetUtilization(id device.ID, busy float64) {
	m.updateDevice(id, func(g *simGPU) {
		g.accumulate(m.now())
		if s := g.findMIGDevice(id); s != nil {
			s.load = busy
			busy = g.migLoad()
		}
		g.baseLoad = busy
	})
}

// SetValue fixes a value of a device's GPU: the row is named as the text format names its series,
// `nvidia_gpu_clock_hertz{clock="sm"}`, without the device's own labels.
func (m *Machine) SetValue(id device.ID, row string, value float64) {
	m.updateDevice(id, func(g *simGPU) {
		delete(g.ramps, row)
		g.fixedValues[row] = value
	})
}

// ramp is a value that grows.
type ramp struct {
	from, perSecond float64
	since           time.Time
}

// SetRate has a value of a device's GPU grow from what it reads now. Its row is named as Set's is.
func (m *Machine) SetRate(id device.ID, row string, perSecond float64) {
	m.updateDevice(id, func(g *simGPU) {
		for i := range m.rows {
			if r := &m.rows[i]; r.name == row {
				from, _ := g.value(r, m.now())
				delete(g.fixedValues, row)
				g.ramps[row] = ramp{from, perSecond, m.now()}
			}
		}
	})
}

// hasRow tells whether a row is called so.
func (m *Machine) hasRow(name string) bool {
	return slices.ContainsFunc(m.rows, func(r metricRow) bool { return r.name == name })
}

// updateDevice changes the GPU of a device, which may be a slice.
func (m *Machine) updateDevice(id device.ID, change func(*simGPU)) {
	m.update(func() {
		for _, g := range m.gpus {
			if g.ID == id || g.findMIGDevice(id) != nil {
				change(g)
			}
		}
	})
}

func (m *Machine) updateGPU(id device.GPU, change func(*simGPU)) {
	m.updateDevice(device.ID(id), change)
}

func (m *Machine) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.notify)
	m.notify = make(chan struct{})
}
