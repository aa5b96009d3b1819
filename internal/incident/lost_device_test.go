package incident_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/sim"
)

// TestGPULostAcrossRestart checks that the container of a vanished GPU is affected, even if the kubelet responds after the first listing.
func TestGPULostAcrossRestart(t *testing.T) {
	t.Run("the kubelet responds before", func(t *testing.T) { testLostAcrossRestart(t, false) })
	t.Run("the kubelet responds later", func(t *testing.T) { testLostAcrossRestart(t, true) })
}

// keptHistory is a device.HistoryStore in memory.
type keptHistory struct{ device.HealthHistory }

func (k *keptHistory) SaveHealth(h device.HealthHistory, _ bool) { k.HealthHistory = h }

func (k *keptHistory) Stored() bool { return true }

func testLostAcrossRestart(t *testing.T, late bool) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		machine := sim.NewMachine([]device.Metric{{Name: "nvidia_gpu_power_watts"}}, 2, time.Now)
		defer machine.ReleaseHangs()
		id := machine.AllocatableIDs()[1]
		var kept keptHistory
		watch := func() {
			readers := device.NewReaders(machine)
			m := device.NewMonitor(machine, readers, &s.statuses, device.MonitorOptions{
				Log: slog.New(slog.DiscardHandler), History: kept.HealthHistory, Store: &kept, OnHealthEvent: s.Record,
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- m.Run(ctx) }()
			time.Sleep(5 * time.Second)
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if !m.Drain(context.Background()) || !readers.Drain(context.Background()) {
				t.Error("Drain: got false, want true")
			}
		}
		if late {
			s.allocations.Set(device.Allocations{})
		} else {
			s.allocations.setOwner(device.AdvertisedID(id), owner("A"))
		}
		watch()
		machine.RemoveGPU(id)
		watch()
		if late {
			s.allocations.setOwner(device.AdvertisedID(id), owner("A"))
		}
		if got := s.incidents(); !slices.ContainsFunc(got, func(i incident.Incident) bool { return i.Device == id && i.Reason == "gone" && affectedPods(i) == "A" }) {
			t.Errorf("got incidents %+v, want reason gone with A affected", got)
		}
	})
}
