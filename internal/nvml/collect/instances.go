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

// instance is a GPU instance of a partitioned GPU, which has memory and engines of its
// own. Compute instances share those: so what is read of it is the value of one of its
// slices alone, or sums over slices would count it more than once.
type instance struct {
	gi int
	// membersKey tells it from one that has its number later.
	membersKey string
	device     device.ID   // the one whose values they are
	handle     nvml.Device // of that; nil: the newest listing could not have it

	latest     metric.Values
	callStates []callState
	sampler    gpmSampler
	// verified tells whether in this flight the handle was the slice's still.
	verified bool
}

// updateInstances has the instances follow the newest listing.
func (g *GPUReader) updateInstances() {
	p := g.mig.Load()
	if p == g.groupedState {
		return
	}
	if g.groupedState != nil && g.groupedState.Enabled != p.Enabled { // what the GPU has depends on it
		g.forgetAbsences()
	}
	g.groupedState = p
	byNumber := map[int][]MIGDevice{}
	for _, s := range p.Devices {
		byNumber[s.GI] = append(byNumber[s.GI], s)
	}
	old := g.instances
	g.instances = make([]*instance, 0, len(byNumber))
	for gi, members := range byNumber {
		slices.SortFunc(members, func(a, b MIGDevice) int { return cmp.Compare(a.CI, b.CI) })
		key := membersKeyOf(members)
		in := &instance{gi: gi, membersKey: key, callStates: make([]callState, len(metric.Calls))}
		if i := slices.IndexFunc(old, func(i *instance) bool { return i.gi == gi && i.membersKey == key }); i >= 0 {
			in = old[i]
			old = slices.Delete(old, i, i+1)
		}
		in.device, in.handle = members[0].ID, members[0].Handle
		g.instances = append(g.instances, in)
	}
	slices.SortFunc(g.instances, func(a, b *instance) int { return cmp.Compare(a.gi, b.gi) })
	for _, gone := range old {
		if gone.sampler.previous.GpmSample != nil {
			g.unusedSamples = append(g.unusedSamples, gone.sampler.previous)
		}
	}
}

// membersKeyOf is what an instance with these slices is known by.
func membersKeyOf(members []MIGDevice) string {
	var b strings.Builder
	for _, s := range members {
		fmt.Fprintf(&b, "%s/%d ", s.ID, s.CI)
	}
	return b.String()
}

// readInstance reads what an instance has to be asked for in each flight. A listing may
// be seconds old, and the handle another slice's by now: so after its memory was read
// it is asked whose it is.
func (g *GPUReader) readInstance(in *instance, now time.Time) {
	in.verified = false
	if in.handle == nil {
		return
	}
	g.makeFastCalls(in.handle, metric.TargetMIG, &in.latest, in.callStates, now)
	if g.isAborted() {
		return
	}
	in.verified = g.verifyHandle(in)
	if !in.verified && !g.isAborted() {
		in.reset()
	}
}

// verifyHandle reports whether an instance's handle is that of its slice.
func (g *GPUReader) verifyHandle(in *instance) bool {
	if in.handle == nil || !g.spendCall() {
		return false
	}
	uuid, ret := in.handle.GetUUID()
	if lib.IsFinal(ret) { // any other answer is about the slice, which may be gone
		g.recordResult("nvmlDeviceGetUUID", ret)
	}
	return ret == nvml.SUCCESS && device.ID(lib.ToValidUTF8(uuid)) == in.device
}

// reset drops all that was read of it.
func (in *instance) reset() {
	in.latest = metric.Values{}
	clear(in.callStates)
	in.sampler.reset(&in.latest)
	in.sampler.denials = Denials{}
}

// instanceSamples appends what was read of an instance, in the order of the rows.
func (g *GPUReader) instanceSamples(in *instance, buf []device.Sample) []device.Sample {
	if !in.verified {
		return buf
	}
	for _, i := range g.plan.MIGRows {
		r := &g.plan.Rows[i]
		if !in.latest.Present[r.ValueID] {
			continue
		}
		if v, ok := r.Conversion.Convert(in.latest.Values[r.ValueID]); ok {
			buf = append(buf, device.Sample{Device: in.device, Metric: i, Value: v})
		}
	}
	return buf
}
