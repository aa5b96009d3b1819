package nvml_test

import (
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/captures"
)

// TestCaptures compares the models of the stand-in and of the simulator, which
// has none of graphics boards, with captures of real GPUs, and the functions
// that podgauge calls with those of real drivers.
func TestCaptures(t *testing.T) {
	for name, c := range captures.Read(t, "../..") {
		t.Run(name, func(t *testing.T) {
			for _, f := range slices.Concat(lib.Functions, metric.Symbols()) {
				if len(c.Symbols) > 0 && !slices.Contains(c.Symbols, f) {
					t.Errorf("the driver has no %s", f)
				}
			}
			s := newListedFixture(t, c.Scenario()...)
			samples, err := s.Read(s.id(0))
			s.must(err)
			c.Compare(t, "stand-in", s.devices, s.Metrics(), samples)
			uses, _ := s.ReadProcessUsage(s.id(0))
			c.CompareProcesses(t, s.devices, uses)
			simulated := map[string]*sim.Model{"h100": sim.H100, "h200": sim.H200}[c.Model]
			if simulated == nil {
				return
			}
			machine := sim.NewMachineWithModels(s.Metrics(), time.Now, simulated)
			if c.Profiles() != nil {
				machine.Partition(machine.GPUs()[0], c.Profiles()...)
			}
			devices, err := machine.Devices(t.Context())
			s.must(err)
			samples, err = machine.Read(machine.GPUs()[0])
			s.must(err)
			c.Compare(t, "simulator", devices, s.Metrics(), samples)
		})
	}
}
