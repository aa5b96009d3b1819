package collect

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// fillFeatures fills what is known without a call of its own: what the listing said, and
// which fields the GPU has. A feature that the GPU has denied only once or twice is left out.
func (g *GPUReader) fillFeatures() {
	r := &g.latest
	p := g.mig.Load()
	r.Present[metric.MIGEnabled], r.Present[metric.MIGPending], r.Present[metric.HasMIG] = false, false, false
	if p.Capable || p.Denied {
		r.SetBool(nvml.SUCCESS, metric.HasMIG, p.Capable)
	}
	if p.Capable {
		r.SetBool(nvml.SUCCESS, metric.MIGEnabled, p.Enabled)
		r.SetBool(nvml.SUCCESS, metric.MIGPending, p.PendingEnabled)
	}
	r.Present[metric.HasGPM] = false
	if g.gpm.probed || g.gpm.denials.Confirmed() {
		r.SetBool(nvml.SUCCESS, metric.HasGPM, g.gpm.supported)
	}
	if !r.Present[metric.HasFabric] {
		r.SetBool(nvml.SUCCESS, metric.HasFabric, false)
		r.Present[metric.HasFabric] = g.lacksAllCalls(metric.HasFabric)
	}
	for _, f := range [...]struct {
		s     metric.ValueID
		field uint32
		some  bool // its value must be more than 0
	}{
		{metric.HasECC, nvml.FI_DEV_ECC_CURRENT, false},
		{metric.HasNVLink, nvml.FI_DEV_NVLINK_LINK_COUNT, true},
		{metric.HasRetirement, nvml.FI_DEV_RETIRED_DBE, false},
		{metric.HasRemapping, nvml.FI_DEV_REMAPPED_UNC, false},
		{metric.HasC2C, nvml.FI_DEV_C2C_LINK_COUNT, true},
	} {
		at := g.plan.Slow.Index[metric.FieldKey{ID: f.field}]
		v, ok := g.slowFields.value(at)
		r.Present[f.s] = false
		switch {
		case ok:
			r.SetBool(nvml.SUCCESS, f.s, !f.some || v > 0)
		case g.slowFields.isConfirmedUnsupported(at):
			r.SetBool(nvml.SUCCESS, f.s, false)
		}
	}
}

// lacksAllCalls reports whether the GPU has none of the calls that fill a slot, and has said so
// of one at least, often enough to be believed.
func (g *GPUReader) lacksAllCalls(id metric.ValueID) bool {
	lacks := false
	for i := range metric.Calls {
		if !metric.Calls[i].Provides(id) || !g.canFind(i) {
			continue
		}
		if !g.callStates[i].denials.Confirmed() {
			return false
		}
		lacks = true
	}
	return lacks
}
