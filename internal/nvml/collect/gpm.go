package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// GPM replaces NVIDIA's profiler on Hopper and newer: counters of a GPU or GPU instance, without privileges. Metrics derive from two
// samples. Checks take the samples, at a fixed distance: no call sleeps, and readers do not change windows.

const (
	// gpmWindow is the minimum time between two samples: a little less than two inexact intervals of checks.
	gpmWindow = 9500 * time.Millisecond
	// gpmIdleTimeout is the time from the newest collection until sampling stops.
	gpmIdleTimeout = 5 * time.Minute
)

// gpmSampler keeps the newest sample of a GPU or of a GPU instance.
type gpmSampler struct {
	previous nvml.GpmSample // nil: no buffer
	takenAt  time.Time      // zero: previous is empty
	resets   uint64         // of the GPU, when previous was taken
	denials  Denials
}

// reset makes the next sample a first one.
func (s *gpmSampler) reset(values *metric.Values) {
	s.takenAt = time.Time{}
	values.UnsetGPM()
}

// expire drops the metrics of an old window, as while checks fail.
func (s *gpmSampler) expire(values *metric.Values, now time.Time) {
	if now.Sub(s.takenAt) > maxAge {
		values.UnsetGPM()
	}
}

func (s *gpmSampler) due(now time.Time) bool {
	return !s.denials.shouldSkip(now) && (s.takenAt.IsZero() || now.Sub(s.takenAt) >= gpmWindow)
}

// gpmState is shared by all samplers of a GPU.
type gpmState struct {
	buffers []nvml.GpmSample // not in use
	// freed is set when the GPU is no longer listed: calls under way allocate no further buffers. Guarded by the GPU's mutex.
	freed bool
}

func (g *GPUReader) supportsGPM() bool {
	return g.session.Symbols.HasAll(lib.GPMFunctions) && g.latest.Present[metric.GPMSupport] && g.latest.Values[metric.GPMSupport] != 0
}

// noGPUInstance selects the GPU itself.
const noGPUInstance = -1

// takeSamples takes due samples of the GPU and the instances, unless collections have stopped. Checks call it every five seconds or more often.
func (g *GPUReader) takeSamples(now time.Time) {
	if !g.supportsGPM() || now.Sub(g.lastCollection) > gpmIdleTimeout {
		return
	}
	g.collection = collection{budget: unlimitedCalls}
	g.updateInstances()
	g.takeSample(&g.readTarget, noGPUInstance, now)
	for _, in := range g.instances {
		switch {
		case g.collection.aborted:
			return
		case !in.sampler.due(now):
		case g.verifyHandle(in):
			g.takeSample(&in.readTarget, in.gi, now)
		default:
			in.reset()
		}
	}
}

// takeSample takes a due sample, and reads the metrics since the previous sample, with at most three calls beyond the budget.
func (g *GPUReader) takeSample(t *readTarget, instance int, now time.Time) {
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
	s.denials.Record(lib.IsUnavailable(ret), now)
	if ret == nvml.SUCCESS && now.Sub(s.takenAt) <= maxAge && s.resets == resets {
		g.compareSamples(s.previous, sample, &t.latest)
	}
	g.dropSample(s)
	s.previous, s.resets = sample, resets
	if ret == nvml.SUCCESS { // otherwise the next sample is a first one
		s.takenAt = now
	}
}

func (g *GPUReader) takeBuffer() nvml.GpmSample {
	if last := len(g.gpm.buffers) - 1; last >= 0 {
		buffer := g.gpm.buffers[last]
		g.gpm.buffers = g.gpm.buffers[:last]
		return buffer
	}
	if g.gpm.freed {
		return nil
	}
	buffer, ret := g.session.NVML.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil
	}
	return buffer
}

// dropSample makes the buffer of a sampler available for further samples.
func (g *GPUReader) dropSample(s *gpmSampler) {
	if s.previous != nil {
		g.gpm.buffers = append(g.gpm.buffers, s.previous)
	}
	s.previous, s.takenAt = nil, time.Time{}
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

// FreeSamples frees all samples of an unlisted GPU. Samples of an earlier Init are already gone. The caller holds the lock.
func (g *GPUReader) FreeSamples(current *lib.Session) {
	g.dropSample(&g.sampler)
	for _, in := range g.instances {
		g.dropSample(&in.sampler)
	}
	for _, buffer := range g.gpm.buffers {
		if g.session == current {
			_ = g.session.NVML.GpmSampleFree(buffer) // a failure changes nothing
		}
	}
	g.gpm.buffers, g.gpm.freed = nil, true
}
