package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
)

const maxProfileGB = 1 << 10

// instanceProfileIDs are NVML's ids of GPU instance profiles, by compute and
// memory slices.
var instanceProfileIDs = map[[2]int]int{{1, 1}: 19, {1, 2}: 15, {2, 2}: 14, {3, 4}: 9, {4, 4}: 5, {7, 8}: 0}

func parseProfile(profile string) (s profileSize, ok bool) {
	if n, _ := fmt.Sscanf(profile, "%dc.%dg.%dgb", &s.computeSlices, &s.gpuSlices, &s.memoryGB); n != 3 {
		s = profileSize{}
		if n, _ := fmt.Sscanf(profile, "%dg.%dgb", &s.gpuSlices, &s.memoryGB); n != 2 {
			return profileSize{}, false
		}
		s.computeSlices = s.gpuSlices
	}
	return s, s.computeSlices > 0 && s.computeSlices <= s.gpuSlices && s.gpuSlices <= computeSlicesPerGPU &&
		s.memoryGB > 0 && s.memoryGB <= maxProfileGB
}

// checkPartition returns an error if a GPU cannot have MIG devices of the
// profiles.
func (m *Machine) checkPartition(id device.GPU, profiles []string) (err error) {
	for _, profile := range profiles {
		if _, ok := parseProfile(profile); profile != "" && !ok {
			return fmt.Errorf("%q is not a MIG profile", profile)
		}
	}
	m.updateDevice(device.ID(id), func(g *simGPU) {
		if g.model.generation&fromAmpere == 0 {
			err = fmt.Errorf("%s cannot be partitioned", g.Model)
		}
	})
	return err
}

// Partition enables MIG mode and creates MIG devices of the profiles
// ("1g.10gb", "1c.3g.40gb") at indices from 0; "" skips an index. A MIG device
// stays if the profile at the same index stays. Compute instances share a GPU
// instance if they fit. The driver reports the change. Invalid profiles panic.
func (m *Machine) Partition(id device.GPU, profiles ...string) {
	if err := m.checkPartition(id, profiles); err != nil {
		panic("sim: " + err.Error())
	}
	m.updateDevice(device.ID(id), func(g *simGPU) {
		g.accumulate(m.now())
		g.partitionCount++
		g.migDevices = g.createMIGDevices(profiles)
		g.MIGEnabled = true
		m.events = append(m.events, device.Event{GPU: id, PartitionChanged: true})
	})
}

// Unpartition disables MIG mode and removes the MIG devices.
func (m *Machine) Unpartition(id device.GPU) {
	m.updateDevice(device.ID(id), func(g *simGPU) {
		g.accumulate(m.now())
		g.MIGEnabled, g.migDevices = false, nil
		m.events = append(m.events, device.Event{GPU: id, PartitionChanged: true})
	})
}

// createMIGDevices keeps existing MIG devices with the right profile. Instance
// ids are reused, UUIDs are not.
func (g *simGPU) createMIGDevices(profiles []string) (list []*simMIGDevice) {
	kept, usedInstances := map[int]*simMIGDevice{}, map[int]bool{} // by index, by GI
	for _, d := range g.migDevices {
		if d.MIGDeviceIndex < len(profiles) && profiles[d.MIGDeviceIndex] == d.Profile {
			kept[d.MIGDeviceIndex], usedInstances[d.GI] = d, true
		}
	}
	gi, ci, usedSlices, instance, placement := 0, 0, 0, "", device.Placement{}
	for i, profile := range profiles {
		if kept[i] != nil {
			list = append(list, kept[i])
		}
		if profile == "" || kept[i] != nil {
			continue
		}
		s, _ := parseProfile(profile)
		if name := fmt.Sprintf("%dg.%dgb", s.gpuSlices, s.memoryGB); name != instance ||
			usedSlices+s.computeSlices > s.gpuSlices {
			placement = g.findPlacement(s, slices.Concat(list, slices.Collect(maps.Values(kept))))
			for gi, ci, usedSlices, instance = instanceID(placement), -1, 0, name; usedInstances[gi]; gi++ {
			}
			usedInstances[gi] = true
		}
		ci, usedSlices = ci+1, usedSlices+s.computeSlices
		list = append(list, g.newMIGDevice(i, gi, ci, profile, placement))
	}
	return list
}

// findPlacement returns free memory slices for a GPU instance, at a multiple of
// the size. The result is zero for profiles without an id, and if there is no
// room.
func (g *simGPU) findPlacement(s profileSize, existing []*simMIGDevice) device.Placement {
	n := g.memorySlices(s)
	profile, known := instanceProfileIDs[[2]int{s.gpuSlices, n}]
	for start := 0; known && start+n <= memorySlicesPerGPU; start += n {
		if !slices.ContainsFunc(existing, func(d *simMIGDevice) bool {
			return d.Placement.Start < start+n && start < d.Placement.Start+d.Placement.Size
		}) {
			return device.Placement{Profile: profile, Start: start, Size: n}
		}
	}
	return device.Placement{}
}

// instanceID returns the driver's id of a GPU instance: a number for each place,
// by falling size, in which the second half comes first. Unknown places begin
// behind them.
func instanceID(p device.Placement) int {
	if p.Size == 0 {
		return 2*memorySlicesPerGPU - 1
	}
	return memorySlicesPerGPU/p.Size - 1 + (p.Start+memorySlicesPerGPU/2)%memorySlicesPerGPU/p.Size
}

// instanceMiB is the memory of GPU instances of H100 and H200 by the size in the
// profile's name. Other instances have the size in the name.
var instanceMiB = map[int]uint64{10: 9984, 20: 20096, 40: 40448, 18: 16384, 35: 33280, 71: 71424}

// memoryBytes returns the memory of the GPU instance.
func (s profileSize) memoryBytes() uint64 {
	return cmp.Or(instanceMiB[s.memoryGB], uint64(s.memoryGB)<<10) * mib
}

func (g *simGPU) newMIGDevice(index, gi, ci int, profile string, placement device.Placement) *simMIGDevice {
	d := g.Device
	size, _ := parseProfile(profile)
	d.ID = device.ID(fmt.Sprintf("MIG-%08x-5eed-5000-8000-%06x%06x", 0xa100+g.Index, g.partitionCount, index))
	d.MIGEnabled, d.MIGDeviceIndex, d.GI, d.CI, d.Profile = false, index, gi, ci, profile
	d.Placement, d.MemoryBytes, d.ComputeSlices = placement, size.memoryBytes(), computeSlicesPerGPU
	access := 1000*g.Minor + 10*gi // number of the GPU instance's capability node
	d.DeviceNodes = append([]string{
		g.DeviceNodes[0], fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access),
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", access+1+ci),
	}, g.DeviceNodes[1:]...)
	return &simMIGDevice{Device: d, size: size}
}

// migDeviceAt returns the MIG device at an index of a GPU, as in nvidia-smi.
func (m *Machine) migDeviceAt(id device.GPU, index string) (device.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.findGPU(id).migDevices {
		if strconv.Itoa(d.MIGDeviceIndex) == index {
			return d.ID, nil
		}
	}
	return "", fmt.Errorf("GPU %s has no MIG device %s", id, index)
}
