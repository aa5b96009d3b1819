package incident_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// partitionedGPU returns a GPU and its MIG devices, which an event of the GPU affects.
func partitionedGPU(migDevices int) []device.Device {
	gpu := gpuDevice("GPU-1")
	gpu.MIGEnabled, gpu.Index = true, 3
	all := []device.Device{gpu}
	for i := range migDevices {
		d := gpu
		d.ID, d.MIGEnabled, d.MIGDeviceIndex, d.Profile = device.ID(fmt.Sprintf("MIG-%d", i)), false, i, "1g.10gb"
		all = append(all, d)
	}
	return all
}

// TestGPUFaultIsOneIncident checks that a fault of a partitioned GPU is one incident with all MIG devices and their containers.
func TestGPUFaultIsOneIncident(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		affected := partitionedGPU(7)
		s.allocations.setOwner("MIG-1", owner("A"))
		s.allocations.setOwner("MIG-1::1", owner("C")) // a replica
		s.allocations.setOwner("MIG-2", owner("B"))
		s.allocations.setOwner("MIG-3", owner("B"))
		s.Record(xidEvent(79, affected...))
		s.Record(xidEvent(79, affected...))
		s.Record(xidEvent(31, affected[6])) // of one MIG device
		s.settle()
		known, _ := s.published.Get()
		requireIncidents := func(when string, want ...string) {
			t.Helper()
			var got []string
			for _, i := range s.incidents() {
				line := fmt.Sprintf("%s %s %d/%d:", i.Device, i.Reason, i.Count, len(i.MIGDevices))
				for _, c := range i.Affected {
					line += fmt.Sprintf(" %s on %s", c.Pod, c.Device)
					if !c.Until.IsZero() {
						line += " ended"
					}
				}
				got = append(got, line)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got incidents\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		requireIncidents("at first", "MIG-5 xid_31 1/0:", "GPU-1 xid_79 2/7: A on MIG-1 C on MIG-1 B on MIG-2 B on MIG-3")
		if got := fmt.Sprint(counts(known)); got != "map[GPU-1 GPU-1 3 xid_79:2 MIG-1 GPU-1 3 {team A main} xid_79:2 MIG-1 GPU-1 3 {team C main} xid_79:2 "+
			"MIG-2 GPU-1 3 {team B main} xid_79:2 MIG-3 GPU-1 3 {team B main} xid_79:2 MIG-5 GPU-1 3 xid_31:1]" {
			t.Errorf("got counts %s", got)
		}
		if n := s.log.count("level=WARN"); n != 1 || s.log.count("containers=\"[team/A/main team/C/main team/B/main]\"") != 1 {
			t.Errorf("got %d warnings in the log, want one with three containers:\n%s", n, s.log.text.String())
		}
		if i := known.Incidents[1]; !i.Concerns("GPU-1") || !i.Concerns("MIG-6") || i.Concerns("MIG-7") || i.MIGDevices[6] != (incident.AffectedMIGDevice{"MIG-6", "1g.10gb"}) {
			t.Errorf("got incident %+v, want GPU-1 with MIG-6", i)
		}

		s.allocations.release("MIG-3")
		requireIncidents("B released a device", "MIG-5 xid_31 1/0:", "GPU-1 xid_79 2/7: A on MIG-1 C on MIG-1 B on MIG-2 B on MIG-3 ended")
		s.Record(xidEvent(79, affected...))
		requireIncidents("again, with other allocations", "GPU-1 xid_79 1/7: A on MIG-1 C on MIG-1 B on MIG-2 B on MIG-3 ended",
			"MIG-5 xid_31 1/0:", "GPU-1 xid_79 2/7: A on MIG-1 C on MIG-1 B on MIG-2 B on MIG-3 ended")
		s.Record(xidEvent(79, affected[:7]...))
		if got := s.incidents(); len(got) != 4 || len(got[0].MIGDevices) != 6 {
			t.Errorf("after the removal of a MIG device: got %d incidents and %d MIG devices, want 4 and 6", len(got), len(got[0].MIGDevices))
		}
		before := s.incidents()
		s = s.restart(incident.Options{})
		defer s.stop()
		s.settle()
		s.statuses.Set([]device.Status{{Device: affected[0], Healthy: true, Since: time.Now()}})
		for n, i := range s.incidents() {
			if i.MarkedUnhealthy != (i.RecoveredAt != nil) || len(i.MIGDevices) != len(before[n].MIGDevices) {
				t.Errorf("after a restart and the recovery of the GPU: got %+v", i)
			}
		}
	})
}

// TestPartlyUnknownAllocations checks that the allocations of a partitioned GPU are unknown if those of one MIG device are unknown.
func TestPartlyUnknownAllocations(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for _, c := range []struct {
			complete, want bool
			affected       []device.Device
		}{
			{true, false, partitionedGPU(2)},
			{false, true, partitionedGPU(2)},
			{false, false, partitionedGPU(1)},
			{false, true, partitionedGPU(0)},
		} {
			all := []device.Allocation{{Resource: gpuResource, DeviceID: "MIG-0", Owner: owner("A")}}
			s.allocations.Set(device.Allocations{At: time.Now(), All: all, Complete: c.complete})
			s.Record(device.HealthEvent{At: time.Now(), GPU: "GPU-1", Affected: c.affected, Reason: "lost"})
			got := s.incidents()[0].AffectedUnknown
			time.Sleep(2 * time.Minute)
			if got != c.want {
				t.Errorf("%d MIG devices, all known %v: AffectedUnknown: got %v", len(c.affected)-1, c.complete, got)
			}
		}
	})
}

// TestLaterOwnerOfUnknownDevice checks that a container that gets a device after the event is not affected, even with unknown allocations.
func TestLaterOwnerOfUnknownDevice(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.allocate("MIG-0") // without an owner
		incomplete, _ := s.allocations.Get()
		incomplete.Complete = false
		s.allocations.Set(incomplete)
		s.Record(xidEvent(79, partitionedGPU(2)...))
		time.Sleep(time.Second)
		s.allocations.allocate("MIG-1")
		s.allocations.setOwner("MIG-1", owner("later"))
		s.settle()
		s.allocations.setOwner("MIG-0", owner("A"))
		if got := s.incidents(); len(got) != 1 || affectedPods(got[0]) != "A" {
			t.Errorf("got incidents %+v, want one of A", got)
		}
	})
}

// TestRetirement checks that a retirement is an incident with the operator's note, and not counted as a fault.
func TestRetirement(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("MIG-0", owner("A"))
		retired := device.HealthEvent{At: time.Now(), GPU: "GPU-1", Affected: partitionedGPU(2), Reason: device.ReasonRetired, Note: "fan", MarkedUnhealthy: true}
		s.Record(retired)
		retired.Note = "slow"
		s.Record(retired)
		got := s.incidents()
		known, _ := s.published.Get()
		if len(got) != 2 || got[0].Note != "slow" || got[1].Note != "fan" || affectedPods(got[1]) != "A" || len(counts(known)) != 0 {
			t.Errorf("got incidents %+v and counts %v, want two retirements and no counts", got, counts(known))
		}
		s.statuses.Set([]device.Status{{Device: retired.Affected[0], Healthy: true, Since: time.Now().Add(time.Second)}})
		for _, i := range s.incidents() {
			if i.RecoveredAt == nil {
				t.Errorf("got %+v, want a recovery time", i)
			}
		}
	})
}
