package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// features fills what is known without a call of its own: what the listing said, and
// which fields the GPU has. A feature that the GPU has denied only once or twice is left out.
func (g *gpu) features() {
	r := &g.reading
	p := g.parts.Load()
	r.filled[migNow], r.filled[migPending], r.filled[hasMIG] = false, false, false
	if p.capable || p.absent.believed() {
		r.setTruth(nvml.SUCCESS, hasMIG, p.capable)
	}
	if p.capable {
		r.setTruth(nvml.SUCCESS, migNow, p.mig)
		r.setTruth(nvml.SUCCESS, migPending, p.pending)
	}
	r.filled[hasGPM] = false
	if g.gpm.told || g.gpm.absent.believed() {
		r.setTruth(nvml.SUCCESS, hasGPM, g.gpm.supported)
	}
	if !r.filled[hasFabric] {
		r.setTruth(nvml.SUCCESS, hasFabric, false)
		r.filled[hasFabric] = g.lacksCall(hasFabric)
	}
	for _, f := range [...]struct {
		s     slot
		field uint32
		some  bool // its value must be more than 0
	}{
		{hasECC, nvml.FI_DEV_ECC_CURRENT, false},
		{hasNVLink, nvml.FI_DEV_NVLINK_LINK_COUNT, true},
		{hasRetirement, nvml.FI_DEV_RETIRED_DBE, false},
		{hasRemapping, nvml.FI_DEV_REMAPPED_UNC, false},
		{hasC2C, nvml.FI_DEV_C2C_LINK_COUNT, true},
	} {
		at := g.catalogue.slow.at[key{id: f.field}]
		v, ok := g.slow.value(at)
		r.filled[f.s] = false
		switch {
		case ok:
			r.setTruth(nvml.SUCCESS, f.s, !f.some || v > 0)
		case g.slow.lacksForSure(at):
			r.setTruth(nvml.SUCCESS, f.s, false)
		}
	}
}

// lacksCall reports whether the GPU has none of the calls that fill a slot, and has said so
// of one at least, often enough to be believed.
func (g *gpu) lacksCall(s slot) bool {
	lacks := false
	for i := range calls {
		if !calls[i].fills(s) || !g.driver.can[i] {
			continue
		}
		if !g.turns[i].absent.believed() {
			return false
		}
		lacks = true
	}
	return lacks
}
