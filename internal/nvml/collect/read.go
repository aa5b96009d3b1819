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
	values.SetBool(metric.HasMIG, mig.Capable || mig.Denials >= DenialsToConfirm, mig.Capable)
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
