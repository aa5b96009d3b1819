package status

import (
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
)

// partition is how a GPU is cut: its memory in Of parts, of which its instances take some.
type partition struct {
	Of        int
	Instances []instance
}

// instance is a GPU instance. The slices in it are its compute instances, which share its
// memory. Where it begins and how long it is, in parts of the GPU, is -1 and 1 where nobody
// knows.
type instance struct {
	Start, Size int
	Slices      []*unit
}

// At is its place, as a class of the style.
func (i instance) At() string {
	if i.Start < 0 {
		return "span-" + strconv.Itoa(i.Size)
	}
	return "at-" + strconv.Itoa(i.Start) + " span-" + strconv.Itoa(i.Size)
}

// mostParts is how many parts a GPU's memory has, of all but the smallest.
const mostParts = 8

// partition draws a GPU's slices where they lie.
func (b *builder) partition(g *unit) *partition {
	p := &partition{Of: mostParts}
	whole, last := b.status(g.ID).MemoryBytes, device.Status{}
	for _, u := range g.Slices {
		s := b.status(u.ID)
		at := s.Placement
		if at.Size < 1 || at.Start < 0 || at.Start+at.Size > mostParts {
			at = device.Placement{Start: -1, Size: 1}
		} else if unit := s.MemoryBytes / uint64(at.Size); unit > 0 && whole > 0 && whole/unit <= mostParts/2 {
			p.Of = mostParts / 2 // an A30
		}
		if n := len(p.Instances); n > 0 && s.GI >= 0 && s.GI == last.GI && !s.Gone && !last.Gone {
			p.Instances[n-1].Slices = append(p.Instances[n-1].Slices, u)
		} else {
			p.Instances = append(p.Instances, instance{at.Start, at.Size, []*unit{u}})
		}
		last = s
	}
	return p
}

// status is what the Board says of a device.
func (b *builder) status(id device.ID) device.Status {
	for i := range b.statuses {
		if b.statuses[i].ID == id {
			return b.statuses[i]
		}
	}
	return device.Status{Device: device.Device{GI: -1}}
}
