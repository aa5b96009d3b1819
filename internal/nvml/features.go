package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// fillFeatures fills what is known without a call of its own: what the listing said, and
// which fields the GPU has. A feature that the GPU has denied only once or twice is left out.
func (g *gpuReader) fillFeatures() {
	r := &g.latest
	p := g.mig.Load()
	r.present[migEnabled], r.present[migPending], r.present[hasMIG] = false, false, false
	if p.capable || p.denied {
		r.setBool(nvml.SUCCESS, hasMIG, p.capable)
	}
	if p.capable {
		r.setBool(nvml.SUCCESS, migEnabled, p.enabled)
		r.setBool(nvml.SUCCESS, migPending, p.pendingEnabled)
	}
	r.present[hasGPM] = false
	if g.gpm.probed || g.gpm.denials.confirmed() {
		r.setBool(nvml.SUCCESS, hasGPM, g.gpm.supported)
	}
	if !r.present[hasFabric] {
		r.setBool(nvml.SUCCESS, hasFabric, false)
		r.present[hasFabric] = g.lacksAllCalls(hasFabric)
	}
	for _, f := range [...]struct {
		s     valueID
		field uint32
		some  bool // its value must be more than 0
	}{
		{hasECC, nvml.FI_DEV_ECC_CURRENT, false},
		{hasNVLink, nvml.FI_DEV_NVLINK_LINK_COUNT, true},
		{hasRetirement, nvml.FI_DEV_RETIRED_DBE, false},
		{hasRemapping, nvml.FI_DEV_REMAPPED_UNC, false},
		{hasC2C, nvml.FI_DEV_C2C_LINK_COUNT, true},
	} {
		at := g.plan.slow.index[fieldKey{id: f.field}]
		v, ok := g.slowFields.value(at)
		r.present[f.s] = false
		switch {
		case ok:
			r.setBool(nvml.SUCCESS, f.s, !f.some || v > 0)
		case g.slowFields.isConfirmedUnsupported(at):
			r.setBool(nvml.SUCCESS, f.s, false)
		}
	}
}

// lacksAllCalls reports whether the GPU has none of the calls that fill a slot, and has said so
// of one at least, often enough to be believed.
func (g *gpuReader) lacksAllCalls(id valueID) bool {
	lacks := false
	for i := range calls {
		if !calls[i].provides(id) || !g.canFind(i) {
			continue
		}
		if !g.callStates[i].denials.confirmed() {
			return false
		}
		lacks = true
	}
	return lacks
}
