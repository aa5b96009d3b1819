package collect_test

import (
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// TestRowsAlone checks that a plan with a single family reads the same series
// of the family as a plan with all rows and calls.
func TestRowsAlone(t *testing.T) {
	for name, lines := range map[string][]string{
		"H100": {"gpus 1", "gpu 0 model h100"}, "T4": {"gpus 1", "gpu 0 model t4"}, "MIG": sevenMIGDevices("h100"),
	} {
		t.Run(name, func(t *testing.T) {
			plan := metric.NewReadPlan(true, nil)
			for i := range plan.NeedsCall {
				plan.NeedsCall[i] = true
			}
			all := readSeries(t, plan, lines)
			families := map[string][]planSeries{}
			for _, s := range all {
				families[s.family] = append(families[s.family], s)
			}
			if len(families) < 30 {
				t.Fatalf("got %d families, want at least 30", len(families))
			}
			for family, want := range families {
				plan := metric.NewReadPlan(true, func(m *device.Metric) bool { return m.Name == family })
				if got := readSeries(t, plan, lines); !slices.Equal(got, want) {
					t.Errorf("%s alone: got %v, want %v", family, got, want)
				}
			}
		})
	}
}

type planSeries struct {
	device      device.ID
	family, row string
}

// readSeries returns the series of the second collection with a plan.
func readSeries(t *testing.T, plan *metric.ReadPlan, lines []string) (series []planSeries) {
	t.Helper()
	s := newPlanFixture(t, plan, lines...)
	defer s.Close()
	metrics := plan.Metrics()
	for range 2 {
		series = series[:0]
		if _, err := s.gpus[0].Check(); err != nil {
			t.Fatal(err)
		}
		samples, _ := s.gpus[0].Read() // a plan without fast rows may get no response
		for _, sample := range samples {
			m := &metrics[sample.Metric]
			series = append(series, planSeries{sample.Device, m.Name, m.RowName()})
		}
	}
	return series
}
