package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
)

// slice is a MIG slice of a simulated GPU.
type slice struct {
	device.Device
	size size
	busy float64 // 0 to 1, without what processes add
}

// size is what a profile's name says: compute slices, GPU slices and GB.
type size struct{ c, g, gb int }

func parseProfile(profile string) (s size, ok bool) {
	if n, _ := fmt.Sscanf(profile, "%dc.%dg.%dgb", &s.c, &s.g, &s.gb); n != 3 {
		s = size{}
		if n, _ := fmt.Sscanf(profile, "%dg.%dgb", &s.g, &s.gb); n != 2 {
			return size{}, false
		}
		s.c = s.g
	}
	return s, s.c > 0 && s.c <= s.g && s.g <= slicesOfGPU && s.gb > 0 && s.gb <= mostGB
}

// slicesOfGPU is how many compute slices make a whole GPU.
const slicesOfGPU = 7

// mostGB is more than the memory of any GPU.
const mostGB = 1 << 10

// partitionable says why a GPU cannot have slices with these profiles.
func (m *Machine) partitionable(id device.GPU, profiles []string) (err error) {
	for _, profile := range profiles {
		if _, ok := parseProfile(profile); profile != "" && !ok {
			return fmt.Errorf("%q is no MIG profile", profile)
		}
	}
	m.changeGPU(id, func(g *gpu) {
		if !g.has(mig) {
			err = fmt.Errorf("%s cannot be partitioned", g.Model)
		}
	})
	return err
}

// Partition turns a GPU's MIG mode on and gives it slices with these profiles, at
// indices from 0 on: "1g.10gb", "1c.3g.40gb"; "" leaves the index out. A slice whose
// index has the profile already goes on, all others are new ones. Compute instances
// that fit into one GPU instance share it. The driver reports the change.
func (m *Machine) Partition(id device.GPU, profiles ...string) {
	if err := m.partitionable(id, profiles); err != nil {
		panic("sim: " + err.Error()) // a mistake of whoever wrote the test: a script's is found before
	}
	m.changeGPU(id, func(g *gpu) {
		g.settle(m.now())
		g.partitions++
		g.slices = g.cut(profiles)
		g.MIG = true
		g.group()
		m.events = append(m.events, device.Event{GPU: id, Partitioned: true})
	})
}

// Unpartition turns a GPU's MIG mode off: its slices are gone.
func (m *Machine) Unpartition(id device.GPU) {
	m.changeGPU(id, func(g *gpu) {
		g.settle(m.now())
		g.MIG, g.slices, g.instances = false, nil, nil
		m.events = append(m.events, device.Event{GPU: id, Partitioned: true})
	})
}

// cut makes the slices that the profiles name, of those that are there as far as it
// can. The numbers of instances that are gone are given again, their UUIDs never are.
func (g *gpu) cut(profiles []string) []*slice {
	kept := map[int]*slice{} // by index
	taken := map[int]bool{}  // the numbers of GPU instances
	for _, s := range g.slices {
		if s.Slice < len(profiles) && profiles[s.Slice] == s.Profile {
			kept[s.Slice] = s
			taken[s.GI] = true
		}
	}
	var list []*slice
	gi, ci, used, instance, at := 0, 0, 0, "", device.Placement{}
	for i, profile := range profiles {
		if kept[i] != nil {
			list = append(list, kept[i])
		}
		if profile == "" || kept[i] != nil {
			continue
		}
		s, _ := parseProfile(profile)
		if of := fmt.Sprintf("%dg.%dgb", s.g, s.gb); of != instance || used+s.c > s.g {
			for gi, ci, used, instance = 1, -1, 0, of; taken[gi]; gi++ {
			}
			taken[gi] = true
			at = g.place(s, slices.Concat(list, slices.Collect(maps.Values(kept))))
		}
		ci, used = ci+1, used+s.c
		list = append(list, g.newSlice(i, gi, ci, profile, at))
	}
	return list
}

// memorySlices is how many a GPU's memory is cut into.
const memorySlices = 8

// instanceProfiles are the numbers of GPU instances' profiles, by compute and memory
// slices, on a GPU that has seven of the one and eight of the other.
var instanceProfiles = map[[2]int]int{{1, 1}: 19, {1, 2}: 15, {2, 2}: 14, {3, 4}: 9, {4, 4}: 5, {7, 8}: 0}

// place finds memory for a GPU instance beside those that there are: in a multiple of
// its size. The zero Placement is for a profile that the real ones do not have, and where
// there is no room, which nobody here minds.
func (g *gpu) place(s size, beside []*slice) device.Placement {
	n := int(math.Round(float64(s.gb<<30) / (g.model.memory / memorySlices)))
	profile, known := instanceProfiles[[2]int{s.g, n}]
	for start := 0; known && start+n <= memorySlices; start += n {
		if !slices.ContainsFunc(beside, func(o *slice) bool {
			at := o.Placement
			return at.Start < start+n && start < at.Start+at.Size
		}) {
			return device.Placement{Profile: profile, Start: start, Size: n}
		}
	}
	return device.Placement{}
}

func (g *gpu) newSlice(index, gi, ci int, profile string, at device.Placement) *slice {
	d := g.Device
	d.ID = device.ID(fmt.Sprintf("MIG-%08x-5eed-5000-8000-%06x%06x", 0xa100+g.Index, g.partitions, index))
	d.MIG, d.Slice, d.GI, d.CI, d.Profile = false, index, gi, ci, profile
	size, _ := parseProfile(profile)
	d.Placement = at
	d.MemoryBytes = uint64(size.gb) << 30
	access := 100*g.Minor + 10*gi // the number of the node that opens the GPU instance
	d.Nodes = append([]string{
		g.Nodes[0], fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access+1+ci),
	}, g.Nodes[1:]...)
	return &slice{Device: d, size: size}
}

// devices are what is listed of a GPU.
func (g *gpu) devices() []device.Device {
	list := []device.Device{g.Device}
	for _, s := range g.slices {
		list = append(list, s.Device)
	}
	return list
}

// sliceOf finds a slice of the GPU; nil where there is none.
func (g *gpu) sliceOf(id device.ID) *slice {
	for _, s := range g.slices {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// sliceNamed is the slice at an index of a GPU, as nvidia-smi shows it.
func (m *Machine) sliceNamed(id device.GPU, index string) (device.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.gpu(id).slices {
		if strconv.Itoa(s.Slice) == index {
			return s.ID, nil
		}
	}
	return "", fmt.Errorf("GPU %s has no slice %s", id, index)
}

// slicesBusy is how busy the whole GPU is when its slices are.
func (g *gpu) slicesBusy() float64 {
	busy := 0.0
	for _, s := range g.slices {
		busy += s.busy * float64(s.size.c) / slicesOfGPU
	}
	return min(busy, 1)
}
