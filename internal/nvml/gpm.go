package nvml

import (
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
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
	// gpmWantedFor is how long samples are taken after a collection.
	gpmWantedFor = 5 * time.Minute
)

// gpmIDs are the metrics, in the order of the slots from gpmGraphics on.
var gpmIDs = [...]nvml.GpmMetricId{
	nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_INTEGER_UTIL,
	nvml.GPM_METRIC_ANY_TENSOR_UTIL, nvml.GPM_METRIC_DFMA_TENSOR_UTIL, nvml.GPM_METRIC_HMMA_TENSOR_UTIL,
	nvml.GPM_METRIC_IMMA_TENSOR_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_FP64_UTIL,
	nvml.GPM_METRIC_FP32_UTIL, nvml.GPM_METRIC_FP16_UTIL,
}

// gpmFunctions serve only together.
var gpmFunctions = [...]string{
	"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree",
	"nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
}

func (has symbols) gpm() bool { return has.all(gpmFunctions[:]) }

// sample is a buffer that the library has made. The zero sample is none.
type sample struct {
	nvml.GpmSample
	pointer unsafe.Pointer
}

// sampler keeps the newest sample of a GPU or of a GPU instance.
type sampler struct {
	kept   sample
	at     time.Time // when kept was taken; zero: there is nothing in it
	resets uint64    // of the GPU, when kept was taken
	absent absence
}

// forget has the next sample be a first one.
func (s *sampler) forget(r *reading) {
	s.at = time.Time{}
	r.emptyGPM()
}

func (r *reading) emptyGPM() { clear(r.filled[gpmGraphics:]) }

// gpm is what a GPU has for its samplers, and for those of its instances.
type gpm struct {
	told, supported bool    // told: the GPU has said whether it is supported
	absent          absence // of that answer
	own             sampler
	spare           sample // the next one to be filled
	get             *gpmGet
}

// asksGPM reports whether the GPU is still to be asked whether it has such counters.
func (g *gpu) asksGPM(now time.Time) bool {
	return g.driver.has.gpm() && !g.gpm.told && !g.gpm.absent.hides(now)
}

// askGPM asks it.
func (g *gpu) askGPM(now time.Time) {
	support, ret := g.driver.lib.GpmQueryDeviceSupport(g.handle)
	g.gpm.absent.note(lacking(ret), now)
	g.gpm.told = ret == nvml.SUCCESS
	g.gpm.supported = ret == nvml.SUCCESS && support.IsSupportedDevice != 0
	if !g.gpm.supported {
		return
	}
	g.gpm.get = &gpmGet{version: nvml.GPM_METRICS_GET_VERSION, count: uint32(len(gpmIDs))}
	for i, id := range gpmIDs {
		g.gpm.get.metrics[i].id = uint32(id)
	}
}

// wholeGPU is the instance of a sampler that is the GPU's own.
const wholeGPU = -1

// takeWindows takes the samples that are due, of the GPU and of its instances. Checks call
// it, which come every five seconds or more often: so a window does not depend on who reads,
// nor how often. While no collection comes it does nothing.
func (g *gpu) takeWindows(now time.Time) {
	if !g.gpm.supported || now.Sub(g.wantedAt) > gpmWantedFor {
		return
	}
	under := g.flight // that of a reading whose processes are still to be asked for
	defer func() { g.flight = under }()
	g.flight = flight{left: 1 << 20}
	g.regroup()
	g.sampled(&g.gpm.own, &g.reading, wholeGPU, now)
	for _, in := range g.instances {
		switch {
		case g.failing():
			return
		case !in.sampler.due(now):
		case g.isStill(in):
			g.sampled(&in.sampler, &in.reading, in.gi, now)
		default:
			in.forget()
		}
	}
}

// due reports whether the next sample is to be taken.
func (s *sampler) due(now time.Time) bool {
	return !s.absent.hides(now) && (s.at.IsZero() || now.Sub(s.at) >= gpmWindow)
}

// sampled takes a sample where one is due, and has in r what happened since the one before.
// It costs three calls at most.
func (g *gpu) sampled(s *sampler, r *reading, instance int, now time.Time) {
	if !g.gpm.supported || !s.due(now) {
		return
	}
	resets := uint64(0)
	if g.history != nil { // it is not there before the GPU is listed
		resets = g.history.resets.Load()
	}
	first := s.at.IsZero() || now.Sub(s.at) > maxAge || s.resets != resets
	into := &g.gpm.spare
	if first {
		into = &s.kept
	}
	s.resets = resets
	r.emptyGPM()
	if !g.fill(into, instance, s, now) || first {
		return
	}
	g.compare(s.kept, g.gpm.spare, r)
	s.kept, g.gpm.spare, s.at = g.gpm.spare, s.kept, now
}

// expire drops the result of a window that ended too long ago, as it does while checks fail.
func (s *sampler) expire(r *reading, now time.Time) {
	if now.Sub(s.at) > maxAge {
		r.emptyGPM()
	}
}

// fill takes a sample, into a buffer that is made where there is none yet.
func (g *gpu) fill(into *sample, instance int, s *sampler, now time.Time) bool {
	if into.GpmSample == nil {
		if g.freed || !g.spend() {
			return false
		}
		made, ret := g.driver.lib.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return false
		}
		*into = sample{made, pointerOf(made)}
	}
	if !g.spend() {
		return false
	}
	var ret nvml.Return
	symbol := "nvmlGpmSampleGet"
	if instance == wholeGPU {
		ret = g.driver.lib.GpmSampleGet(g.handle, into.GpmSample)
	} else {
		symbol = "nvmlGpmMigSampleGet"
		ret = g.driver.lib.GpmMigSampleGet(g.handle, instance, into.GpmSample)
	}
	g.note(symbol, ret)
	switch {
	case ret == nvml.SUCCESS && into == &s.kept:
		s.at = now
	case ret != nvml.SUCCESS:
		s.at = time.Time{} // what it had may be of before the trouble
	}
	s.absent.note(lacking(ret), now)
	return ret == nvml.SUCCESS
}

// compare has in r what happened between two samples.
func (g *gpu) compare(earlier, later sample, r *reading) {
	if !g.spend() {
		return
	}
	get := g.gpm.get
	get.earlier, get.later = uintptr(earlier.pointer), uintptr(later.pointer)
	for i := range gpmIDs {
		get.metrics[i].ret = uint32(nvml.ERROR_UNKNOWN)
	}
	ret := gpmMetrics(g.driver.direct.gpmMetrics, get)
	g.note("nvmlGpmMetricsGet", ret)
	if ret != nvml.SUCCESS {
		return
	}
	for i := range gpmIDs {
		m := &get.metrics[i] // what is no share, the row's unit drops
		r.set(nvml.Return(m.ret), gpmGraphics+slot(i), m.value)
	}
}

// free gives back all samples of a GPU, if they are of this Init: those of an earlier one
// went with it.
func (g *gpu) free(now *driver) {
	free := func(s *sample) {
		if s.GpmSample != nil && g.driver == now {
			_ = g.driver.lib.GpmSampleFree(s.GpmSample) // what it answers changes nothing for us
		}
		*s = sample{}
	}
	free(&g.gpm.spare)
	free(&g.gpm.own.kept)
	g.gpm.own.at = time.Time{}
	g.freed = true
	for _, i := range g.instances {
		free(&i.sampler.kept)
		i.sampler.at = time.Time{}
	}
	for i := range g.unused {
		free(&g.unused[i])
	}
	g.unused = nil
}
