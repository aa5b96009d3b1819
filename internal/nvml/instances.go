package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// instance is a GPU instance of a partitioned GPU, which has memory and engines of its
// own. Compute instances share those: so what is read of it is the value of one of its
// slices alone, or sums over slices would count it more than once.
type instance struct {
	gi int
	// life tells it from one that has its number later.
	life   string
	lowest *slice      // the one whose values they are
	handle nvml.Device // of that; nil: the newest listing could not have it

	reading reading
	turns   [len(calls)]turn
	sampler sampler
	// sound tells whether in this flight the handle was the slice's still.
	sound bool
}

// regroup has the instances follow the newest listing.
func (g *gpu) regroup() {
	p := g.parts.Load()
	if p == g.grouped {
		return
	}
	if g.grouped != nil && g.grouped.mig != p.mig { // what the GPU has depends on it
		g.askAll()
	}
	g.grouped = p
	byNumber := map[int][]*slice{}
	for _, s := range p.slices {
		byNumber[s.gi] = append(byNumber[s.gi], s)
	}
	old := g.instances
	g.instances = make([]*instance, 0, len(byNumber))
	for gi, members := range byNumber {
		slices.SortFunc(members, func(a, b *slice) int { return cmp.Compare(a.ci, b.ci) })
		life := lifeOf(members)
		in := &instance{gi: gi, life: life}
		if i := slices.IndexFunc(old, func(i *instance) bool { return i.gi == gi && i.life == life }); i >= 0 {
			in = old[i]
			old = slices.Delete(old, i, i+1)
		}
		in.lowest, in.handle = members[0], p.handles[members[0]]
		g.instances = append(g.instances, in)
	}
	slices.SortFunc(g.instances, func(a, b *instance) int { return cmp.Compare(a.gi, b.gi) })
	for _, gone := range old {
		if gone.sampler.kept.GpmSample != nil {
			g.unused = append(g.unused, gone.sampler.kept)
		}
	}
}

// lifeOf is what an instance with these slices is known by.
func lifeOf(members []*slice) string {
	var b strings.Builder
	for _, s := range members {
		fmt.Fprintf(&b, "%s/%d ", s.id, s.ci)
	}
	return b.String()
}

// readInstance reads what an instance has to be asked for in each flight. A listing may
// be seconds old, and the handle another slice's by now: so after its memory was read
// it is asked whose it is.
func (g *gpu) readInstance(in *instance, now time.Time) {
	in.sound = false
	if in.handle == nil {
		return
	}
	g.askCalls(in.handle, migSlices, &in.reading, &in.turns, now)
	if g.failing() {
		return
	}
	in.sound = g.isStill(in)
	if !in.sound && !g.failing() {
		in.forget()
	}
}

// isStill reports whether an instance's handle is that of its slice.
func (g *gpu) isStill(in *instance) bool {
	if in.handle == nil || !g.spend() {
		return false
	}
	uuid, ret := in.handle.GetUUID()
	if isFinal(ret) { // any other answer is about the slice, which may be gone
		g.note("nvmlDeviceGetUUID", ret)
	}
	return ret == nvml.SUCCESS && device.ID(clean(uuid)) == in.lowest.id
}

// forget drops all that was read of it.
func (in *instance) forget() {
	in.reading = reading{}
	in.turns = [len(calls)]turn{}
	in.sampler.forget(&in.reading)
	in.sampler.absent = absence{}
}

// samplesOf appends what was read of an instance, in the order of the rows.
func (g *gpu) samplesOf(in *instance, buf []device.Sample) []device.Sample {
	if !in.sound {
		return buf
	}
	for _, i := range g.catalogue.ofSlices {
		r := &g.catalogue.rows[i]
		if !in.reading.filled[r.slot] {
			continue
		}
		if v, ok := r.unit.convert(in.reading.values[r.slot]); ok {
			buf = append(buf, device.Sample{Device: in.lowest.id, Metric: i, Value: v})
		}
	}
	return buf
}
