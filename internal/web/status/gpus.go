package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// gpuCard is a GPU with its MIG devices.
type gpuCard struct {
	*deviceCard
	Model              string // empty if all GPUs have the same
	Stalled, NoReading bool
	Temperature        string
	Partition          *partitionMap
	MIGDevices         []*deviceCard
}

// gpuCards returns the GPUs with their MIG devices, the most urgent first.
func (d *nodeData) gpuCards() (gpus []*gpuCard) {
	anchors := map[string]int{}
	for i := range d.Response.Devices {
		of := &d.Response.Devices[i]
		card := d.deviceCard(of)
		anchors[card.Anchor]++
		if n := anchors[card.Anchor]; n > 1 { // a replacement has the index of a removed GPU
			card.Anchor += "." + strconv.Itoa(n)
		}
		if !of.IsMIGDevice() || len(gpus) == 0 {
			gpus = append(gpus, d.gpuCard(card))
			continue
		}
		gpu := gpus[len(gpus)-1]
		gpu.MIGDevices = append(gpu.MIGDevices, card)
	}
	for _, g := range gpus {
		g.joinMIGDevices()
	}
	slices.SortStableFunc(gpus, func(a, b *gpuCard) int { return cmp.Compare(a.urgency, b.urgency) })
	return gpus
}

func (d *nodeData) gpuCard(card *deviceCard) *gpuCard {
	of := card.Device
	reading, isRead := d.Readings.Devices[of.ID]
	g := &gpuCard{
		deviceCard: card,
		Model:      of.Model,
		Stalled:    d.Stalled(of.GPU),
		NoReading:  !isRead && !of.Gone,
	}
	if t, ok := reading[Temperature]; ok {
		g.Temperature = fmt.Sprintf("%.0f °C", t)
	}
	return g
}

// joinMIGDevices draws the map, leaves the explanation of a common fault to the
// GPU, and sorts the MIG devices. The GPU is as urgent as the worst of them.
func (g *gpuCard) joinMIGDevices() {
	if g.Device.MIG {
		g.Partition = newPartitionMap(g.Device.MemoryBytes, g.MIGDevices)
	}
	for _, m := range g.MIGDevices {
		if m.isUnhealthy() && m.Device.Health == g.Device.Health && m.Device.Reason == g.Device.Reason {
			m.FaultOfGPU = true
			g.FaultyMIGDevices++
		}
		g.urgency = min(g.urgency, m.urgency)
	}
	slices.SortStableFunc(g.MIGDevices, func(a, b *deviceCard) int { return cmp.Compare(a.urgency, b.urgency) })
}

// devices returns the GPU and its MIG devices.
func (g *gpuCard) devices() []*deviceCard {
	return append([]*deviceCard{g.deviceCard}, g.MIGDevices...)
}

// allocatable returns the MIG devices, or the GPU without one.
func (g *gpuCard) allocatable() []*deviceCard { return g.devices()[min(1, len(g.MIGDevices)):] }

// matchingGPUs returns the GPUs with a matching device, and marks the devices
// shown.
func matchingGPUs(gpus []*gpuCard, f filter) (matching []*gpuCard) {
	for _, g := range gpus {
		for _, card := range g.allocatable() {
			card.Shown = card.matches(f)
			g.Shown = g.Shown || card.Shown
			if !card.Shown {
				g.Partition = nil // the map links to all MIG devices
			}
		}
		if g.Shown {
			matching = append(matching, g)
		}
	}
	return matching
}

// partitionMap shows the GPU instances of a GPU in its memory.
type partitionMap struct {
	MemorySlices int
	Instances    []instanceBlock
}

// instanceBlock is a GPU instance with its compute instances.
type instanceBlock struct {
	Class      string // place and size in memory slices
	MIGDevices []*deviceCard
}

// maxMemorySlices is the number of memory slices of a GPU; the A30 has half.
const maxMemorySlices = 8

// newPartitionMap returns the map of the MIG devices of a GPU with an amount of
// memory.
func newPartitionMap(gpuBytes uint64, migDevices []*deviceCard) *partitionMap {
	p := &partitionMap{MemorySlices: maxMemorySlices}
	for i, m := range migDevices {
		if i > 0 && sameGPUInstance(migDevices[i-1], m) {
			instance := &p.Instances[len(p.Instances)-1]
			instance.MIGDevices = append(instance.MIGDevices, m)
			continue
		}
		class := "span-1"
		if at := m.Device.Placement; at.Size > 0 && at.Start >= 0 && at.Start+at.Size <= maxMemorySlices {
			class = fmt.Sprintf("at-%d span-%d", at.Start, at.Size)
			sliceBytes := m.Device.MemoryBytes / uint64(at.Size)
			if sliceBytes > 0 && gpuBytes > 0 && gpuBytes/sliceBytes <= maxMemorySlices/2 {
				p.MemorySlices = maxMemorySlices / 2
			}
		}
		p.Instances = append(p.Instances, instanceBlock{class, []*deviceCard{m}})
	}
	return p
}

func sameGPUInstance(a, b *deviceCard) bool {
	known := a.Device.GI != nil && b.Device.GI != nil
	return known && *a.Device.GI == *b.Device.GI && !a.Device.Gone && !b.Device.Gone
}
