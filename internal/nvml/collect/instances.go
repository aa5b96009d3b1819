package collect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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
	membersKey string    // differs for a later instance with this number
	device     device.ID // gets the values
	readTarget           // by the device's handle; nil: unknown to the newest listing
	verified   bool      // in this collection the handle was still the device's
}

// updateInstances follows the newest listing.
func (g *GPUReader) updateInstances() {
	state := g.mig.Load()
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
		var key strings.Builder
		for _, d := range members {
			fmt.Fprintf(&key, "%s/%d ", d.ID, d.CI)
		}
		in := &instance{gi: gi, membersKey: key.String(), readTarget: newReadTarget(nil, metric.TargetMIG)}
		if i := slices.IndexFunc(old, func(i *instance) bool { return i.gi == gi && i.membersKey == in.membersKey }); i >= 0 {
			in = old[i]
			old = slices.Delete(old, i, i+1)
		}
		in.device, in.Handle = members[0].ID, members[0].Handle
		g.instances = append(g.instances, in)
	}
	slices.SortFunc(g.instances, func(a, b *instance) int { return cmp.Compare(a.gi, b.gi) })
	for _, gone := range old {
		if gone.sampler.previous.GpmSample != nil {
			g.unusedSamples = append(g.unusedSamples, gone.sampler.previous)
		}
	}
}

// readInstance reads the fast values of an instance. The listing may be seconds old, and the handle another device's by now, so the
// UUID is read after the values.
func (g *GPUReader) readInstance(in *instance, now time.Time) {
	in.verified = false
	if in.Handle == nil {
		return
	}
	if g.makeFastCalls(&in.readTarget, now); g.isAborted() {
		return
	}
	if in.verified = g.verifyHandle(in); !in.verified && !g.isAborted() {
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
	return ret == nvml.SUCCESS && device.ID(lib.ToValidUTF8(uuid)) == in.device
}

// reset drops all values of the instance.
func (in *instance) reset() {
	in.latest = metric.Values{}
	clear(in.callStates)
	in.sampler.reset(&in.latest)
	in.sampler.denials = Denials{}
}
