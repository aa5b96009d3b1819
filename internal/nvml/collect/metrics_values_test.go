package collect

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// ageSamples has all GPM samples of a GPU be older by a while, so that the next reading is not
// too close to them.
func (s *readerFixture) ageSamples(i int, by time.Duration) {
	g := s.gpu(i)
	older := func(sampler *gpmSampler) {
		if !sampler.takenAt.IsZero() {
			sampler.takenAt = sampler.takenAt.Add(-by)
		}
	}
	older(&g.sampler)
	for _, in := range g.instances {
		older(&in.sampler)
	}
}

// closeWindow has a check find that the window between two GPM samples is over.
func (s *readerFixture) closeWindow(i int) {
	s.Helper()
	s.ageSamples(i, gpmWindow)
	_, _ = s.Check(s.id(i)) // what it finds is of no matter here
}

// settledValues reads when there is something between two samples.
func (s *readerFixture) settledValues(i int) map[string]float64 {
	s.Helper()
	s.values(i)
	s.closeWindow(i)
	s.closeWindow(i)
	return rounded(s.values(i))
}

// rounded is without what a mean over a short time is wrong by.
func rounded(values map[string]float64) map[string]float64 {
	for name, v := range values {
		if strings.HasSuffix(name, "_ratio") || strings.HasPrefix(name, "nvidia_gpu_pipe") {
			values[name] = math.Round(v*1e6) / 1e6
		}
	}
	return values
}

func TestRows(t *testing.T) {
	s := newListedFixture(t, append(nvmltest.BusyGPU, "gpus 1")...)
	got := s.settledValues(0)
	for name, want := range nvmltest.BusyValues {
		if value, read := got[name]; !read || value != want {
			t.Errorf("%s is %v, %v, want %v", name, value, read, want)
		}
	}
	if len(got) != len(nvmltest.BusyValues) {
		t.Errorf("%d values, want %d", len(got), len(nvmltest.BusyValues))
	}
	old := newListedFixture(t, slices.Concat(nvmltest.BusyGPU, nvmltest.OldMemoryScenario, []string{"gpus 1"})...).settledValues(0)
	for name, want := range nvmltest.OldDriverValues {
		if value, read := old[name]; !read || value != want {
			t.Errorf("%s is %v, %v, want %v", name, value, read, want)
		}
	}
	for name := range old { // which of both it is depends on the generation
		if _, known := nvmltest.OldDriverValues[name]; !known && old[name] != nvmltest.BusyValues[name] {
			t.Errorf("%s is %v, want %v", name, old[name], nvmltest.BusyValues[name])
		}
		if strings.Contains(name, "sram") {
			t.Errorf("there is %s", name)
		}
	}
	for _, m := range metric.Metrics() {
		_, known := nvmltest.BusyValues[seriesName(m)]
		if _, old := nvmltest.OldDriverValues[seriesName(m)]; !known && !old {
			t.Errorf("no case for %s", seriesName(m))
		}
	}
}
