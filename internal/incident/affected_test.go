package incident_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestAffectedContainers checks which containers the allocations before and after an event make affected. A letter is a container.
func TestAffectedContainers(t *testing.T) {
	xid31 := func(s *fixture) { s.Record(xidEvent(31, gpuDevice("a"))) }
	lost := func(s *fixture) {
		s.Record(device.HealthEvent{At: time.Now(), GPU: "a", Affected: []device.Device{gpuDevice("a")}, Reason: "lost", MarkedUnhealthy: true})
	}
	wait := func(d time.Duration) func(*fixture) { return func(*fixture) { time.Sleep(d) } }
	allocate := func(id device.AdvertisedID) func(*fixture) { return func(s *fixture) { s.allocations.allocate(id) } }
	name := func(id device.AdvertisedID, pod string) func(*fixture) {
		return func(s *fixture) { s.allocations.setOwner(id, owner(pod)) }
	}
	release := func(id device.AdvertisedID) func(*fixture) { return func(s *fixture) { s.allocations.release(id) } }
	for _, test := range []struct {
		name  string
		steps []func(*fixture)
		want  string
	}{
		{"unallocated", []func(*fixture){xid31}, ""},
		{"one", []func(*fixture){name("a", "A"), xid31}, "A"},
		{"owners of two devices", []func(*fixture){name("a", "A"), name("b", "B"), xid31}, "A"},
		{"replicas", []func(*fixture){name("a::0", "A"), name("a::1", "B"), name("a::2", "B"), xid31}, "A B"},
		{"owner ends after the event", []func(*fixture){name("a", "A"), xid31, wait(time.Second), release("a")}, "(A)"},
		{"owner ends just before the event", []func(*fixture){name("a", "A"), wait(time.Minute), release("a"), wait(5 * time.Second), xid31}, "(A)"},
		{"owner ends long before the event", []func(*fixture){name("a", "A"), release("a"), wait(5*time.Second + 1), xid31}, ""},
		{"owner from an old list", []func(*fixture){name("a", "A"), wait(time.Minute), release("a"), xid31}, "(A)"},
		{"two owners, Xid", []func(*fixture){name("a", "A"), wait(time.Second), release("a"), allocate("a"), wait(time.Second), name("a", "B"), xid31}, "B"},
		{"two owners, failed check", []func(*fixture){name("a", "A"), wait(time.Second), release("a"), allocate("a"), wait(time.Second), name("a", "B"), lost}, "(A) B"},
		{"two owners, the second unnamed", []func(*fixture){name("a", "A"), wait(time.Second), allocate("a"), xid31}, "?"},
		{"replicas, one owner ends before the event", []func(*fixture){name("a::0", "A"), name("a::1", "B"), wait(time.Minute), release("a::0"), wait(time.Second), xid31}, "(A) B"},

		{"named later", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Second), name("a", "A")}, "A"},
		{"named later, then ended", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), release("a")}, "(A)"},
		{"named and ended, next owner before the next update", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), release("a"), wait(1), allocate("a"), name("a", "B")}, "(A)"},
		{"never named", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Hour)}, "?"},
		{"never named, then another owner", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Second), allocate("a"), name("a", "B")}, "?"},
		{"never named, next owner before the next update", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), allocate("a"), name("a", "B")}, "?"},
		{"never named, unallocated, then another owner", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), release("a"), wait(time.Second), name("a", "B")}, "?"},
		{"one replica of two named", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B")}, "B ?"},
		{"both replicas named", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B"), wait(time.Second), name("a::0", "A")}, "B A"},
		{"one replica of two named, the other ended", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(1), name("a::1", "B"), release("a::0")}, "B ?"},
		{"unallocated, allocated right after", []func(*fixture){xid31, wait(1), allocate("a"), name("a", "B")}, ""},
		{"new owner before the report is recorded", []func(*fixture){func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(time.Millisecond)
			s.allocations.allocate("a")
			s.allocations.setOwner("a", owner("B"))
			s.Record(o)
		}}, ""},
		{"owner ends, next owner before the report is recorded", []func(*fixture){name("a", "A"), wait(time.Second), func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(100 * time.Millisecond)
			s.allocations.release("a")
			s.allocations.allocate("a")
			s.allocations.setOwner("a", owner("B"))
			s.Record(o)
		}}, "(A)"},
		{"owner starts and ends before the report is recorded", []func(*fixture){func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(time.Millisecond)
			s.allocations.setOwner("a", owner("B"))
			s.allocations.release("a")
			s.Record(o)
		}}, ""},
		{"allocations unknown later", []func(*fixture){name("a", "A"), xid31, wait(time.Second), func(s *fixture) { s.allocations.Set(device.Allocations{}) }}, "A"},
		{"same name again before the next update", []func(*fixture){name("a", "A"), xid31, wait(time.Second), release("a"), name("a", "A")}, "(A)"},
		{"the same name again", []func(*fixture){name("a", "A"), wait(time.Second), xid31, wait(time.Second), allocate("a"), wait(time.Second), name("a", "A")}, "(A)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				time.Sleep(time.Minute)
				for _, step := range test.steps {
					step(s)
				}
				got := s.incidents()
				if len(got) != 1 || affectedPods(got[0]) != test.want {
					t.Errorf("affected containers: got %q, want %q", affectedPods(got[0]), test.want)
				}
			})
		})
	}
}

// TestNextPodOfSameName checks that the next pod of a StatefulSet is the affected container of the repeated incident.
func TestNextPodOfSameName(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for range 2 {
			s.allocations.allocate("a")
			s.allocations.setOwner("a", owner("A"))
			time.Sleep(time.Second)
			s.Record(xidEvent(31, gpuDevice("a")))
			time.Sleep(time.Second)
			s.allocations.release("a")
			time.Sleep(time.Second)
		}
		got := s.incidents()
		if len(got) != 1 || got[0].Count != 2 || affectedPods(got[0]) != "(A)" || !got[0].Affected[0].Since.After(got[0].First) {
			t.Errorf("got incidents %+v, want one with the second pod A", got)
		}
		if known, _ := s.published.Get(); len(known.Affected) != 1 || known.Affected[0].Count != 2 {
			t.Errorf("counts of containers: got %+v, want one with 2 events", known.Affected)
		}
	})
}

// TestStormWithUnnamedOwner checks that events before and after the kubelet names the owner belong to one incident.
func TestStormWithUnnamedOwner(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.allocate("a")
		for i := range 100 {
			time.Sleep(time.Millisecond)
			if i == 50 {
				s.allocations.setOwner("a", owner("A"))
			}
			s.Record(xidEvent(31, gpuDevice("a")))
		}
		got := s.incidents()
		if len(got) != 1 || affectedPods(got[0]) != "A" || got[0].Count != 100 {
			t.Errorf("got incidents %+v, want one of A with 100 events", got)
		}
		if known, _ := s.published.Get(); len(known.Affected) != 1 || known.Affected[0].Count != 100 {
			t.Errorf("counts of containers: got %+v, want one with 100 events", known.Affected)
		}
	})
}

func TestUnknownAllocations(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.Set(device.Allocations{})
		s.Record(xidEvent(31, gpuDevice("a")))
		if got := s.incidents(); !got[0].AffectedUnknown || len(got[0].Affected) > 0 || got[0].OwnersIncomplete {
			t.Errorf("got incident %+v, want unknown affected containers", got[0])
		}
	})
}

// TestOwnerNamedLate checks the kubelet's first response after an event. It names the affected container only if the device is gone: no
// other container can get the device then.
func TestOwnerNamedLate(t *testing.T) {
	for _, c := range []struct {
		name     string
		reason   string
		after    time.Duration
		recovers bool
		want     string
	}{
		{"gone", device.ReasonGone, 10 * time.Second, false, "A"},
		{"gone, recovered before the response", device.ReasonGone, 10 * time.Second, true, ""},
		{"gone, long before the response", device.ReasonGone, time.Minute + time.Second, false, ""},
		{"lost", "lost", 10 * time.Second, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.allocations.Set(device.Allocations{})
				s.Record(device.HealthEvent{At: time.Now(), GPU: "a", Affected: []device.Device{gpuDevice("a")}, Reason: c.reason, MarkedUnhealthy: true})
				time.Sleep(c.after)
				if c.recovers {
					s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now()}})
					s.settle()
				}
				s.allocations.setOwner("a", owner("A"))
				time.Sleep(time.Second)
				if got := s.incidents(); len(got) != 1 || affectedPods(got[0]) != c.want || got[0].AffectedUnknown != (c.want == "") {
					t.Errorf("got incidents %+v, want %q", got, c.want)
				}
				if known, _ := s.published.Get(); c.want != "" && len(known.Affected) != 1 {
					t.Errorf("counts of containers: got %+v, want one", known.Affected)
				}
			})
		})
	}
}

func TestManyOwners(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for i := range 256 + 10 {
			s.allocations.setOwner(device.ID("a").Replica(i), owner(fmt.Sprint("pod-", i)))
		}
		s.Record(xidEvent(31, gpuDevice("a")))
		if got := s.incidents(); len(got[0].Affected) != 256 {
			t.Errorf("affected containers: got %d, want %d", len(got[0].Affected), 256)
		}
	})
}

// actualAllocation is the true time of an allocation.
type actualAllocation struct {
	pod      string
	from, to time.Time // to is zero while allocated
}

// TestRandomAllocations checks that each affected container had the device at the event, or just before. A container with the device is
// affected, unless the incident reports missing owners.
func TestRandomAllocations(t *testing.T) {
	for seed := range uint64(300) {
		bubble.Test(t, func(t *testing.T) {
			s := startFixture(incident.Options{}, newFakeAllocations())
			defer s.stop()
			r := rand.New(rand.NewPCG(seed, 1))
			var actual []actualAllocation
			var reports []time.Time
			allocated, named, pods := false, false, 0
			for range 60 {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				switch action := r.IntN(6); {
				case action < 2: // Allocate for the next pod, with or without a previous owner
					if allocated {
						actual[len(actual)-1].to = time.Now()
					}
					pods++
					actual = append(actual, actualAllocation{pod: fmt.Sprint("pod-", pods), from: time.Now()})
					s.allocations.allocate("a")
					allocated, named = true, false
				case action == 2 && allocated && !named:
					s.allocations.setOwner("a", owner(actual[len(actual)-1].pod))
					named = true
				case action == 3 && allocated:
					actual[len(actual)-1].to = time.Now()
					s.allocations.release("a")
					allocated = false
				case action > 3:
					s.Record(xidEvent(31, gpuDevice("a")))
					reports = append(reports, time.Now())
				}
				time.Sleep(time.Nanosecond)
			}
			for _, i := range s.incidents() {
				checkIncident(t, seed, i, actual)
			}
			if len(reports) == 0 {
				t.Errorf("seed %d: no event was recorded", seed)
			}
		})
	}
}

func checkIncident(t *testing.T, seed uint64, i incident.Incident, actual []actualAllocation) {
	t.Helper()
	for _, h := range i.Affected {
		k := slices.IndexFunc(actual, func(x actualAllocation) bool { return x.pod == h.Pod })
		x := actual[k]
		if x.from.After(i.First) || !x.to.IsZero() && x.to.Before(i.First.Add(-5*time.Second)) {
			t.Errorf("seed %d: incident of %s: got %s, which had the device from %s to %s", seed, i.First, h.Pod, x.from, x.to)
		}
		if h.Until.IsZero() && !x.to.IsZero() {
			t.Errorf("seed %d: %s: got no end of the allocation", seed, h.Pod)
		}
	}
	for _, x := range actual {
		allocated := !x.from.After(i.First) && (x.to.IsZero() || x.to.After(i.First))
		if allocated && !i.OwnersIncomplete && !strings.Contains(affectedPods(i), x.pod) {
			t.Errorf("seed %d: incident of %s: want %s, which had the device from %s to %s", seed, i.First, x.pod, x.from, x.to)
		}
	}
}

// TestHistoricalEvent checks that an event from before the start has no affected container and is not counted.
func TestHistoricalEvent(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		past := xidEvent(79, gpuDevice("a"))
		past.Historical = true
		s.Record(past)
		s.Record(xidEvent(79, gpuDevice("a")))
		if got := s.incidents(); len(got) != 2 || len(got[1].Affected) != 0 || !got[1].AffectedUnknown || !got[1].Historical || len(got[0].Affected) != 1 {
			t.Errorf("got incidents %+v, want a historical one without containers and one with a container", got)
		}
		if known, _ := s.published.Get(); len(known.Devices) != 1 || known.Devices[0].Count != 1 {
			t.Errorf("counts: got %+v, want one event", known.Devices)
		}
		past = xidEvent(94, gpuDevice("a"))
		past.Historical = true
		s.Record(past)
		s.incidents()
		if known, _ := s.published.Get(); len(known.Incidents) != 3 || len(known.Devices) != 1 {
			t.Errorf("counts after another historical event: got %+v, want no change", known.Devices)
		}
	})
}
