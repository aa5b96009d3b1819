package collect

import (
	"time"
	"unsafe"

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

// gpmSample is a buffer of the library. The zero value is no buffer.
type gpmSample struct {
	nvml.GpmSample
	pointer unsafe.Pointer
}

// gpmSampler keeps the newest sample of a GPU or of a GPU instance.
type gpmSampler struct {
	previous gpmSample
	takenAt  time.Time // zero: previous is empty
	resets   uint64    // of the GPU, when previous was taken
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

// due reports whether the next sample is to be taken.
func (s *gpmSampler) due(now time.Time) bool {
	return !s.denials.shouldSkip(now) && (s.takenAt.IsZero() || now.Sub(s.takenAt) >= gpmWindow)
}

// gpmState is shared by all samplers of a GPU.
type gpmState struct {
	probed, supported bool
	denials           Denials   // of the probe
	next              gpmSample // to be filled next
	request           *lib.GPMRequest
}

func (g *GPUReader) needsGPMProbe(now time.Time) bool {
	return g.session.Symbols.SupportsGPM() && !g.gpm.probed && !g.gpm.denials.shouldSkip(now)
}

// probeGPM reads whether the GPU supports GPM.
func (g *GPUReader) probeGPM(now time.Time) {
	support, ret := g.session.NVML.GpmQueryDeviceSupport(g.Handle)
	g.gpm.denials.Record(lib.IsUnavailable(ret), now)
	g.gpm.probed = ret == nvml.SUCCESS
	g.gpm.supported = ret == nvml.SUCCESS && support.IsSupportedDevice != 0
	if !g.gpm.supported {
		return
	}
	g.gpm.request = &lib.GPMRequest{Version: nvml.GPM_METRICS_GET_VERSION, Count: uint32(len(metric.GPMValues))}
	for i, v := range metric.GPMValues {
		g.gpm.request.Metrics[i].ID = uint32(v.Metric)
	}
}

// noGPUInstance selects the GPU itself.
const noGPUInstance = -1

// takeSamples takes due samples of the GPU and the instances, unless collections have stopped. Checks call it every five seconds or more often.
func (g *GPUReader) takeSamples(now time.Time) {
	if !g.gpm.supported || now.Sub(g.lastCollection) > gpmIdleTimeout {
		return
	}
	outer := g.collection // of a reading whose processes are still to be read
	defer func() { g.collection = outer }()
	g.collection = collection{budget: unlimitedCalls}
	g.updateInstances()
	g.takeSample(&g.readTarget, noGPUInstance, now)
	for _, in := range g.instances {
		switch {
		case g.isAborted():
			return
		case !in.sampler.due(now):
		case g.verifyHandle(in):
			g.takeSample(&in.readTarget, in.gi, now)
		default:
			in.reset()
		}
	}
}

// takeSample takes a due sample, and reads the metrics since the previous sample, with at most three calls.
func (g *GPUReader) takeSample(t *readTarget, instance int, now time.Time) {
	s := &t.sampler
	if !g.gpm.supported || !s.due(now) {
		return
	}
	resets := g.history.resets.Load()
	first := s.takenAt.IsZero() || now.Sub(s.takenAt) > maxAge || s.resets != resets
	into := &g.gpm.next
	if first {
		into = &s.previous
	}
	s.resets = resets
	t.latest.UnsetGPM()
	if !g.fillSample(into, instance, s, now) || first {
		return
	}
	g.compareSamples(s.previous, g.gpm.next, &t.latest)
	s.previous, g.gpm.next, s.takenAt = g.gpm.next, s.previous, now
}

// fillSample takes a sample, into a new buffer if there is none.
func (g *GPUReader) fillSample(into *gpmSample, instance int, s *gpmSampler, now time.Time) bool {
	if into.GpmSample == nil {
		if g.samplesFreed || !g.spendCall() {
			return false
		}
		allocated, ret := g.session.NVML.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return false
		}
		*into = gpmSample{allocated, lib.PointerOf(allocated)}
	}
	if !g.spendCall() {
		return false
	}
	var ret nvml.Return
	if instance == noGPUInstance {
		ret = g.session.NVML.GpmSampleGet(g.Handle, into.GpmSample)
		g.recordResult("nvmlGpmSampleGet", ret)
	} else {
		ret = g.session.NVML.GpmMigSampleGet(g.Handle, instance, into.GpmSample)
		g.recordResult("nvmlGpmMigSampleGet", ret)
	}
	switch {
	case ret == nvml.SUCCESS && into == &s.previous:
		s.takenAt = now
	case ret != nvml.SUCCESS:
		s.takenAt = time.Time{} // previous may be from before the trouble
	}
	s.denials.Record(lib.IsUnavailable(ret), now)
	return ret == nvml.SUCCESS
}

// compareSamples reads the metrics between two samples.
func (g *GPUReader) compareSamples(earlier, later gpmSample, values *metric.Values) {
	if !g.spendCall() {
		return
	}
	request := g.gpm.request
	request.Earlier, request.Later = uintptr(earlier.pointer), uintptr(later.pointer)
	for i := range metric.GPMValues {
		request.Metrics[i].Ret = uint32(nvml.ERROR_UNKNOWN)
	}
	ret := lib.GPMMetrics(g.session.Raw.GPMMetricsGet, request)
	g.recordResult("nvmlGpmMetricsGet", ret)
	if ret != nvml.SUCCESS {
		return
	}
	for i, v := range metric.GPMValues {
		values.Set(nvml.Return(request.Metrics[i].Ret), v.ID, request.Metrics[i].Value)
	}
}

// FreeSamples frees all samples of an unlisted GPU. Samples of an earlier Init are already gone. The caller holds the lock.
func (g *GPUReader) FreeSamples(current *lib.Session) {
	free := func(s *gpmSample) {
		if s.GpmSample != nil && g.session == current {
			_ = g.session.NVML.GpmSampleFree(s.GpmSample) // a failure changes nothing
		}
		*s = gpmSample{}
	}
	g.samplesFreed = true
	free(&g.gpm.next)
	for i := range g.unusedSamples {
		free(&g.unusedSamples[i])
	}
	g.unusedSamples = nil
	free(&g.sampler.previous)
	g.sampler.takenAt = time.Time{}
	for _, in := range g.instances {
		free(&in.sampler.previous)
		in.sampler.takenAt = time.Time{}
	}
}
