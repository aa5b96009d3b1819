package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// simGPU is a simulated GPU, guarded by Machine.mu.
type simGPU struct {
	device.Device
	model          *Model
	migDevices     []*simMIGDevice
	instances      []*simGPU // by makeInstances after each change
	partitionCount int
	isInstance     bool
	processes      []simProcess // in start order, also on MIG devices

	removed, hung bool
	fault         error  // returned by Read and Check
	resets        uint64 // in this process
	energyCounter uint64 // of the latest Check
	repairPending bool

	baseLoad float64 // 0 to 1, without the load of processes
	work     *work   // nil: everything is proportional to the load
	slowdown float64 // 0 to 1, by which clocks and power are lower
	// Integrals from the last reset to accumulatedAt.
	joules, loadSeconds, trafficSeconds, slowSeconds float64
	accumulatedAt                                    time.Time
	fixedValues                                      map[string]float64 // by row
	ramps                                            map[string]ramp    // by row
}

// simMIGDevice is a MIG device of a simulated GPU.
type simMIGDevice struct {
	device.Device
	size profileSize
	load float64 // 0 to 1, without the load of processes
}

// profileSize is the size in the name of a MIG profile.
type profileSize struct{ computeSlices, gpuSlices, memoryGB int }

// share is the part of the GPU instance.
func (s profileSize) share() float64 { return float64(s.computeSlices) / float64(s.gpuSlices) }

// memorySlices returns the size of a GPU instance of the GPU.
func (g *simGPU) memorySlices(s profileSize) int {
	return int(math.Round(float64(s.memoryGB<<30) / (g.model.memory / memorySlicesPerGPU)))
}

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
			ID: device.ID(uuid), GPU: device.GPU(uuid), Index: i, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: i,
			Model:    model.name,
			PCI:      fmt.Sprintf("0000:%02x:00.0", 0x1a+0x10*i),
			NUMANode: numaNode, MemoryBytes: uint64(model.memory),
			DeviceNodes: []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm"},
			InfoLabels: []device.Label{
				{Name: "serial", Value: fmt.Sprintf("16500%05d", i)},
				{Name: "vbios_version", Value: model.vbios},
				{Name: "compute_capability", Value: model.capability},
				{Name: "driver_version", Value: "580.95.05"},
				{Name: "cuda_version", Value: "13.0"},
				{Name: "cluster_uuid", Value: model.clusterUUID},
				{Name: "clique_id", Value: model.cliqueID},
			},
		},
		accumulatedAt: now, fixedValues: map[string]float64{}, ramps: map[string]ramp{},
	}
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

// processUsage returns the memory and the load of a device's processes.
func (g *simGPU) processUsage(id device.ID) (bytes, load float64) {
	for _, p := range g.processes {
		if p.device == id && g.acceptsProcesses(id) {
			bytes += max(p.bytes, 0)
			load += max(p.sm, 0)
		}
	}
	return bytes, load
}

// acceptsProcesses reports whether a device exists and can have processes: a
// MIG-enabled GPU cannot.
func (g *simGPU) acceptsProcesses(id device.ID) bool {
	return !g.MIGEnabled && id == g.ID || g.migDevice(id) != nil
}

// removeProcesses removes processes. Their kind of work ends with the last.
func (g *simGPU) removeProcesses(matches func(simProcess) bool) {
	g.processes = slices.DeleteFunc(g.processes, matches)
	if len(g.processes) == 0 {
		g.work = nil
	}
}

func (g *simGPU) memoryUsed() float64 {
	used, _ := g.processUsage(g.ID)
	for _, d := range g.migDevices {
		bytes, _ := g.processUsage(d.ID)
		used += bytes
	}
	if g.baseLoad > 0 {
		used += float64(int64(g.model.memory*3/4*g.baseLoad)) + 2*gib
	}
	return min(used, g.model.memory-g.model.reserved)
}

// bar1Used returns the mapped part of the window. A window larger than the
// memory maps all allocated memory; in MIG mode, all memory.
func (g *simGPU) bar1Used() float64 {
	switch memory := g.model.memory - g.model.reserved; {
	case g.isInstance:
		return 0
	case g.model.bar1 < memory:
		return 2*mib + 64*mib*g.load()
	case g.MIGEnabled:
		return memory
	default:
		return 1*mib + g.memoryUsed()
	}
}

// load returns the fraction of time with a running kernel.
func (g *simGPU) load() float64 { return g.usage().kernels }

// usage returns what the GPU does now.
func (g *simGPU) usage() work {
	_, load := g.processUsage(g.ID)
	load += g.baseLoad
	for _, d := range g.migDevices {
		_, ofDevice := g.processUsage(d.ID)
		load += ofDevice * float64(d.size.computeSlices) / computeSlicesPerGPU
	}
	load = min(load, 1)
	if g.work != nil && load > 0 {
		return *g.work
	}
	return work{load, load, load, load, load}
}

// migLoad returns the load of the whole GPU.
func (g *simGPU) migLoad() (load float64) {
	for _, d := range g.migDevices {
		load += d.load * float64(d.size.computeSlices) / computeSlicesPerGPU
	}
	return min(load, 1)
}

func (g *simGPU) celsius() float64 {
	return g.model.idleCelsius + float64(g.Index) + 30*g.usage().power
}

func (g *simGPU) watts() float64 {
	return g.model.idleWatts + (g.model.maxLimitWatts-g.model.idleWatts)*g.usage().power*(1-g.slowdown)
}

// byLoad grows from the value of an idle GPU to the value at full load.
func (g *simGPU) byLoad(idle, full float64) float64 { return idle + (full-idle)*g.load() }

// linkBytes is the traffic of a single NVLink, a third of the bandwidth at full
// load.
func (g *simGPU) linkBytes() float64 { return g.model.nvlinkBytes / 3 * g.trafficSeconds }

// accumulate is called before each change of the load, and before each reading.
func (g *simGPU) accumulate(now time.Time) {
	seconds := now.Sub(g.accumulatedAt).Seconds()
	usage := g.usage()
	g.joules += g.watts() * seconds
	g.loadSeconds += usage.kernels * seconds
	g.trafficSeconds += usage.traffic * seconds
	if g.slowdown > 0 {
		g.slowSeconds += seconds
	}
	g.accumulatedAt = now
}

// makeInstances returns each GPU instance as a small GPU, under the first MIG
// device: compute instances share memory and engines, and a sum over all MIG
// devices must count each value once.
func (g *simGPU) makeInstances() (list []*simGPU) {
	byGI := map[int]*simGPU{}
	for _, d := range g.migDevices {
		in := byGI[d.GI]
		if in == nil {
			model := *g.model
			model.memory, model.reserved = float64(d.MemoryBytes), 0
			model.bar1 = (g.model.bar1 - g.bar1Used() - keptBAR1) / memorySlicesPerGPU * float64(g.memorySlices(d.size))
			in = &simGPU{Device: d.Device, model: &model, isInstance: true}
			byGI[d.GI], list = in, append(list, in)
		}
		if d.CI < in.CI {
			in.Device = d.Device
		}
		in.baseLoad += d.load * d.size.share()
	}
	for _, p := range g.processes {
		if d := g.migDevice(p.device); d != nil {
			in := byGI[d.GI]
			p.device, p.sm = in.ID, p.sm*d.size.share()
			in.processes = append(in.processes, p)
		}
	}
	return list
}
