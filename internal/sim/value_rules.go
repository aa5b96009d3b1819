package sim

import "time"

// valueRule computes the values of a metric family, or of rows with a label. The first matching rule counts.
type valueRule struct {
	family   string
	label    string       // `type="min|max"`; empty: all rows
	features modelFeature // GPUs without all features have no value
	value    valueFunc
}

// valueFunc computes a value of a GPU.
type valueFunc func(g *simGPU, now time.Time) float64

func constant(v float64) valueFunc { return func(*simGPU, time.Time) float64 { return v } }

func fromModel(value func(m *Model) float64) valueFunc {
	return func(g *simGPU, _ time.Time) float64 { return value(g.model) }
}

// linearInLoad grows by perLoad from idle to full load.
func linearInLoad(idle, perLoad float64) valueFunc {
	return func(g *simGPU, _ time.Time) float64 { return idle + perLoad*g.load() }
}

// interpolateByLoad grows from a model's value at idle to the value at full load.
func interpolateByLoad(idle, full func(m *Model) float64) valueFunc {
	return func(g *simGPU, _ time.Time) float64 {
		low := idle(g.model)
		return low + (full(g.model)-low)*g.load()
	}
}

// perLoadSecond is a counter with the rate perSecond at full load.
func perLoadSecond(perSecond func(m *Model) float64) valueFunc {
	return func(g *simGPU, now time.Time) float64 { return perSecond(g.model) * g.totalLoadSeconds(now) }
}

func supportsFeature(f modelFeature) valueFunc {
	return fromModel(func(m *Model) float64 { return boolValue(m.features&f == f) })
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
