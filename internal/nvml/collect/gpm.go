package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// GPM replaces NVIDIA's profiler on Hopper and newer: counters of a GPU or GPU
// instance, without privileges. Metrics derive from two samples. Checks take
// the samples, at a fixed distance: no call sleeps, and readers do not change
// windows.

// gpmIdleTimeout is the time from the newest collection until sampling stops.
const gpmIdleTimeout = 5 * time.Minute

func (g *GPUReader) supportsGPM() bool {
	return g.session.Symbols.HasAll(lib.GPMFunctions) && g.latest.Present[metric.GPMSupport] &&
		g.latest.Values[metric.GPMSupport] != 0
}

// noGPUInstance selects the GPU itself.
const noGPUInstance = -1

// takeSamples takes due samples of the GPU and the instances, unless
// collections have stopped. Checks call it every five seconds or more often.
func (g *GPUReader) takeSamples(now time.Time) {
	if !g.supportsGPM() || now.Sub(g.collectedAt) > gpmIdleTimeout {
		return
	}
	g.results = callResults{}
	g.updateInstances()
	g.takeSample(&g.target, noGPUInstance, now)
	for _, in := range g.instances {
		if !g.results.aborted && len(in.members) > 0 && in.sampler.due(now) && g.verifyHandle(in) {
			g.takeSample(&in.target, in.gi, now)
		}
	}
}

// takeSample takes a due sample, and reads the metrics since the previous
// sample.
func (g *GPUReader) takeSample(t *target, instance int, now time.Time) {
	s := &t.sampler
	if !g.supportsGPM() || !s.due(now) {
		return
	}
	t.latest.UnsetGPM()
	if !g.allocateSamples(s) {
		return
	}
	resets := g.history.resets.Load()
	symbol, ret := "nvmlGpmSampleGet", nvml.SUCCESS
	if instance == noGPUInstance {
		ret = g.session.NVML.GpmSampleGet(g.Handle, s.next)
	} else {
		symbol, ret = "nvmlGpmMigSampleGet", g.session.NVML.GpmMigSampleGet(g.Handle, instance, s.next)
	}
	g.recordResult(symbol, ret)
	s.record(ret, now)
	if ret != nvml.SUCCESS { // the next sample is a first one
		s.takenAt = time.Time{}
		return
	}
	if now.Sub(s.takenAt) <= maxWindowAge && s.resets == resets {
		g.compareSamples(s, instance, &t.latest)
	}
	s.previous, s.next = s.next, s.previous
	s.takenAt, s.resets = now, resets
}

// allocateSamples allocates missing samples, and reports whether both are there.
func (g *GPUReader) allocateSamples(s *gpmSampler) bool {
	for _, sample := range []*nvml.GpmSample{&s.previous, &s.next} {
		if *sample != nil {
			continue
		}
		if g.freed {
			return false
		}
		allocated, ret := g.session.NVML.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return false
		}
		*sample = allocated
	}
	return true
}

// compareSamples reads the metrics between both samples.
func (g *GPUReader) compareSamples(s *gpmSampler, instance int, values *metric.Values) {
	metrics := make([]nvml.GpmMetric, len(metric.GPMValues))
	for i, v := range metric.GPMValues {
		metrics[i] = nvml.GpmMetric{MetricId: uint32(v.Metric), NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}
	}
	ret := lib.GPMMetrics(g.Handle, instance, s.previous, s.next, metrics)
	g.recordResult("nvmlGpmMetricsGet", ret)
	if ret != nvml.SUCCESS {
		return
	}
	for i, v := range metric.GPMValues {
		if nvml.Return(metrics[i].NvmlReturn) == nvml.SUCCESS {
			values.Set(v.ID, metrics[i].Value)
		}
	}
}

// FreeSamples frees all samples of an unlisted GPU. Samples of an earlier Init
// are already gone. The caller holds Mu.
func (g *GPUReader) FreeSamples(current *lib.Session) {
	samplers := []*gpmSampler{&g.sampler}
	for _, in := range g.instances {
		samplers = append(samplers, &in.sampler)
	}
	for _, s := range samplers {
		for _, sample := range []nvml.GpmSample{s.previous, s.next} {
			if sample != nil && g.session == current {
				_ = g.session.NVML.GpmSampleFree(sample) // a failure changes nothing
			}
		}
		*s = gpmSampler{}
	}
	g.freed = true
}
