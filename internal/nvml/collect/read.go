package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// Read appends the values of the GPU and of its MIG devices: all fast values, and some new slow values. A failed call costs only the
// rows of the call. A lost GPU, and a GPU without any answer, has no value and an error.
func (g *GPUReader) Read(buf []device.Sample) ([]device.Sample, error) {
	if !g.tryAcquire() {
		return buf, device.ErrStalled
	}
	defer g.release()
	now := time.Now()
	g.collect(now)
	before := len(buf)
	if g.collection.answered && !g.collection.aborted {
		buf = g.appendSamples(buf, now)
	}
	g.responsive.Store(len(buf) > before)
	if len(buf) == before {
		g.forgetAbsences()
		return buf, g.readError()
	}
	return buf, nil
}

// readError returns the reason for a reading without values. INVALID_ARGUMENT may concern the handle, or fields unknown to an old
// driver: ping decides.
func (g *GPUReader) readError() error {
	if g.collection.failure.ret == nvml.ERROR_INVALID_ARGUMENT {
		if err := g.ping(); err != nil {
			return err
		}
	}
	return g.collection.failure.err()
}

// appendSamples appends the values in the order of the rows, MIG devices last.
func (g *GPUReader) appendSamples(buf []device.Sample, now time.Time) []device.Sample {
	if g.latest.Present[metric.ClockEventReasons] { // a seen reason is supported, regardless of the mask
		g.supportedReasons |= uint64(g.latest.Values[metric.ClockEventReasons])
	}
	g.fillFeatures()
	for i := range g.plan.Rows {
		if v, ok := g.rowValue(i, now); ok {
			buf = append(buf, device.Sample{Device: device.ID(g.ID), Metric: i, Value: v})
		}
	}
	for _, in := range g.instances {
		if !in.verified {
			continue
		}
		for _, i := range g.plan.MIGRows {
			if v, ok := g.plan.Rows[i].Convert(&in.latest); ok {
				buf = append(buf, device.Sample{Device: in.device, Metric: i, Value: v})
			}
		}
	}
	return buf
}

// rowValue returns the value of a row, and false without a value.
func (g *GPUReader) rowValue(i int, now time.Time) (float64, bool) {
	r := &g.plan.Rows[i]
	if r.UnlessValue != metric.NoValue && g.latest.Present[r.UnlessValue] {
		return 0, false
	}
	for n, ref := range g.plan.Ranges[i] {
		if r.Monotonic {
			if !g.fieldsOf(r).allDropped(ref) {
				return g.counterValue(i, n, ref, now)
			}
		} else if v, ok := g.sumSource(r, ref, r.Sources[n].Conversion); ok {
			return r.ToValue(v), true
		}
	}
	if r.Bit == 0 || !g.latest.Present[r.ValueID] {
		return r.Convert(&g.latest)
	}
	if uint64(g.latest.Values[r.ValueID])&r.Bit != 0 {
		return 1, true
	}
	return 0, g.supportedReasons&r.Bit != 0
}

// sumSource returns the sum of a source's newest values.
func (g *GPUReader) sumSource(r *metric.Row, ref metric.FieldRange, c metric.Conversion) (sum float64, ok bool) {
	f := g.fieldsOf(r)
	for k := range ref.N {
		raw, known := f.rawValue(ref.Start + k)
		if v, valid := c.Convert(raw); known && valid {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// counterValue returns the value of a monotonic row; ok is false without a value now.
func (g *GPUReader) counterValue(i, source int, ref metric.FieldRange, now time.Time) (total float64, ok bool) {
	r, f := &g.plan.Rows[i], g.fieldsOf(&g.plan.Rows[i])
	if r.Slow { // a value is as old as its reading
		now = g.slowReadAt
	}
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	counter := g.history.counters[i]
	if counter == nil {
		counter = &monotonicCounter{}
		g.history.counters[i] = counter
	}
	maxRise := r.MaxRate * max(now.Sub(counter.updatedAt).Seconds()+1, 0)
	c := r.Sources[source].Conversion
	for k := range ref.N {
		raw, known := f.value(ref.Start + k)
		v, valid := c.Convert(raw)
		if !known || !valid {
			continue
		}
		if !ok { // only a source with a value replaces the previous source
			counter.selectSource(source, ref.N)
			if counter.resets != g.seenResets {
				counter.restart()
			}
			ok = true
		}
		counter.add(k, v, f.wrapsAt(ref.Start+k)*c.Multiplier/c.Divisor, maxRise)
	}
	if ok {
		counter.started, counter.updatedAt, counter.resets = true, now, g.seenResets
	}
	return counter.total, ok
}

// featureFields are fields as proof of a feature, by presence or by a value above 0.
var featureFields = [...]struct {
	id       metric.ValueID
	field    uint32
	positive bool
}{
	{metric.HasECC, nvml.FI_DEV_ECC_CURRENT, false},
	{metric.HasNVLink, nvml.FI_DEV_NVLINK_LINK_COUNT, true},
	{metric.HasRetirement, nvml.FI_DEV_RETIRED_DBE, false},
	{metric.HasRemapping, nvml.FI_DEV_REMAPPED_UNC, false},
	{metric.HasC2C, nvml.FI_DEV_C2C_LINK_COUNT, true},
}

// fillFeatures sets values without a call: MIG modes and features of the GPU. A feature is absent until denials are confirmed.
func (g *GPUReader) fillFeatures() {
	values, mig := &g.latest, g.mig.Load()
	set := func(id metric.ValueID, known, value bool) {
		values.SetBool(nvml.SUCCESS, id, value)
		values.Present[id] = known
	}
	set(metric.HasMIG, mig.Capable || mig.Denied, mig.Capable)
	set(metric.MIGEnabled, mig.Capable, mig.Enabled)
	set(metric.MIGPending, mig.Capable, mig.PendingEnabled)
	set(metric.HasGPM, g.gpm.probed || g.gpm.denials.Confirmed(), g.gpm.supported)
	if !values.Present[metric.HasFabric] {
		set(metric.HasFabric, g.lacksAllCalls(metric.HasFabric), false)
	}
	for _, f := range featureFields {
		at := g.plan.Slow.Index[metric.FieldKey{ID: f.field}]
		v, ok := g.slowFields.value(at)
		set(f.id, ok || g.slowFields.isConfirmedUnsupported(at), ok && (!f.positive || v > 0))
	}
}

// lacksAllCalls reports whether the GPU has at least one call for a value and has denied all of them often enough.
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
