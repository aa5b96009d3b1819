package incident_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
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
