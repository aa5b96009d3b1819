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
		if !g.results.aborted && in.sampler.due(now) && g.verifyHandle(in) {
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
	sample := g.takeBuffer()
	if sample == nil {
		return
	}
	resets := g.history.resets.Load()
	symbol, ret := "nvmlGpmSampleGet", nvml.SUCCESS
	if instance == noGPUInstance {
		ret = g.session.NVML.GpmSampleGet(g.Handle, sample)
	} else {
		symbol, ret = "nvmlGpmMigSampleGet", g.session.NVML.GpmMigSampleGet(g.Handle, instance, sample)
	}
	g.recordResult(symbol, ret)
	s.record(ret, now)
	if ret == nvml.SUCCESS && now.Sub(s.takenAt) <= maxWindowAge && s.resets == resets {
		g.compareSamples(s.previous, sample, &t.latest)
	}
	g.dropSample(s)
	s.previous, s.resets = sample, resets
	if ret == nvml.SUCCESS { // otherwise the next sample is a first one
		s.takenAt = now
	}
}

func (g *GPUReader) takeBuffer() nvml.GpmSample {
	if last := len(g.buffers) - 1; last >= 0 {
		buffer := g.buffers[last]
		g.buffers = g.buffers[:last]
		return buffer
	}
	if g.freed {
		return nil
	}
	buffer, ret := g.session.NVML.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil
	}
	return buffer
}

// compareSamples reads the metrics between two samples.
func (g *GPUReader) compareSamples(earlier, later nvml.GpmSample, values *metric.Values) {
	request := nvml.GpmMetricsGetType{NumMetrics: uint32(len(metric.GPMValues)), Sample1: earlier, Sample2: later}
	for i, v := range metric.GPMValues {
		request.Metrics[i] = nvml.GpmMetric{MetricId: uint32(v.Metric), NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}
	}
	ret := g.session.NVML.GpmMetricsGet(&request)
	g.recordResult("nvmlGpmMetricsGet", ret)
	if ret != nvml.SUCCESS {
		return
	}
	for i, v := range metric.GPMValues {
		if nvml.Return(request.Metrics[i].NvmlReturn) == nvml.SUCCESS {
			values.Set(v.ID, request.Metrics[i].Value)
		}
	}
}

// FreeSamples frees all samples of an unlisted GPU. Samples of an earlier Init
// are already gone. The caller holds Mu.
func (g *GPUReader) FreeSamples(current *lib.Session) {
	g.dropSample(&g.sampler)
	for _, in := range g.instances {
		g.dropSample(&in.sampler)
	}
	for _, buffer := range g.buffers {
		if g.session == current {
			_ = g.session.NVML.GpmSampleFree(buffer) // a failure changes nothing
		}
	}
	g.buffers, g.freed = nil, true
}
