package collect

import (
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// GPM is what Hopper and newer GPUs have instead of NVIDIA's profiler: counters that can
// be sampled by anybody, of the GPU or of one of its GPU instances. What happened between
// two samples is computed from both. One of each is kept, and checks take the next ones, at
// the same distance whoever reads: so nothing ever sleeps, and no reader changes the time
// that another one's values are of.

const (
	// gpmWindow is the time between two samples at least; it is that and the time to the
	// next check. It is a little less than two distances of checks, which are not exact.
	gpmWindow = 9500 * time.Millisecond
	// gpmIdleTimeout is how long samples are taken after a collection.
	gpmIdleTimeout = 5 * time.Minute
)

// gpmSample is a buffer that the library has made. The zero sample is none.
type gpmSample struct {
	nvml.GpmSample
	pointer unsafe.Pointer
}

// gpmSampler keeps the newest sample of a GPU or of a GPU instance.
type gpmSampler struct {
	previous gpmSample
	takenAt  time.Time // when kept was taken; zero: there is nothing in it
	resets   uint64    // of the GPU, when kept was taken
	denials  Denials
}

// reset has the next sample be a first one.
func (s *gpmSampler) reset(r *metric.Values) {
	s.takenAt = time.Time{}
	r.UnsetGPM()
}

// gpmState is what a GPU has for its samplers, and for those of its instances.
type gpmState struct {
	probed, supported bool    // told: the GPU has said whether it is supported
	denials           Denials // of that answer
	gpuSampler        gpmSampler
	next              gpmSample // the next one to be filled
	request           *lib.GPMRequest
}

// needsGPMProbe reports whether the GPU is still to be asked whether it has such counters.
func (g *GPUReader) needsGPMProbe(now time.Time) bool {
	return g.session.Symbols.SupportsGPM() && !g.gpm.probed && !g.gpm.denials.shouldSkip(now)
}

// probeGPM asks it.
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

// noGPUInstance is the instance of a sampler that is the GPU's own.
const noGPUInstance = -1

// takeSamples takes the samples that are due, of the GPU and of its instances. Checks call
// it, which come every five seconds or more often: so a window does not depend on who reads,
// nor how often. While no collection comes it does nothing.
func (g *GPUReader) takeSamples(now time.Time) {
	if !g.gpm.supported || now.Sub(g.lastCollection) > gpmIdleTimeout {
		return
	}
	outer := g.collection // that of a reading whose processes are still to be asked for
	defer func() { g.collection = outer }()
	g.collection = collection{budget: 1 << 20}
	g.updateInstances()
	g.takeSample(&g.gpm.gpuSampler, &g.latest, noGPUInstance, now)
	for _, in := range g.instances {
		switch {
		case g.isAborted():
			return
		case !in.sampler.due(now):
		case g.verifyHandle(in):
			g.takeSample(&in.sampler, &in.latest, in.gi, now)
		default:
			in.reset()
		}
	}
}

// due reports whether the next sample is to be taken.
func (s *gpmSampler) due(now time.Time) bool {
	return !s.denials.shouldSkip(now) && (s.takenAt.IsZero() || now.Sub(s.takenAt) >= gpmWindow)
}

// takeSample takes a sample where one is due, and has in r what happened since the one before.
// It costs three calls at most.
func (g *GPUReader) takeSample(s *gpmSampler, r *metric.Values, instance int, now time.Time) {
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
	r.UnsetGPM()
	if !g.fillSample(into, instance, s, now) || first {
		return
	}
	g.compareSamples(s.previous, g.gpm.next, r)
	s.previous, g.gpm.next, s.takenAt = g.gpm.next, s.previous, now
}

// expire drops the result of a window that ended too long ago, as it does while checks fail.
func (s *gpmSampler) expire(r *metric.Values, now time.Time) {
	if now.Sub(s.takenAt) > maxAge {
		r.UnsetGPM()
	}
}

// fillSample takes a sample, into a buffer that is made where there is none yet.
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
	symbol := "nvmlGpmSampleGet"
	if instance == noGPUInstance {
		ret = g.session.NVML.GpmSampleGet(g.Handle, into.GpmSample)
	} else {
		symbol = "nvmlGpmMigSampleGet"
		ret = g.session.NVML.GpmMigSampleGet(g.Handle, instance, into.GpmSample)
	}
	g.recordResult(symbol, ret)
	switch {
	case ret == nvml.SUCCESS && into == &s.previous:
		s.takenAt = now
	case ret != nvml.SUCCESS:
		s.takenAt = time.Time{} // what it had may be of before the trouble
	}
	s.denials.Record(lib.IsUnavailable(ret), now)
	return ret == nvml.SUCCESS
}

// compareSamples has in r what happened between two samples.
func (g *GPUReader) compareSamples(earlier, later gpmSample, r *metric.Values) {
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
		m := &request.Metrics[i] // what is no share, the row's unit drops
		r.Set(nvml.Return(m.Ret), v.ID, m.Value)
	}
}

// FreeSamples gives back all samples of a GPU, if they are of this Init: those of an earlier one
// went with it.
func (g *GPUReader) FreeSamples(current *lib.Session) {
	free := func(s *gpmSample) {
		if s.GpmSample != nil && g.session == current {
			_ = g.session.NVML.GpmSampleFree(s.GpmSample) // what it answers changes nothing for us
		}
		*s = gpmSample{}
	}
	free(&g.gpm.next)
	free(&g.gpm.gpuSampler.previous)
	g.gpm.gpuSampler.takenAt = time.Time{}
	g.samplesFreed = true
	for _, i := range g.instances {
		free(&i.sampler.previous)
		i.sampler.takenAt = time.Time{}
	}
	for i := range g.unusedSamples {
		free(&g.unusedSamples[i])
	}
	g.unusedSamples = nil
}
