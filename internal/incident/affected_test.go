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
)

// TestAffectedContainers checks which containers the allocations before and
// after an event make affected. A letter is a container.
func TestAffectedContainers(t *testing.T) {
	const twoOwners = "own a A; 1s; release a; allocate a; 1s; own a B; "
	for _, row := range []struct{ name, script, want string }{
		{"unallocated", "xid 31 a", ""},
		{"one", "own a A; xid 31 a", "A"},
		{"owners of two devices", "own a A; own b B; xid 31 a", "A"},
		{"replicas", "own a::0 A; own a::1 B; own a::2 B; xid 31 a", "A B"},
		{"owner ends after the event", "own a A; xid 31 a; 1s; release a", "(A)"},
		{"owner ends just before the event", "own a A; 1m; release a; 5s; xid 31 a", "(A)"},
		{"owner ends long before the event", "own a A; release a; 5000000001ns; xid 31 a", ""},
		{"owner from an old list", "own a A; 1m; release a; xid 31 a", "(A)"},
		{"two owners, Xid", twoOwners + "xid 31 a", "B"},
		{"two owners, failed check", twoOwners + "lost a", "(A) B"},
		{"two owners, the second unnamed", "own a A; 1s; allocate a; xid 31 a", "?"},
		{"replicas, one owner ends before the event", "own a::0 A; own a::1 B; 1m; release a::0; 1s; xid 31 a", "(A) B"},

		{"named later", "allocate a; 1s; xid 31 a; 1s; own a A", "A"},
		{"named later, then ended", "allocate a; 1s; xid 31 a; 1ns; own a A; release a", "(A)"},
		{"named and ended, next owner before the next update", "allocate a; 1s; xid 31 a; 1ns; own a A; release a; 1ns; allocate a; own a B", "(A)"},
		{"never named", "allocate a; 1s; xid 31 a; 1h", "?"},
		{"never named, then another owner", "allocate a; 1s; xid 31 a; 1s; allocate a; own a B", "?"},
		{"never named, next owner before the next update", "allocate a; 1s; xid 31 a; 1ns; allocate a; own a B", "?"},
		{"never named, unallocated, then another owner", "allocate a; 1s; xid 31 a; 1ns; release a; 1s; own a B", "?"},
		{"one replica of two named", "allocate a::0; allocate a::1; 1ns; xid 31 a; 1s; own a::1 B", "B ?"},
		{"both replicas named", "allocate a::0; allocate a::1; 1ns; xid 31 a; 1s; own a::1 B; 1s; own a::0 A", "B A"},
		{"one replica of two named, the other ended", "allocate a::0; allocate a::1; 1ns; xid 31 a; 1ns; own a::1 B; release a::0", "B ?"},
		{"unallocated, allocated right after", "xid 31 a; 1ns; allocate a; own a B", ""},
		{"new owner before the report is recorded", "hold 31 a; 1ms; allocate a; own a B; record", ""},
		{"owner ends, next owner before the report is recorded", "own a A; 1s; hold 31 a; 100ms; release a; allocate a; own a B; record", "(A)"},
		{"owner starts and ends before the report is recorded", "hold 31 a; 1ms; own a B; release a; record", ""},
		{"allocations unknown later", "own a A; xid 31 a; 1s; unknown", "A"},
		{"same name again before the next update", "own a A; xid 31 a; 1s; release a; own a A", "(A)"},
		{"the same name again", "own a A; 1s; xid 31 a; 1s; allocate a; 1s; own a A", "(A)"},

		// The kubelet's first response after an event names the affected
		// container only if the device is gone: no other container can get the
		// device then.
		{"unknown allocations", "unknown; xid 31 a", "??"},
		{"gone, named late", "unknown; gone a; 10s; own a A; 1s", "A"},
		{"gone, recovered before the response", "unknown; gone a; 10s; healthy a; 1s; own a A; 1s", "??"},
		{"gone, long before the response", "unknown; gone a; 61s; own a A; 1s", "??"},
		{"lost, named late", "unknown; lost a; 10s; own a A; 1s", "??"},

		{"MIG devices of a GPU", "own mig0 A; own mig0::1 C; own mig1 B; xid 79 partitioned2", "A C B"},
		// Possible while its MIG devices are not listed.
		{"a partitioned GPU that is allocated as a whole", "own GPU-1 A; xid 79 partitioned2", "A"},
		// The allocations are unknown if those of one MIG device are unknown.
		{"MIG devices without an owner", "own mig0 A; lost partitioned2", "A"},
		{"MIG devices with unknown allocations", "own mig0 A; incomplete; lost partitioned2", "A ??"},
		{"a single MIG device", "own mig0 A; incomplete; lost partitioned1", "A"},
		{"a partitioned GPU without MIG devices", "own mig0 A; incomplete; lost partitioned0", "??"},
		{"a later owner of another MIG device", "allocate mig0; xid 79 partitioned2; 1s; own mig1 B; 1s; own mig0 A", "A"},
	} {
		t.Run(row.name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.script("1m; " + row.script)
				got := s.incidents()
				if len(got) != 1 || affectedPods(got[0]) != row.want {
					t.Errorf("affected containers: got %q, want %q", affectedPods(got[0]), row.want)
				}
				named := len(strings.ReplaceAll(row.want, "?", ""))
				if known, _ := s.published.Get(); named == 0 && len(known.Affected) > 0 {
					t.Errorf("counts of containers: got %+v, want none", known.Affected)
				}
			})
		})
	}
}

// TestNextPodOfSameName checks that the next pod of a StatefulSet is the affected
// container of the repeated incident.
func TestNextPodOfSameName(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for range 2 {
			s.script("allocate a; own a A; 1s; xid 31 a; 1s; release a; 1s")
		}
		s.want(t, "two pods", "a xid_31 2 (A)")
		if got := s.incidents()[0]; !got.Affected[0].Since.After(got.First) {
			t.Errorf("got incident %+v, want the second pod A", got)
		}
		if known, _ := s.published.Get(); len(known.Affected) != 1 || known.Affected[0].Count != 2 {
			t.Errorf("counts of containers: got %+v, want one with 2 events", known.Affected)
		}
	})
}

func TestManyOwners(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		for i := range 128 + 10 {
			s.allocations.setOwner(device.ID("a").Replica(i), owner(fmt.Sprint("pod-", i)))
		}
		s.script("xid 31 a")
		if got := s.incidents(); len(got[0].Affected) != 128 {
			t.Errorf("affected containers: got %d, want %d", len(got[0].Affected), 128)
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
		runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
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
					s.Record(xidEvent("31", gpuDevice("a")))
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
