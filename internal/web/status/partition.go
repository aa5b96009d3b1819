package status

import "fmt"

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
