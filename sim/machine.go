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
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/device"
)

const numaNodes = 2

// waitMost bounds a Wait, as the real one does.
const waitMost = time.Second

// Machine is a machine full of GPUs. All methods may be called at any time, by
// anybody.
type Machine struct {
	// Means says of an Xid what the driver's report of it means: whether it is Fatal and
	// what Action it asks for, and whether it hits a slice alone that it names. Set before
	// use; at first it knows a few, and takes all others to be fatal.
	Means func(xid uint64) (e device.Event, alone bool)

	metrics []device.Metric
	rows    []row // one for each of metrics
	// ofSlices are the rows that slices have too.
	ofSlices []int
	now      func() time.Time

	mu sync.Mutex
	// All below are guarded by mu.
	gpus   []*gpu
	events []device.Event
	notify chan struct{} // closed when there is an event, or a hang has ended
	gone   error         // why there is no driver; nil when there is
	wedged bool          // no call returns
	veiled bool          // processes are not told
	closed bool          // by Close; Devices opens it
	inside int           // calls that have not returned
	misuse bool          // Close was called beneath another call
	begun  time.Time
	// links are those that were said; linkReads counts how often they were read.
	links     map[[2]device.GPU]device.Link
	linkReads int
}

// gpu is one simulated GPU.
type gpu struct {
	device.Device
	model  *Model
	slices []*slice
	// instances are those that the slices are in.
	instances []*instance
	removed   bool
	stalled   bool               // calls about it do not return
	fault     error              // what Read and Check return
	resets    uint64             // how often it was recovered
	busy      float64            // 0 to 1, without what processes add
	joules    float64            // burned up to settled
	worked    float64            // load times seconds, likewise
	settled   time.Time          // when the load was last changed
	fixed     map[string]float64 // values set by the caller, by row
	// processes are on the GPU or its slices, in the order in which they came.
	processes []process
	// partitions counts how often it was partitioned.
	partitions int
}

// NewMachine makes a machine with n H100s that has the rows given. The clock is
// what the values over time follow.
func NewMachine(metrics []device.Metric, n int, clock func() time.Time) *Machine {
	return NewMachineOf(metrics, clock, slices.Repeat([]*Model{H100}, n)...)
}

// NewMachineOf makes a machine with a GPU of each model, in their order.
func NewMachineOf(metrics []device.Metric, clock func() time.Time, models ...*Model) *Machine {
	m := &Machine{Means: meaning, metrics: metrics, now: clock, notify: make(chan struct{}), begun: clock(), links: map[[2]device.GPU]device.Link{}}
	for i, metric := range metrics {
		m.rows = append(m.rows, newRow(metric))
		if slices.Contains(sliced, metric.Name) {
			m.ofSlices = append(m.ofSlices, i)
		}
	}
	for i, model := range models {
		m.gpus = append(m.gpus, m.newGPU(model, i, i*numaNodes/len(models)))
	}
	return m
}

func (m *Machine) newGPU(model *Model, i, numaNode int) *gpu {
	uuid := fmt.Sprintf("GPU-%08x-5eed-4000-8000-%012x", 0xa100+i, i)
	return &gpu{
		model: model,
		Device: device.Device{
			ID: device.ID(uuid), GPU: device.GPU(uuid), Index: i, Slice: -1, GI: -1, CI: -1, Minor: i, Model: model.name,
			PCI:      fmt.Sprintf("0000:%02x:00.0", 0x1a+0x10*i),
			NUMANode: numaNode, MemoryBytes: uint64(model.memory),
			Nodes: []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm"},
			Facts: []device.Label{
				{Name: "serial", Value: fmt.Sprintf("16500%05d", i)},
				{Name: "vbios_version", Value: model.vbios},
				{Name: "compute_capability", Value: model.capability},
				{Name: "driver_version", Value: "580.95.05"},
				{Name: "cuda_version", Value: "13.0"},
			},
		},
		settled: m.now(), fixed: map[string]float64{},
	}
}

// Add puts another H100 into the machine, behind the others.
func (m *Machine) Add() device.GPU {
	var gpu device.GPU
	m.locked(func() {
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

// IDs are what a container could hold, in order: GPUs, also those that were taken
// out, and in the place of one that is partitioned its slices.
func (m *Machine) IDs() []device.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []device.ID
	for _, g := range m.gpus {
		for _, d := range g.devices() {
			if !d.MIG {
				ids = append(ids, d.ID)
			}
		}
	}
	return ids
}

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
		e.Fatal, e.Action = true, "reset_gpu"
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

// Recover resets a device's GPU: whatever was wrong with it is mended.
func (m *Machine) Recover(id device.ID) {
	m.change(id, func(g *gpu) {
		g.fault, g.stalled, g.removed = nil, false, false
		g.resets++
		g.joules, g.worked, g.settled = 0, 0, m.now()
	})
}

// Remove takes a device's GPU out of the machine. Recover puts it back.
func (m *Machine) Remove(id device.ID) { m.change(id, func(g *gpu) { g.removed = true }) }

// Stall has no call about a device's GPU return until Release, or Recover.
func (m *Machine) Stall(id device.ID) { m.change(id, func(g *gpu) { g.stalled = true }) }

// Busy sets how much of a device is in use, 0 to 1.
func (m *Machine) Busy(id device.ID, busy float64) {
	m.change(id, func(g *gpu) {
		g.settle(m.now())
		if s := g.sliceOf(id); s != nil {
			s.busy = busy
			busy = g.slicesBusy()
		}
		g.busy = busy
	})
}

// Set fixes a value of a device's GPU: the row is named as the text format names its series,
// `nvidia_gpu_clock_hertz{clock="sm"}`, without the device's own labels.
func (m *Machine) Set(id device.ID, row string, value float64) {
	m.change(id, func(g *gpu) { g.fixed[row] = value })
}

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

// change changes the GPU of a device, which may be a slice.
func (m *Machine) change(id device.ID, change func(*gpu)) {
	m.locked(func() {
		for _, g := range m.gpus {
			if g.ID == id || g.sliceOf(id) != nil {
				change(g)
			}
		}
	})
}

func (m *Machine) changeGPU(id device.GPU, change func(*gpu)) { m.change(device.ID(id), change) }

func (m *Machine) locked(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.notify)
	m.notify = make(chan struct{})
}

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
func (m *Machine) Check(id device.GPU) (uint64, error) {
	g, err := m.ask(id)
	defer m.leave()
	if g == nil {
		return 0, err
	}
	return g.resets, err
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
