package incident_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestAffectedContainers checks which containers the allocations before and
// after an event make affected. A letter is a container.
func TestAffectedContainers(t *testing.T) {
	for _, row := range testfile.Sections(t, "testdata/affected.txt") {
		script, want, _ := strings.Cut(strings.TrimSpace(row.Text), "\n->")
		want = strings.TrimSpace(want)
		t.Run(row.Title, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.script("1m; " + script)
				got := s.incidents()
				if len(got) != 1 || affectedPods(got[0]) != want {
					t.Errorf("affected containers: got %q, want %q", affectedPods(got[0]), want)
				}
				named := len(strings.ReplaceAll(want, "?", ""))
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

// setTermination simulates an answer of the kubelet's Pods API about a pod.
func (s *fixture) setTermination(pod string, termination allocation.Termination) {
	s.terminations.Set(func(a allocation.Assignment) (allocation.Termination, bool) {
		if a.Owner.Pod != pod || a.PodUID != "" && a.PodUID != termination.PodUID {
			return allocation.Termination{}, false
		}
		return termination, true
	})
}

func formatTermination(e *incident.PodTermination) string {
	if e == nil {
		return "-"
	}
	code := "?"
	if e.ExitCode != nil {
		code = fmt.Sprint(*e.ExitCode)
	}
	return fmt.Sprintf("%s %s %s %d", e.Phase, e.Reason, code, e.Restarts)
}

// TestTerminations checks the termination of an affected container, by the
// kubelet's answers about its pod.
func TestTerminations(t *testing.T) {
	code := func(n int32) *int32 { return &n }
	failed := allocation.Termination{PodUID: "a", PodPhase: "Running", Restarts: 1, Ended: true, Reason: "Error", ExitCode: code(3)}
	killed := failed
	killed.Restarts, killed.Reason, killed.ExitCode = 2, "OOMKilled", code(137)
	final := failed
	final.PodEnded, final.PodPhase, final.Restarts = true, "Failed", 2
	evicted := allocation.Termination{PodUID: "a", PodPhase: "Failed", Ended: true, Reason: "Evicted"}
	evictedFinal := evicted
	evictedFinal.PodEnded, evictedFinal.ExitCode = true, code(137)
	invalid := allocation.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Ended: true, EndedAt: time.Unix(1<<60, 0)}
	type answer struct {
		pod         string
		termination allocation.Termination
		want        string // UID of the pod, and termination
	}
	for name, answers := range map[string][]answer{
		"a container that restarts": {
			{"B", allocation.Termination{PodUID: "b"}, " -"}, // before the pod is known
			{"A", allocation.Termination{PodUID: "a", PodPhase: "Running"}, "a -"},
			{"A", failed, "a Running Error 3 1"},
			{"A", killed, "a Running Error 3 2"}, // a later run
			{"A", final, "a Failed Error 3 2"},
			{"A", allocation.Termination{PodUID: "a", PodPhase: "Running"}, "a Failed Error 3 2"},
		},
		// The kubelet may report the end of the pod before the end of the container.
		"a pod that is evicted": {{"A", evicted, "a Failed Evicted ? 0"}, {"A", evictedFinal, "a Failed Evicted 137 0"}},
		// JSON cannot represent the time.
		"an invalid time": {{"A", invalid, "a Failed  ? 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
				s.script("own a A; xid 31 a")
				for _, a := range answers {
					s.setTermination(a.pod, a.termination)
					c := s.incidents()[0].Affected[0]
					expect.Equal(t, c.UID+" "+formatTermination(c.Termination), a.want, "after", a.termination)
					if c.Termination != nil && !c.Termination.At.IsZero() {
						t.Errorf("got time %s, want none", c.Termination.At)
					}
					s.terminations.Set(nil) // while terminations are unknown
					s.settle()
				}
			})
		})
	}
}

// TestUnknownTermination checks that the search for an unknown pod ends.
func TestUnknownTermination(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a A; xid 31 a")
		s.setTermination("B", allocation.Termination{})
		s.script("11m")
		s.setTermination("A", allocation.Termination{PodUID: "a", Ended: true})
		if got := s.incidents()[0].Affected[0]; got.UID != "" || got.Termination != nil {
			t.Errorf("after the timeout: got %+v, want an unknown pod", got)
		}
	})
}

// TestWorkload checks that controller and labels of an affected pod are kept
// for the next process, in fields beside the others, and that a file of an
// older podgauge has none.
func TestWorkload(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.script("own a A; xid 31 a; 1s")
		w := &allocation.Workload{Controller: allocation.Controller{Kind: "Job", Name: "train-0"}, Labels: map[string]string{"team": "blue"}}
		s.setTermination("A", allocation.Termination{PodUID: "a", PodPhase: "Running", Workload: w})
		if got := s.incidents()[0].Affected[0]; !w.Equal(got.Workload) || got.UID != "a" {
			t.Errorf("got %+v", got)
		}
		content, err := json.Marshal(s.saved)
		const want = `"uid":"a","controller":{"kind":"Job","name":"train-0"},"labels":{"team":"blue"},"since":`
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("got %s, %v, want %s", content, err, want)
		}
		saves := len(s.saved[0].Affected)
		same := *w
		s.setTermination("A", allocation.Termination{PodUID: "a", PodPhase: "Running", Workload: &same})
		if got := s.incidents()[0].Affected[0]; got.Workload != w || len(s.saved[0].Affected) != saves {
			t.Errorf("an equal workload: got %p, want %p", got.Workload, w)
		}
		s.setTermination("A", allocation.Termination{PodUID: "a", PodPhase: "Failed", PodEnded: true, Ended: true})
		s.restart()
		if got := s.incidents()[0].Affected[0]; !w.Equal(got.Workload) || got.Termination == nil {
			t.Errorf("after the end and a restart: got %+v", got)
		}
		var old []incident.AffectedContainer
		if err := json.Unmarshal([]byte(`[{"namespace":"n","pod":"p","container":"c","since":"2026-11-01T00:00:00Z"}]`), &old); err != nil || old[0].Workload != nil {
			t.Errorf("old file: got %+v, %v", old, err)
		}
	})
}

// TestHPCJobs checks that an incident has the jobs of all affected devices at
// the event, and that events of different jobs are different incidents.
func TestHPCJobs(t *testing.T) {
	jobs := map[device.ID][]string{"a": {"7"}, "mig0": {"9"}, "mig1": {"8", "9"}}
	o := incident.Options{HPCJobs: func(d device.Device) []string { return jobs[d.ID] }}
	runFixture(t, o, func(t *testing.T, s *fixture) {
		s.script("xid 31 a; xid 31 a; 1s")
		jobs["a"] = []string{"10"}
		s.script("xid 31 a; 1s; xid 31 partitioned2; xid 31 b")
		s.restart()
		var got []string
		for _, i := range s.incidents() {
			got = append(got, fmt.Sprintf("%s %d %s", i.Device, i.Count, i.HPCJobs))
		}
		expect.EqualSlices(t, got, []string{"b 1 []", "GPU-1 1 [8 9]", "a 1 [10]", "a 2 [7]"})
	})
}
