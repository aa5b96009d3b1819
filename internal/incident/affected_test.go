package incident

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestAffectedContainers: the allocations before and after an event decide which containers are affected. A letter is a container.
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
	free := func(id device.AdvertisedID) func(*fixture) { return func(s *fixture) { s.allocations.release(id) } }
	for _, test := range []struct {
		name  string
		steps []func(*fixture)
		want  string
	}{
		{"unallocated", []func(*fixture){xid31}, ""},
		{"one", []func(*fixture){name("a", "A"), xid31}, "A"},
		{"one, while another device is another's", []func(*fixture){name("a", "A"), name("b", "B"), xid31}, "A"},
		{"replicas", []func(*fixture){name("a::0", "A"), name("a::1", "B"), name("a::2", "B"), xid31}, "A B"},
		{"one who goes later", []func(*fixture){name("a", "A"), xid31, wait(time.Second), free("a")}, "(A)"},
		{"one who goes before, just", []func(*fixture){name("a", "A"), wait(time.Minute), free("a"), wait(releaseGrace), xid31}, "(A)"},
		{"one who goes before, long", []func(*fixture){name("a", "A"), free("a"), wait(releaseGrace + 1), xid31}, ""},
		{"one, with an old answer", []func(*fixture){name("a", "A"), wait(time.Minute), free("a"), xid31}, "(A)"},
		{"one after the other, an Xid", []func(*fixture){name("a", "A"), wait(time.Second), free("a"), allocate("a"), wait(time.Second), name("a", "B"), xid31}, "B"},
		{"one after the other, a check", []func(*fixture){name("a", "A"), wait(time.Second), free("a"), allocate("a"), wait(time.Second), name("a", "B"), lost}, "(A) B"},
		{"one after the other, the second not named", []func(*fixture){name("a", "A"), wait(time.Second), allocate("a"), xid31}, "?"},
		{"a replica's, before the other's", []func(*fixture){name("a::0", "A"), name("a::1", "B"), wait(time.Minute), free("a::0"), wait(time.Second), xid31}, "(A) B"},

		{"named later", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Second), name("a", "A")}, "A"},
		{"named later, and gone", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), free("a")}, "(A)"},
		{"named, gone, and another before anybody looks", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), free("a"), wait(1), allocate("a"), name("a", "B")}, "(A)"},
		{"never named", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Hour)}, "?"},
		{"never named, and another after it", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(time.Second), allocate("a"), name("a", "B")}, "?"},
		{"never named, and another before anybody looks", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), allocate("a"), name("a", "B")}, "?"},
		{"never named, and idle, and another", []func(*fixture){allocate("a"), wait(time.Second), xid31, wait(1), free("a"), wait(time.Second), name("a", "B")}, "?"},
		{"one replica of two named", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B")}, "B ?"},
		{"both replicas named", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B"), wait(time.Second), name("a::0", "A")}, "B A"},
		{"one replica of two named, and the other gone", []func(*fixture){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(1), name("a::1", "B"), free("a::0")}, "B ?"},
		{"idle, and somebody right after", []func(*fixture){xid31, wait(1), allocate("a"), name("a", "B")}, ""},
		{"a new one, before the report is taken down", []func(*fixture){func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(time.Millisecond)
			s.allocations.allocate("a")
			s.allocations.setOwner("a", owner("B"))
			s.Record(o)
		}}, ""},
		{"one who goes, and another, before the report is taken down", []func(*fixture){name("a", "A"), wait(time.Second), func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(100 * time.Millisecond)
			s.allocations.release("a")
			s.allocations.allocate("a")
			s.allocations.setOwner("a", owner("B"))
			s.Record(o)
		}}, "(A)"},
		{"one who comes and goes before the report is taken down", []func(*fixture){func(s *fixture) {
			o := xidEvent(31, gpuDevice("a"))
			time.Sleep(time.Millisecond)
			s.allocations.setOwner("a", owner("B"))
			s.allocations.release("a")
			s.Record(o)
		}}, ""},
		{"allocations unknown later", []func(*fixture){name("a", "A"), xid31, wait(time.Second), func(s *fixture) { s.allocations.Set(device.Allocations{}) }}, "A"},
		{"the same name again, before anybody looks", []func(*fixture){name("a", "A"), xid31, wait(time.Second), free("a"), name("a", "A")}, "(A)"},
		{"the same name again", []func(*fixture){name("a", "A"), wait(time.Second), xid31, wait(time.Second), allocate("a"), wait(time.Second), name("a", "A")}, "(A)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			runFixture(t, Options{}, func(t *testing.T, s *fixture) {
				time.Sleep(time.Minute)
				for _, step := range test.steps {
					step(s)
				}
				got := s.incidents()
				if len(got) != 1 || affectedPods(got[0]) != test.want {
					t.Errorf("the incident names %q, want %q", affectedPods(got[0]), test.want)
				}
			})
		})
	}
}

// TestNextPodOfSameName: the next pod of a StatefulSet has another incident, even within a minute.
func TestNextPodOfSameName(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
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
		if len(got) != 2 || affectedPods(got[0]) != "(A)" || affectedPods(got[1]) != "(A)" || !got[0].Affected[0].Since.After(got[1].Last) {
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Get(); len(known.Affected) != 1 || known.Affected[0].Count != 2 {
			t.Errorf("the counts of containers are %+v", known.Affected)
		}
	})
}

// TestUnnamedOwnerKeepsDevice: a starting kubelet names one pod after the other. An owner that is not named yet keeps the device.
func TestUnnamedOwnerKeepsDevice(t *testing.T) {
	b := newTracker(Options{MaxIncidents: 10}, time.Now())
	now := time.Now()
	b.load(storedState{Incidents: []Incident{{ID: 1, Device: "a", Reason: "xid_31", First: now, Last: now, Affected: []AffectedContainer{
		{Owner: owner("A")}, {Owner: owner("B")},
	}}}})
	h := device.Allocations{At: now, All: []device.Allocation{{Resource: gpuResource, DeviceID: "a::1", Owner: owner("B")}}}
	b.updateAffected(&h, now)
	if got := affectedPods(b.entries[0].Incident); got != "A B" {
		t.Errorf("while the kubelet comes up: %q", got)
	}
	h.Complete = true
	b.updateAffected(&h, now)
	if got := affectedPods(b.entries[0].Incident); got != "(A) B" {
		t.Errorf("when it is up: %q", got)
	}
}

// TestStormWithUnnamedOwner: events before and after the kubelet names the owner belong to one incident.
func TestStormWithUnnamedOwner(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
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
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Get(); len(known.Affected) != 1 || known.Affected[0].Count != 100 {
			t.Errorf("the counts of containers are %+v", known.Affected)
		}
	})
}

func TestUnknownAllocations(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		s.allocations.Set(device.Allocations{})
		s.Record(xidEvent(31, gpuDevice("a")))
		if got := s.incidents(); !got[0].AffectedUnknown || len(got[0].Affected) > 0 || got[0].OwnersIncomplete {
			t.Errorf("the incident is %+v", got[0])
		}
	})
}

// TestOwnerNamedLate: the kubelet answers for the first time after an event. The answer names the affected container only if the
// device is gone: no other container can get it then.
func TestOwnerNamedLate(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason string
		after  time.Duration
		heal   bool
		want   string
	}{
		{"gone", device.ReasonGone, 10 * time.Second, false, "A"},
		{"gone, and back before", device.ReasonGone, 10 * time.Second, true, ""},
		{"gone, and long before", device.ReasonGone, ownerTimeout + time.Second, false, ""},
		{"lost", "lost", 10 * time.Second, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			runFixture(t, Options{}, func(t *testing.T, s *fixture) {
				s.allocations.Set(device.Allocations{})
				s.Record(device.HealthEvent{At: time.Now(), GPU: "a", Affected: []device.Device{gpuDevice("a")}, Reason: c.reason, MarkedUnhealthy: true})
				time.Sleep(c.after)
				if c.heal {
					s.statuses.Set([]device.Status{{Device: gpuDevice("a"), Healthy: true, Since: time.Now()}})
					s.settle()
				}
				s.allocations.setOwner("a", owner("A"))
				time.Sleep(time.Second)
				if got := s.incidents(); len(got) != 1 || affectedPods(got[0]) != c.want || got[0].AffectedUnknown != (c.want == "") {
					t.Errorf("the incidents are %+v, want %q", got, c.want)
				}
				if known, _ := s.Get(); c.want != "" && len(known.Affected) != 1 {
					t.Errorf("the counts of containers are %+v", known.Affected)
				}
			})
		})
	}
}

func TestManyOwners(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		for i := range maxAffected + 10 {
			s.allocations.setOwner(device.ID("a").Replica(i), owner(fmt.Sprint("pod-", i)))
		}
		s.Record(xidEvent(31, gpuDevice("a")))
		if got := s.incidents(); len(got[0].Affected) != maxAffected {
			t.Errorf("the incident has %d containers", len(got[0].Affected))
		}
	})
}

// actualAllocation is an allocation as it really was.
type actualAllocation struct {
	pod      string
	from, to time.Time // to is zero while allocated
}

// TestRandomAllocations: an affected container had the device at the event, or just before. A container that had the device is
// affected, unless the incident reports missing owners.
func TestRandomAllocations(t *testing.T) {
	for seed := range uint64(300) {
		bubble.Test(t, func(t *testing.T) {
			s := startFixture(Options{})
			defer s.stop()
			r := rand.New(rand.NewPCG(seed, 1))
			var actual []actualAllocation
			var reports []time.Time
			holds, named, pods := false, false, 0
			for range 60 {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				switch what := r.IntN(6); {
				case what < 2: // Allocate for the next pod, whoever had it
					if holds {
						actual[len(actual)-1].to = time.Now()
					}
					pods++
					actual = append(actual, actualAllocation{pod: fmt.Sprint("pod-", pods), from: time.Now()})
					s.allocations.allocate("a")
					holds, named = true, false
				case what == 2 && holds && !named:
					s.allocations.setOwner("a", owner(actual[len(actual)-1].pod))
					named = true
				case what == 3 && holds:
					actual[len(actual)-1].to = time.Now()
					s.allocations.release("a")
					holds = false
				case what > 3:
					s.Record(xidEvent(31, gpuDevice("a")))
					reports = append(reports, time.Now())
				}
				time.Sleep(time.Nanosecond)
			}
			for _, i := range s.incidents() {
				checkIncident(t, seed, i, actual)
			}
			if len(reports) == 0 {
				t.Errorf("seed %d: nothing happened", seed)
			}
		})
	}
}

func checkIncident(t *testing.T, seed uint64, i Incident, actual []actualAllocation) {
	t.Helper()
	for _, h := range i.Affected {
		k := slices.IndexFunc(actual, func(x actualAllocation) bool { return x.pod == h.Pod })
		x := actual[k]
		if x.from.After(i.First) || !x.to.IsZero() && x.to.Before(i.First.Add(-releaseGrace)) {
			t.Errorf("seed %d: the incident of %s names %s, which had the device from %s to %s", seed, i.First, h.Pod, x.from, x.to)
		}
		if h.Until.IsZero() && !x.to.IsZero() {
			t.Errorf("seed %d: %s has the device still, want an end", seed, h.Pod)
		}
	}
	for _, x := range actual {
		there := !x.from.After(i.First) && (x.to.IsZero() || x.to.After(i.First))
		if there && !i.OwnersIncomplete && !strings.Contains(affectedPods(i), x.pod) {
			t.Errorf("seed %d: the incident of %s does not name %s, which had the device from %s to %s", seed, i.First, x.pod, x.from, x.to)
		}
	}
}

// TestHistoricalEvent: an event from before the start has no affected container, and is not counted.
func TestHistoricalEvent(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		s.allocations.setOwner("a", owner("A"))
		past := xidEvent(79, gpuDevice("a"))
		past.Historical = true
		s.Record(past)
		s.Record(xidEvent(79, gpuDevice("a")))
		if got := s.incidents(); len(got) != 2 || len(got[1].Affected) != 0 || !got[1].AffectedUnknown || !got[1].Historical || len(got[0].Affected) != 1 {
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Get(); len(known.Devices) != 1 || known.Devices[0].Count != 1 {
			t.Errorf("the counts are %+v", known.Devices)
		}
		past = xidEvent(94, gpuDevice("a"))
		past.Historical = true
		s.Record(past)
		s.incidents()
		if known, _ := s.Get(); len(known.Incidents) != 3 || len(known.Devices) != 1 {
			t.Errorf("with another one of the past the counts are %+v", known.Devices)
		}
	})
}
