package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// Initialize reads all values for the first collection. The caller holds Mu.
func (g *GPUReader) Initialize() {
	has, now := g.session.Symbols, time.Now()
	g.checkFields = newFieldReader(has, metric.NewFieldBatch(checkedFields[:]...), g.mayHaveField)
	g.fields = newFieldReader(has, g.plan.Fields, g.mayHaveField)
	g.collectedAt = now.Add(time.Minute - gpmIdleTimeout) // the first collection may come within a minute
	g.readFields(now)
	g.makeCalls(&g.target, g.needsCall, now)
	if !g.results.aborted {
		g.takeSample(&g.target, noGPUInstance, now)
	}
	if g.results.aborted {
		g.forget()
	}
}

func (g *GPUReader) needsCall(i int) bool { return g.plan.NeedsCall[i] || checkCalls[i] }

// collect reads the fast values and the due slow values.
func (g *GPUReader) collect(now time.Time) {
	g.collectedAt, g.results = now, callResults{}
	g.updateInstances()
	g.forgetBeforeReset()
	g.readFields(now)
	g.sampler.expire(&g.latest, now)
	g.makeCalls(&g.target, g.needsCall, now)
	for _, in := range g.instances {
		in.sampler.expire(&in.latest, now)
		g.readInstance(in, now)
	}
}

// readFields reads the due fields, the fields of new links, and after a reset
// all fields.
func (g *GPUReader) readFields(now time.Time) {
	for range 2 {
		answered, ret := g.fields.read(g.Handle, now)
		if ret != nvml.SUCCESS {
			g.recordResult(lib.FieldValuesSymbol, ret)
			return
		}
		g.results.answered = g.results.answered || answered // the call succeeds even if each field has failed
		g.detectReset(&g.fields)
		if !g.forgetBeforeReset() && !g.findLinks() {
			return
		}
	}
}

// forgetBeforeReset forgets values from before a reset.
func (g *GPUReader) forgetBeforeReset() bool {
	resets := g.history.resets.Load()
	if resets == g.seenResets {
		return false
	}
	g.seenResets = resets
	g.forget()
	return true
}

// linkCounts are the fields with the number of links of each kind.
var linkCounts = [...]uint32{
	metric.ScopeNVLink:  nvml.FI_DEV_NVLINK_LINK_COUNT,
	metric.ScopeC2CLink: nvml.FI_DEV_C2C_LINK_COUNT,
}

// findLinks enables the fields of new links, and reports whether there are any.
func (g *GPUReader) findLinks() (found bool) {
	for _, s := range [...]metric.FieldScope{metric.ScopeNVLink, metric.ScopeC2CLink} {
		n, ok := g.fields.value(g.fields.Index[metric.FieldKey{ID: linkCounts[s]}])
		if links := uint32(min(n, metric.MaxNVLinks)); ok && links > g.links[s] {
			g.links[s], found = links, true
		}
	}
	if found {
		g.fields.enable(g.mayHaveField)
	}
	return found
}

// mayHaveField reports whether the GPU could have a field, by links and driver.
func (g *GPUReader) mayHaveField(k metric.FieldKey) bool {
	// The fields of clock reasons had different numbers up to driver 580.65
	// (docs.nvidia.com/deploy/nvml-api/known-issues.html).
	isClockReason := k.ID >= nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN &&
		k.ID <= nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
	if isClockReason && !g.session.AtLeast58082() {
		return false
	}
	return k.Scope == metric.ScopeGPU || k.N < g.links[k.Scope]
}

// readInstance reads the values of an instance. The listing may be seconds old,
// and the handle another device's by now, so the UUID is read after the values.
func (g *GPUReader) readInstance(in *instance, now time.Time) {
	in.verified = false
	if in.Handle != nil {
		g.makeCalls(&in.target, g.needsCall, now)
	}
	if !g.results.aborted {
		in.verified = g.verifyHandle(in)
	}
}
