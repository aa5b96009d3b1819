package incident

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// TestAGPUThatVanishedAcrossARestart is an incident of the container that it is allocated to,
// also if the kubelet answers later than the first listing.
func TestAGPUThatVanishedAcrossARestart(t *testing.T) {
	t.Run("the kubelet answers before", func(t *testing.T) { vanishAcrossARestart(t, false) })
	t.Run("the kubelet answers later", func(t *testing.T) { vanishAcrossARestart(t, true) })
}

func vanishAcrossARestart(t *testing.T, late bool) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		machine := sim.NewMachine([]device.Metric{{Name: "nvidia_gpu_power_watts"}}, 2, time.Now)
		defer machine.Release()
		id := machine.IDs()[1]
		var kept device.History
		watch := func() {
			readers := device.NewReaders(machine)
			m := device.NewMonitor(machine, readers, &s.board, slog.New(slog.DiscardHandler))
			m.Remembered, m.Remember, m.Happened = kept, func(h device.History) { kept = h }, s.Happened
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- m.Run(ctx) }()
			time.Sleep(5 * time.Second)
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if !m.Drain(context.Background()) || !readers.Drain(context.Background()) {
				t.Error("calls are left")
			}
		}
		if late {
			s.kubelet.post(device.Holders{})
		} else {
			s.kubelet.name(device.OfferedID(id), owner("A"))
		}
		watch()
		machine.Remove(id)
		watch()
		if late {
			s.kubelet.name(device.OfferedID(id), owner("A"))
		}
		if got := s.incidents(); !slices.ContainsFunc(got, func(i Incident) bool { return i.Device == id && i.Reason == "gone" && names(i) == "A" }) {
			t.Errorf("the incidents are %+v, want gone with A affected", got)
		}
	})
}
