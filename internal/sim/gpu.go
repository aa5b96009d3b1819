package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// simGPU is a simulated GPU, guarded by Machine.mu.
type simGPU struct {
	device.Device
	model          *Model
	migDevices     []*simMIGDevice
	instances      []*simInstance // of the MIG devices
	partitionCount int
	processes      []simProcess // in start order, also on MIG devices

	removed, hung bool
	fault         error // returned by Read and Check
	resets        uint64
	energyCounter uint64 // of the latest Check
	repairPending bool

	baseLoad                            float64 // 0 to 1, without the load of processes
	energyAtChange, loadSecondsAtChange float64 // in joules and seconds, at accumulatedAt
	accumulatedAt                       time.Time
	fixedValues                         map[string]float64 // by row
	ramps                               map[string]ramp    // by row
}

// simMIGDevice is a MIG device of a simulated GPU.
type simMIGDevice struct {
	device.Device
	size profileSize
	load float64 // 0 to 1, without the load of processes
}

// profileSize is the size in the name of a MIG profile.
type profileSize struct{ computeSlices, gpuSlices, memoryGB int }

// simProcess is a process on a device.
type simProcess struct {
	pid       uint32
	device    device.ID
	bytes, sm float64 // negative: not reported
}

// ramp is a growing value.
type ramp struct {
	from, perSecond float64
	since           time.Time
}

func newGPU(model *Model, i, numaNode int, now time.Time) *simGPU {
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
		accumulatedAt: now, fixedValues: map[string]float64{}, ramps: map[string]ramp{},
	}
}

// hasFeatures reports whether the GPU has all of the features now.
func (g *simGPU) hasFeatures(needs modelFeature) bool {
	has := g.model.features
	if !g.MIGEnabled {
		has |= featureWholeGPU
	}
	return has&needs == needs
}

// devices returns the GPU and the MIG devices.
func (g *simGPU) devices() []device.Device {
	list := []device.Device{g.Device}
	for _, d := range g.migDevices {
		list = append(list, d.Device)
	}
	return list
}

// migDevice returns a MIG device of the GPU, or nil.
func (g *simGPU) migDevice(id device.ID) *simMIGDevice {
	i := slices.IndexFunc(g.migDevices, func(d *simMIGDevice) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return g.migDevices[i]
}

// processBytes returns the memory of a device's processes.
func (g *simGPU) processBytes(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.acceptsProcesses(id) {
			sum += max(p.bytes, 0)
		}
	}
	return sum
}

// processLoad returns the load of a device's processes.
func (g *simGPU) processLoad(id device.ID) (sum float64) {
	for _, p := range g.processes {
		if p.device == id && g.acceptsProcesses(id) {
			sum += max(p.sm, 0)
		}
	}
	return sum
}

// acceptsProcesses reports whether a device exists and can have processes: a MIG-enabled GPU cannot.
func (g *simGPU) acceptsProcesses(id device.ID) bool {
	return !g.MIGEnabled && id == g.ID || g.migDevice(id) != nil
}

func (g *simGPU) removeProcesses(matches func(simProcess) bool) {
	g.processes = slices.DeleteFunc(g.processes, matches)
}

func (g *simGPU) memoryUsed() float64 {
	used := g.processBytes(g.ID)
	for _, d := range g.migDevices {
		used += g.processBytes(d.ID)
	}
	if g.baseLoad > 0 {
		used += float64(int64(g.model.memory*3/4*g.baseLoad)) + 2*gib
	}
	return min(used, g.model.memory-g.model.reserved)
}

// load returns the load of the GPU, 0 to 1.
func (g *simGPU) load() float64 {
	load := g.baseLoad + g.processLoad(g.ID)
	for _, d := range g.migDevices {
		load += g.processLoad(d.ID) * float64(d.size.computeSlices) / computeSlicesPerGPU
	}
	return min(load, 1)
}

func (g *simGPU) celsius() float64 { return g.model.idleCelsius + float64(g.Index) + 30*g.load() }

func (g *simGPU) watts() float64 {
	return g.model.idleWatts + (g.model.maxLimitWatts-g.model.idleWatts)*g.load()
}

// accumulate is called before each change of the load.
func (g *simGPU) accumulate(now time.Time) {
	g.loadSecondsAtChange, g.energyAtChange, g.accumulatedAt = g.totalLoadSeconds(now), g.totalJoules(now), now
}

// totalJoules returns the energy since the last reset.
func (g *simGPU) totalJoules(now time.Time) float64 {
	return g.energyAtChange + g.watts()*now.Sub(g.accumulatedAt).Seconds()
}

// totalLoadSeconds returns the integral of the load since the last reset.
func (g *simGPU) totalLoadSeconds(now time.Time) float64 {
	return g.loadSecondsAtChange + g.load()*now.Sub(g.accumulatedAt).Seconds()
}

// simInstance is a GPU instance, with the values of a small GPU, exported for the first MIG device: compute instances share memory and
// engines, and a sum over all MIG devices must count each value once.
type simInstance struct {
	simGPU
	migDevices []*simMIGDevice // by CI
}

// groupInstances builds the GPU instances of the MIG devices.
func (g *simGPU) groupInstances() {
	g.instances = nil
	for _, d := range g.migDevices {
		i := slices.IndexFunc(g.instances, func(in *simInstance) bool { return in.GI == d.GI })
		if i < 0 {
			i = len(g.instances)
			model := *g.model
			model.memory, model.reserved = float64(d.MemoryBytes), 0
			model.bar1 = g.model.bar1 / 8 * float64(d.size.gpuSlices)
			g.instances = append(g.instances, &simInstance{simGPU: simGPU{model: &model}})
		}
		in := g.instances[i]
		in.migDevices = append(in.migDevices, d)
		slices.SortFunc(in.migDevices, func(a, b *simMIGDevice) int { return cmp.Compare(a.CI, b.CI) })
		in.Device = in.migDevices[0].Device
	}
}

// refresh copies the load and the processes of the instance's MIG devices.
func (in *simInstance) refresh(g *simGPU) {
	in.baseLoad, in.processes = 0, in.processes[:0]
	for _, d := range in.migDevices {
		share := float64(d.size.computeSlices) / float64(d.size.gpuSlices)
		in.baseLoad += d.load * share
		for _, p := range g.processes {
			if p.device == d.ID {
				p.device = in.ID
				p.sm *= share
				in.processes = append(in.processes, p)
			}
		}
	}
}
