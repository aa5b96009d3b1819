package sim

import (
	"cmp"
	"slices"
)

// instance is a GPU instance, as if it were a GPU. Its values are given to one of its
// slices: of several compute instances the first alone, since they share the memory and
// the engines, and sums over slices would count them more than once.
type instance struct {
	gpu
	slices []*slice // by their CI
}

// group makes the GPU's instances of its slices.
func (g *gpu) group() {
	g.instances = nil
	for _, s := range g.slices {
		at := slices.IndexFunc(g.instances, func(in *instance) bool { return in.GI == s.GI })
		if at < 0 {
			at = len(g.instances)
			g.instances = append(g.instances, g.newInstance(s))
		}
		in := g.instances[at]
		in.slices = append(in.slices, s)
		slices.SortFunc(in.slices, func(a, b *slice) int { return cmp.Compare(a.CI, b.CI) })
		in.Device = in.slices[0].Device
	}
}

// newInstance begins one: with what there is of the GPU for it, in eighths.
func (g *gpu) newInstance(s *slice) *instance {
	model := *g.model
	model.memory, model.reserved = float64(s.MemoryBytes), 0
	model.bar1 = g.model.bar1 / 8 * float64(s.size.g)
	return &instance{gpu: gpu{Device: s.Device, model: &model}}
}

// follow has it be as busy as its slices, and used by their processes.
func (in *instance) follow(g *gpu) {
	in.busy, in.processes = 0, in.processes[:0]
	for _, s := range in.slices {
		share := float64(s.size.c) / float64(s.size.g)
		in.busy += s.busy * share
		for _, p := range g.processes {
			if p.device == s.ID {
				p.device = in.ID
				p.sm *= share
				in.processes = append(in.processes, p)
			}
		}
	}
}
