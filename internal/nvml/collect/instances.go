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
	for gi := range byNumber {
		if !slices.ContainsFunc(g.instances, func(in *instance) bool { return in.gi == gi }) {
			g.instances = append(g.instances, &instance{gi: gi, target: newTarget(nil, metric.TargetMIG)})
		}
	}
	slices.SortFunc(g.instances, func(a, b *instance) int { return cmp.Compare(a.gi, b.gi) })
	for _, in := range g.instances {
		members := byNumber[in.gi]
		slices.SortFunc(members, func(a, b MIGDevice) int { return cmp.Compare(a.CI, b.CI) })
		if !slices.EqualFunc(in.members, members, isSame) { // a later instance with this number
			in.forget()
			in.latest = metric.Values{}
		}
		in.members = members
		if len(members) > 0 {
			in.Handle = members[0].Handle
		}
	}
}

// verifyHandle reports whether an instance's handle is still the device's. If
// not, all values are dropped.
func (g *GPUReader) verifyHandle(in *instance) bool {
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
