package incident_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

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
					if got := c.UID + " " + formatTermination(c.Termination); got != a.want {
						t.Errorf("after %+v: got %q, want %q", a.termination, got, a.want)
					}
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
		if want := []string{"b 1 []", "GPU-1 1 [8 9]", "a 1 [10]", "a 2 [7]"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
