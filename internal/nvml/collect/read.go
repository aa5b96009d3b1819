package collect

import (
	"cmp"
	"errors"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// Read returns the values of the GPU and of its MIG devices: all fast values,
// and all due slow values. A failed call costs only the rows of the call. A
// lost GPU, and a GPU without any answer, has no value and an error.
func (g *GPUReader) Read() ([]device.Sample, error) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.collect(time.Now())
	var samples []device.Sample
	if g.results.answered && !g.results.aborted {
		samples = g.samples()
	}
	g.Responsive.Store(len(samples) > 0)
	if len(samples) == 0 {
		g.forget()
		return nil, g.readError()
	}
	return samples, nil
}

// readError returns the reason for a reading without values. INVALID_ARGUMENT
// may concern the handle, or fields unknown to an old driver: ping decides.
func (g *GPUReader) readError() error {
	err := g.results.failure
	if err == nil {
		return errors.New("the GPU has no readable metrics")
	}
	if errors.Is(err, lib.Error(nvml.ERROR_INVALID_ARGUMENT)) {
		return cmp.Or(g.ping(), err)
	}
	return err
}

// samples returns the values in the order of the rows, MIG devices last.
func (g *GPUReader) samples() []device.Sample {
	g.fillFeatures()
	samples := make([]device.Sample, 0, len(g.plan.Rows)+len(g.instances)*len(g.plan.MIGRows))
	for i := range g.plan.Rows {
		if v, ok := g.rowValue(i); ok {
			samples = append(samples, device.Sample{Device: device.ID(g.ID), Metric: i, Value: v})
		}
	}
	for _, in := range g.instances {
		if !in.verified {
			continue
		}
		for _, i := range g.plan.MIGRows {
			if v, ok := g.plan.Rows[i].Convert(&in.latest); ok {
				samples = append(samples, device.Sample{Device: in.members[0].ID, Metric: i, Value: v})
			}
		}
	}
	return samples
}

// rowValue returns the value of a row, and false without a value.
func (g *GPUReader) rowValue(i int) (float64, bool) {
	r := &g.plan.Rows[i]
	if r.UnlessValue != metric.NoValue && g.latest.Present[r.UnlessValue] {
		return 0, false
	}
	for n, ref := range g.plan.Ranges[i] {
		if r.Monotonic {
			if !g.fields.lacksAll(ref) {
				return g.counterValue(i, n, ref)
			}
		} else if v, ok := g.sumSource(ref, r.Sources[n].Conversion); ok {
			return r.ToValue(v), true
		}
	}
	if r.IsFeature {
		return 0, g.fields.fields[g.plan.Ranges[i][0].Start].confirmed()
	}
	if r.Bit == 0 || !g.latest.Present[r.ValueID] {
		return r.Convert(&g.latest)
	}
	if uint64(g.latest.Values[r.ValueID])&r.Bit != 0 {
		g.seenReasons |= r.Bit
		return 1, true
	}
	supported := uint64(g.latest.Values[metric.SupportedClockReasons]) | g.seenReasons
	return 0, !g.latest.Present[metric.SupportedClockReasons] || supported&r.Bit != 0
}

func (g *GPUReader) sumSource(ref metric.FieldRange, c metric.Conversion) (sum float64, ok bool) {
	f := &g.fields
	for k := range ref.N {
		raw, known := f.rawValue(ref.Start + k)
		if v, valid := c.Convert(raw); known && valid {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// counterValue returns the value of a monotonic row; ok is false without a
// value now.
func (g *GPUReader) counterValue(i, source int, ref metric.FieldRange) (total float64, ok bool) {
	r, f := &g.plan.Rows[i], &g.fields
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	counter := g.history.counters[i]
	if counter == nil {
		counter = &monotonicCounter{}
		g.history.counters[i] = counter
	}
	before, c := counter.updatedAt, r.Sources[source].Conversion
	for k := range ref.N {
		raw, known := f.value(ref.Start + k)
		v, valid := c.Convert(raw)
		if !known || !valid {
			continue
		}
		if !ok { // only a source with a value replaces the previous source
			counter.begin(source, ref.N, g.seenResets)
			ok = true
		}
		counter.updatedAt = f.fields[ref.Start+k].madeAt
		maxRise := r.MaxRate * max(counter.updatedAt.Sub(before).Seconds()+1, 0)
		counter.add(k, v, f.wrapsAt(ref.Start+k)*c.Multiplier/c.Divisor, maxRise)
	}
	if ok {
		counter.started, counter.resets = true, g.seenResets
	}
	return counter.total, ok
}

// fillFeatures sets values without a call: MIG modes and features of the GPU. A
// feature is absent until denials are confirmed.
func (g *GPUReader) fillFeatures() {
	values, mig := &g.latest, g.MIG.Load()
	values.SetBool(metric.HasMIG, mig.Capable || mig.Denials >= denialsToConfirm, mig.Capable)
	values.SetBool(metric.MIGEnabled, mig.Capable, mig.Enabled)
	values.SetBool(metric.MIGPending, mig.Capable, mig.PendingEnabled)
	gpmKnown := values.Present[metric.GPMSupport] || g.lacksAllCalls(metric.GPMSupport)
	values.SetBool(metric.HasGPM, gpmKnown && g.session.Symbols.HasAll(lib.GPMFunctions), g.supportsGPM())
	if !values.Present[metric.HasFabric] {
		values.SetBool(metric.HasFabric, g.lacksAllCalls(metric.HasFabric), false)
	}
}

// lacksAllCalls reports whether the GPU has at least one call for a value and
// has denied all of them often enough.
func (g *GPUReader) lacksAllCalls(id metric.ValueID) bool {
	lacks := false
	for i := range metric.Calls {
		if !metric.Calls[i].Provides(id) || !g.canFind(i) {
			continue
		}
		if !g.attempts[i].confirmed() {
			return false
		}
		lacks = true
	}
	return lacks
}

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

func (g *GPUReader) needsCall(i int) bool { return g.plan.NeedsCall[i] || g.isCheckCall(i) }

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
	if len(in.members) == 0 {
		return
	}
	g.makeCalls(&in.target, g.needsCall, now)
	if !g.results.aborted {
		in.verified = g.verifyHandle(in)
	}
}
