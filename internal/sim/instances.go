package sim

import (
	"cmp"
	"slices"
)

// simInstance is a GPU instance, as if it were a GPU. Its values are given to one of its
// slices: of several compute instances the first alone, since they share the memory and
// the engines, and sums over slices would count them more than once.
type simInstance struct {
	simGPU
	migDevices []*simMIGDevice // by their CI
}

// groupInstances makes the GPU's instances of its slices.
func (g *simGPU) groupInstances() {
	g.instances = nil
	for _, s := range g.migDevices {
		at := slices.IndexFunc(g.instances, func(in *simInstance) bool { return in.GI == s.GI })
		if at < 0 {
			at = len(g.instances)
			g.instances = append(g.instances, g.newInstance(s))
		}
		in := g.instances[at]
		in.migDevices = append(in.migDevices, s)
		slices.SortFunc(in.migDevices, func(a, b *simMIGDevice) int { return cmp.Compare(a.CI, b.CI) })
		in.Device = in.migDevices[0].Device
	}
}

// newInstance begins one: with what there is of the GPU for it, in eighths.
func (g *simGPU) newInstance(s *simMIGDevice) *simInstance {
	model := *g.model
	model.memory, model.reserved = float64(s.MemoryBytes), 0
	model.bar1 = g.model.bar1 / 8 * float64(s.size.gpuSlices)
	return &simInstance{simGPU: simGPU{Device: s.Device, model: &model}}
}

// refresh has it be as busy as its slices, and used by their processes.
func (in *simInstance) refresh(g *simGPU) {
	in.baseLoad, in.processes = 0, in.processes[:0]
	for _, s := range in.migDevices {
		share := float64(s.size.computeSlices) / float64(s.size.gpuSlices)
		in.baseLoad += s.load * share
		for _, p := range g.processes {
			if p.device == s.ID {
				p.device = in.ID
				p.sm *= share
				in.processes = append(in.processes, p)
			}
		}
	}
}
