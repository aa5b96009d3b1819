package collect_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// closeWindow lets a check end the window between two GPM samples.
func (s *readerFixture) closeWindow(i int) {
	s.Helper()
	time.Sleep(gpmWindow)
	_, _ = s.Check(s.id(i)) // the result is irrelevant here
}

// settledValues reads a GPU after the end of a GPM window.
func (s *readerFixture) settledValues(i int) map[string]float64 {
	s.Helper()
	s.values(i)
	s.closeWindow(i)
	s.closeWindow(i)
	return rounded(s.values(i))
}

// rounded removes the error of a mean over a short window.
func rounded(values map[string]float64) map[string]float64 {
	for name, v := range values {
		if strings.HasSuffix(name, "_ratio") || strings.HasPrefix(name, "nvidia_gpu_pipe") {
			values[name] = math.Round(v*1e6) / 1e6
		}
	}
	return values
}

func TestRows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newListedFixture(t, append(nvmltest.BusyGPU, "gpus 1")...)
		got := s.settledValues(0)
		for name, want := range nvmltest.BusyValues {
			if value, read := got[name]; !read || value != want {
				t.Errorf("%s: got %v, %v, want %v", name, value, read, want)
			}
		}
		if len(got) != len(nvmltest.BusyValues) {
			t.Errorf("got %d values, want %d", len(got), len(nvmltest.BusyValues))
		}
		old := newListedFixture(t, slices.Concat(nvmltest.BusyGPU, nvmltest.OldMemoryScenario,
			[]string{"gpus 1"})...).settledValues(0)
		for name, want := range nvmltest.OldDriverValues {
			if value, read := old[name]; !read || value != want {
				t.Errorf("%s: got %v, %v, want %v", name, value, read, want)
			}
		}
		for name := range old { // depends on the generation
			if _, known := nvmltest.OldDriverValues[name]; !known && old[name] != nvmltest.BusyValues[name] {
				t.Errorf("%s: got %v, want %v", name, old[name], nvmltest.BusyValues[name])
			}
			if strings.Contains(name, "sram") {
				t.Errorf("got %s, want no SRAM metrics of an old driver", name)
			}
		}
		for _, m := range metric.Metrics() {
			_, known := nvmltest.BusyValues[seriesName(m)]
			if _, old := nvmltest.OldDriverValues[seriesName(m)]; !known && !old {
				t.Errorf("test case for %s is missing", seriesName(m))
			}
		}
	})
}
