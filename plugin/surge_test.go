package plugin_test

import (
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
)

// TestSurge starts a second podgauge process, with fewer devices by its rules,
// beside the first. The second does not wait for the first as for a foreign
// plugin. The kubelet keeps the newest list of both, so the second process
// sends its list again after the end of the first.
func TestSurge(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir, Version: kubelet.V137})
	s.inventory.Set(statuses(4))
	s.startKubelet()
	endFirst := s.startPlugin()
	s.waitRegistered(4)

	listed := allocation.ResourceDevice{Resource: resource, ID: string(gpuID(0))}
	allocations := allocation.Snapshot{Complete: true}
	allocations.Resources.AllocatableKnown = true
	allocations.Resources.Allocatable.Devices = []allocation.ResourceDevice{listed}
	second := s.options
	second.Devices, second.Allocations = &device.Inventory{}, &pubsub.Value[allocation.Snapshot]{}
	second.Resources = &pubsub.Value[[]plugin.Resource]{}
	second.Devices.Set(statuses(3))
	second.Allocations.Set(allocations)
	background.Run(s, plugin.New(second).Run)
	s.wait("both are registered", func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		return len(r.Sockets) == 2 && r.Allocatable == 3
	})
	s.inventory.Set(unhealthy(statuses(4), 1, "lost"))
	s.wait("the list of the first", func(k kubelet.KubeletState) bool { return len(k.Resources[resource].Devices) == 4 })
	endFirst()
	s.wait("the list of the second", func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		return len(r.Sockets) == 1 && len(r.Devices) == 3 && r.Allocatable == 3
	})
}
