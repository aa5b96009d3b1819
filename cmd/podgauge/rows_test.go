package main

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/device/nvml"
	"github.com/podgauge/podgauge/sim"
)

// TestEveryRowIsSimulated: what NVML gives, the simulated machine gives too, or
// neither goldens nor dashboards would show it.
func TestEveryRowIsSimulated(t *testing.T) {
	m := sim.NewMachine(nvml.Metrics(), 1, time.Now)
	samples, err := m.Read(device.GPU(m.IDs()[0]), nil)
	if err != nil {
		t.Fatal(err)
	}
	read := map[int]bool{}
	for _, s := range samples {
		read[s.Metric] = true
	}
	for i, row := range nvml.Metrics() {
		if !read[i] {
			t.Errorf("sim/values.go makes up no value for %s%v", row.Name, row.Labels)
		}
	}
}
