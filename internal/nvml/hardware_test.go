package nvml_test

import (
	"cmp"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
)

// TestHardware calls a real driver, under NVIDIA_DRIVER_ROOT or /, and logs its
// responses and durations.
func TestHardware(t *testing.T) {
	if os.Getenv("PODGAUGE_GPU") == "" {
		t.Skip("PODGAUGE_GPU is not set: the test needs an NVIDIA GPU")
	}
	inChild(t, func(string) error { return nil }, func(t *testing.T, _ string) {
		root := cmp.Or(os.Getenv("NVIDIA_DRIVER_ROOT"), "/")
		s := newFixture(t, nvml.Options{DriverRoots: []string{root}, SysRoot: "/sys"})
		began := time.Now()
		devices, err := s.tryList()
		t.Logf("start and listing took %v, error %v, %+v", time.Since(began), err, s.Library())
		if len(devices) == 0 {
			t.Fatal("got no GPU")
		}
		for _, d := range devices {
			t.Logf("%+v", d)
			if d.WholeGPU() {
				s.checkHardware(d)
			}
		}
		began = time.Now()
		_, err = s.tryList()
		t.Logf("a second listing took %v, error %v", time.Since(began), err)
		began = time.Now()
		links, err := s.Links(t.Context())
		t.Logf("the links took %v: %+v, error %v", time.Since(began), links, err)
		began = time.Now()
		event, err := s.Wait(t.Context())
		t.Logf("Wait took %v: %+v, %v", time.Since(began), event, err)
		s.must(err)
	})
}

// checkHardware reads a GPU twice, and requires plausible values.
func (s *fixture) checkHardware(d device.Device) {
	s.Helper()
	began := time.Now()
	first := s.values(d.Index)
	s.Logf("the first reading took %v", time.Since(began))
	began = time.Now()
	second := s.values(d.Index)
	s.Logf("the second took %v: %v", time.Since(began), second)
	time.Sleep(10 * time.Second) // a window of GPM
	_, err := s.Check(d.GPU)
	s.must(err)
	began = time.Now()
	samples, err := s.Read(d.GPU)
	s.must(err)
	usage, known := s.ReadProcessUsage(d.GPU)
	s.Logf("a third, with GPM and processes, took %v: %d values, %+v, %v", time.Since(began), len(samples), usage,
		known)
	for _, m := range s.Metrics() {
		if _, read := second[seriesName(m)]; !read {
			s.Logf("no value of %s", seriesName(m))
		}
	}
	for name, v := range second {
		if strings.HasSuffix(name, "_ratio") && v > 1 {
			s.Errorf("%s: got %v, want at most 1", name, v)
		}
		if strings.Contains(name, "_total") && v < first[name] {
			s.Errorf("%s decreased from %v to %v", name, first[name], v)
		}
	}
	began = time.Now()
	evidence, err := s.Check(d.GPU)
	s.Logf("a check took %v: %+v, %v", time.Since(began), evidence, err)
	s.must(err)
}
