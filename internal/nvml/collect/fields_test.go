package collect_test

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestFieldValuesAdded has a driver that adds to the values in the buffer, as
// reported in https://github.com/NVIDIA/go-nvml/issues/46. Readings and checks
// must not change.
func TestFieldValuesAdded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const (
			ecc    = `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`
			memory = `nvidia_gpu_temperature_celsius{sensor="memory"}`
			sent   = "nvidia_gpu_pcie_transmit_bytes_total"
		)
		s := newListedFixture(t, "add fields", "gpus 1", "gpu 0 field 3 10", "gpu 0 memory_temperature 40",
			"gpu 0 pcie_tx 5000", "gpu 0 energy 9000")
		for i := range 3 {
			time.Sleep(time.Minute)
			if got := s.values(0); got[ecc] != 10 || got[memory] != 40 || got[sent] != 5000 {
				t.Errorf("reading %d: got %v errors, %v °C, %v bytes, want 10, 40, 5000", i, got[ecc], got[memory],
					got[sent])
			}
			if v, err := s.Check(s.id(0)); err != nil || v.EnergyCounter != 9000 {
				t.Errorf("check %d: got %+v, %v, want energy counter 9000", i, v, err)
			}
		}
	})
}
