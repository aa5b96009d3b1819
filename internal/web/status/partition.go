package status

import (
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
)

// partitionMap is how a GPU is cut: its memory in Of parts, of which its instances take some.
type partitionMap struct {
	MemorySlices int
	Instances    []instanceBlock
}

// instanceBlock is a GPU instance. The slices in it are its compute instances, which share its
// memory. Where it begins and how long it is, in parts of the GPU, is -1 and 1 where nobody
// knows.
type instanceBlock struct {
	Start, Size int
	MIGDevices  []*deviceCard
}

// CSSClass is its place, as a class of the style.
func (i instanceBlock) CSSClass() string {
	if i.Start < 0 {
		return "span-" + strconv.Itoa(i.Size)
	}
	return "at-" + strconv.Itoa(i.Start) + " span-" + strconv.Itoa(i.Size)
}

// maxMemorySlices is how many parts a GPU's memory has, of all but the smallest.
const maxMemorySlices = 8

// partitionMap draws a GPU's slices where they lie.
func (b *viewBuilder) partitionMap(gpu *deviceCard) *partitionMap {
	p := &partitionMap{MemorySlices: maxMemorySlices}
	gpuBytes, last := b.statusOf(gpu.ID).MemoryBytes, device.Status{}
	for _, card := range gpu.MIGDevices {
		s := b.statusOf(card.ID)
		placement := s.Placement
		if placement.Size < 1 || placement.Start < 0 || placement.Start+placement.Size > maxMemorySlices {
			placement = device.Placement{Start: -1, Size: 1}
		} else if sliceBytes := s.MemoryBytes / uint64(placement.Size); sliceBytes > 0 && gpuBytes > 0 && gpuBytes/sliceBytes <= maxMemorySlices/2 {
			p.MemorySlices = maxMemorySlices / 2 // an A30
		}
		if n := len(p.Instances); n > 0 && s.GI >= 0 && s.GI == last.GI && !s.Gone && !last.Gone {
			p.Instances[n-1].MIGDevices = append(p.Instances[n-1].MIGDevices, card)
		} else {
			p.Instances = append(p.Instances, instanceBlock{placement.Start, placement.Size, []*deviceCard{card}})
		}
		last = s
	}
	return p
}

// statusOf is what the Board says of a device.
func (b *viewBuilder) statusOf(id device.ID) device.Status {
	for i := range b.statuses {
		if b.statuses[i].ID == id {
			return b.statuses[i]
		}
	}
	return device.Status{Device: device.Device{GI: -1}}
}
