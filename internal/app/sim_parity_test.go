package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/xid"
)

// TestSimulatedXidsMatchNVML checks that the Xids of simulated GPUs have the same effects as NVML's.
func TestSimulatedXidsMatchNVML(t *testing.T) {
	m := sim.NewMachine(metric.Metrics(), 1, time.Now)
	m.SetXidClassifier(xid.Event)
	for number, fatal := range map[uint64]bool{13: false, 63: false, 64: true, 78: false, 92: false, 94: false, 95: true, 154: false, 155: false, 162: false, 167: true, 999: false} {
		m.Fail(m.AllocatableIDs()[0], fmt.Sprintf("xid %d", number))
		e, err := m.Wait(t.Context())
		means, _ := xid.Event(number)
		if err != nil || e.Xid != number || (e.Recovery == device.RecoveryAfterReset) != fatal || e.Recovery != means.Recovery || e.Action != means.Action {
			t.Errorf("xid %d: got %+v, %v, want it fatal: %v", number, e, err, fatal)
		}
	}
}

// TestEveryRowIsSimulated checks that at least one simulated model reports each row of NVML: otherwise golden files and dashboards lack it.
func TestEveryRowIsSimulated(t *testing.T) {
	m := sim.NewMachineWithModels(metric.Metrics(), time.Now, sim.Models()...)
	read := map[int]bool{}
	for _, gpu := range m.GPUs() {
		samples, err := m.Read(gpu)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			read[s.Metric] = true
		}
	}
	for i, row := range metric.Metrics() {
		if !read[i] {
			t.Errorf("sim/values.go has no value for %s%v", row.Name, row.Labels)
		}
	}
}
