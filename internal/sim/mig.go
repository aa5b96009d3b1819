package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
)

// simMIGDevice is a MIG slice of a simulated GPU.
type simMIGDevice struct {
	device.Device
	size profileSize
	load float64 // 0 to 1, without what processes add
}

// profileSize is what a profile's name says: compute slices, GPU slices and GB.
type profileSize struct{ computeSlices, gpuSlices, memoryGB int }

func parseProfile(profile string) (s profileSize, ok bool) {
	if n, _ := fmt.Sscanf(profile, "%dc.%dg.%dgb", &s.computeSlices, &s.gpuSlices, &s.memoryGB); n != 3 {
		s = profileSize{}
		if n, _ := fmt.Sscanf(profile, "%dg.%dgb", &s.gpuSlices, &s.memoryGB); n != 2 {
			return profileSize{}, false
		}
		s.computeSlices = s.gpuSlices
	}
	return s, s.computeSlices > 0 && s.computeSlices <= s.gpuSlices && s.gpuSlices <= computeSlicesPerGPU && s.memoryGB > 0 && s.memoryGB <= maxProfileGB
}

// computeSlicesPerGPU is how many compute slices make a whole GPU.
const computeSlicesPerGPU = 7

// maxProfileGB is more than the memory of any GPU.
const maxProfileGB = 1 << 10

// checkPartition says why a GPU cannot have slices with these profiles.
func (m *Machine) checkPartition(id device.GPU, profiles []string) (err error) {
	for _, profile := range profiles {
		if _, ok := parseProfile(profile); profile != "" && !ok {
			return fmt.Errorf("%q is no MIG profile", profile)
		}
	}
	m.updateGPU(id, func(g *simGPU) {
		if !g.hasFeatures(featureMIG) {
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
	if err := m.checkPartition(id, profiles); err != nil {
		panic("sim: " + err.Error()) // a mistake of whoever wrote the test: a script's is found before
	}
	m.updateGPU(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.partitionCount++
		g.migDevices = g.createMIGDevices(profiles)
		g.MIGEnabled = true
		g.groupInstances()
		m.events = append(m.events, device.Event{GPU: id, PartitionChanged: true})
	})
}

// Unpartition turns a GPU's MIG mode off: its slices are gone.
func (m *Machine) Unpartition(id device.GPU) {
	m.updateGPU(id, func(g *simGPU) {
		g.accumulate(m.now())
		g.MIGEnabled, g.migDevices, g.instances = false, nil, nil
		m.events = append(m.events, device.Event{GPU: id, PartitionChanged: true})
	})
}

// createMIGDevices makes the slices that the profiles name, of those that are there as far as it
// can. The numbers of instances that are gone are given again, their UUIDs never are.
func (g *simGPU) createMIGDevices(profiles []string) []*simMIGDevice {
	kept := map[int]*simMIGDevice{} // by index
	usedInstances := map[int]bool{} // the numbers of GPU instances
	for _, s := range g.migDevices {
		if s.MIGDeviceIndex < len(profiles) && profiles[s.MIGDeviceIndex] == s.Profile {
			kept[s.MIGDeviceIndex] = s
			usedInstances[s.GI] = true
		}
	}
	var list []*simMIGDevice
	gi, ci, usedSlices, instance, at := 0, 0, 0, "", device.Placement{}
	for i, profile := range profiles {
		if kept[i] != nil {
			list = append(list, kept[i])
		}
		if profile == "" || kept[i] != nil {
			continue
		}
		s, _ := parseProfile(profile)
		if of := fmt.Sprintf("%dg.%dgb", s.gpuSlices, s.memoryGB); of != instance || usedSlices+s.computeSlices > s.gpuSlices {
			for gi, ci, usedSlices, instance = 1, -1, 0, of; usedInstances[gi]; gi++ {
			}
			usedInstances[gi] = true
			at = g.findPlacement(s, slices.Concat(list, slices.Collect(maps.Values(kept))))
		}
		ci, usedSlices = ci+1, usedSlices+s.computeSlices
		list = append(list, g.newMIGDevice(i, gi, ci, profile, at))
	}
	return list
}

// memorySlicesPerGPU is how many a GPU's memory is cut into.
const memorySlicesPerGPU = 8

// instanceProfileIDs are the numbers of GPU instances' profiles, by compute and memory
// slices, on a GPU that has seven of the one and eight of the other.
var instanceProfileIDs = map[[2]int]int{{1, 1}: 19, {1, 2}: 15, {2, 2}: 14, {3, 4}: 9, {4, 4}: 5, {7, 8}: 0}

// findPlacement finds memory for a GPU instance beside those that there are: in a multiple of
// its size. The zero Placement is for a profile that the real ones do not have, and where
// there is no room, which nobody here minds.
func (g *simGPU) findPlacement(s profileSize, existing []*simMIGDevice) device.Placement {
	n := int(math.Round(float64(s.memoryGB<<30) / (g.model.memory / memorySlicesPerGPU)))
	profile, known := instanceProfileIDs[[2]int{s.gpuSlices, n}]
	for start := 0; known && start+n <= memorySlicesPerGPU; start += n {
		if !slices.ContainsFunc(existing, func(o *simMIGDevice) bool {
			at := o.Placement
			return at.Start < start+n && start < at.Start+at.Size
		}) {
			return device.Placement{Profile: profile, Start: start, Size: n}
		}
	}
	return device.Placement{}
}

func (g *simGPU) newMIGDevice(index, gi, ci int, profile string, placement device.Placement) *simMIGDevice {
	d := g.Device
	d.ID = device.ID(fmt.Sprintf("MIG-%08x-5eed-5000-8000-%06x%06x", 0xa100+g.Index, g.partitionCount, index))
	d.MIGEnabled, d.MIGDeviceIndex, d.GI, d.CI, d.Profile = false, index, gi, ci, profile
	size, _ := parseProfile(profile)
	d.Placement = placement
	d.MemoryBytes = uint64(size.memoryGB) << 30
	access := 100*g.Minor + 10*gi // the number of the node that opens the GPU instance
	d.DeviceNodes = append([]string{
		g.DeviceNodes[0], fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access+1+ci),
	}, g.DeviceNodes[1:]...)
	return &simMIGDevice{Device: d, size: size}
}

// devices are what is listed of a GPU.
func (g *simGPU) devices() []device.Device {
	list := []device.Device{g.Device}
	for _, s := range g.migDevices {
		list = append(list, s.Device)
	}
	return list
}

// findMIGDevice finds a slice of the GPU; nil where there is none.
func (g *simGPU) findMIGDevice(id device.ID) *simMIGDevice {
	for _, s := range g.migDevices {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// findMIGDevice is the slice at an index of a GPU, as nvidia-smi shows it.
func (m *Machine) findMIGDevice(id device.GPU, index string) (device.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.findGPU(id).migDevices {
		if strconv.Itoa(s.MIGDeviceIndex) == index {
			return s.ID, nil
		}
	}
	return "", fmt.Errorf("GPU %s has no slice %s", id, index)
}

// migLoad is how busy the whole GPU is when its slices are.
func (g *simGPU) migLoad() float64 {
	busy := 0.0
	for _, s := range g.migDevices {
		busy += s.load * float64(s.size.computeSlices) / computeSlicesPerGPU
	}
	return min(busy, 1)
}
