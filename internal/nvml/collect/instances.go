package collect

import (
	"cmp"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// instance is a GPU instance, with separate memory and engines. Compute instances share both, so only a single MIG device gets
// the values: sums over all devices must not count values twice.
type instance struct {
	gi         int
	members    []MIGDevice // differ for a later instance with this number; the first one gets the values
	readTarget             // by the device's handle; nil: unknown to the newest listing
	verified   bool        // in this collection the handle was still the device's
}

// updateInstances follows the newest listing.
func (g *GPUReader) updateInstances() {
	state := g.MIG.Load()
	if state == g.groupedState {
		return
	}
	if g.groupedState != nil && g.groupedState.Enabled != state.Enabled { // features depend on the mode
		g.forgetAbsences()
	}
	g.groupedState = state
	byNumber := map[int][]MIGDevice{}
	for _, d := range state.Devices {
		byNumber[d.GI] = append(byNumber[d.GI], d)
	}
	old := g.instances
	g.instances = make([]*instance, 0, len(byNumber))
	for gi, members := range byNumber {
		slices.SortFunc(members, func(a, b MIGDevice) int { return cmp.Compare(a.CI, b.CI) })
		in := &instance{gi: gi, readTarget: newReadTarget(nil, metric.TargetMIG)}
		if i := slices.IndexFunc(old, func(in *instance) bool { return in.gi == gi && slices.EqualFunc(in.members, members, isSame) }); i >= 0 {
			in = old[i]
			old = slices.Delete(old, i, i+1)
		}
		in.members, in.Handle = members, members[0].Handle
		g.instances = append(g.instances, in)
	}
	slices.SortFunc(g.instances, func(a, b *instance) int { return cmp.Compare(a.gi, b.gi) })
	for _, gone := range old {
		g.dropSample(&gone.sampler)
	}
}

func isSame(a, b MIGDevice) bool { return a.ID == b.ID && a.CI == b.CI }

// readInstance reads the fast values of an instance. The listing may be seconds old, and the handle another device's by now, so the
// UUID is read after the values.
func (g *GPUReader) readInstance(in *instance, now time.Time) {
	in.verified = false
	if in.Handle == nil {
		return
	}
	if g.makeFastCalls(&in.readTarget, now); g.collection.aborted {
		return
	}
	if in.verified = g.verifyHandle(in); !in.verified && !g.collection.aborted {
		in.reset()
	}
}

// verifyHandle reports whether an instance's handle is still the device's.
func (g *GPUReader) verifyHandle(in *instance) bool {
	if in.Handle == nil || !g.spendCall() {
		return false
	}
	uuid, ret := in.Handle.GetUUID()
	if lib.IsFinal(ret) { // all further codes concern the device alone
		g.recordResult("nvmlDeviceGetUUID", ret)
	}
	return ret == nvml.SUCCESS && device.ID(lib.ToValidUTF8(uuid)) == in.members[0].ID
}

func (in *instance) reset() {
	in.latest = metric.Values{}
	clear(in.callStates)
	in.sampler.reset(&in.latest)
	in.sampler.denials = Denials{}
}
