package collect

import (
	"cmp"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// updateInstances follows the newest listing.
func (g *GPUReader) updateInstances() {
	state := g.MIG.Load()
	if state == g.groupedState {
		return
	}
	if g.groupedState != nil && g.groupedState.Enabled != state.Enabled { // features depend on the mode
		g.forget()
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
		in := &instance{gi: gi, target: newTarget(nil, metric.TargetMIG)}
		isKnown := func(in *instance) bool { return in.gi == gi && slices.EqualFunc(in.members, members, isSame) }
		if i := slices.IndexFunc(old, isKnown); i >= 0 {
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

// verifyHandle reports whether an instance's handle is still the device's. If
// not, all values are dropped.
func (g *GPUReader) verifyHandle(in *instance) bool {
	if in.Handle == nil {
		return false
	}
	uuid, ret := in.Handle.GetUUID()
	if lib.IsFinal(ret) { // all further codes concern the device alone
		g.recordResult("nvmlDeviceGetUUID", ret)
		return false
	}
	verified := ret == nvml.SUCCESS && device.ID(lib.ToValidUTF8(uuid)) == in.members[0].ID
	if !verified {
		in.forget()
	}
	return verified
}
