package incident_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

func status(id device.ID, healthy bool) []device.Status {
	return []device.Status{{Device: gpuDevice("other"), Healthy: true}, {Device: gpuDevice(id), Healthy: healthy, Since: time.Now()}}
}

func formatRecovery(i incident.Incident) string {
	if i.RecoveredAt == nil {
		return "no"
	}
	return i.RecoveredAt.Sub(i.First).String()
}

func TestRecovery(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		s.statuses.Set(status("a", true))
		time.Sleep(time.Second)
		s.Record(xidEvent(79, gpuDevice("a"))) // the statuses have not changed yet
		s.Record(xidEvent(31, gpuDevice("a")))
		want := func(when, want string) {
			t.Helper()
			if got := s.incidents(); formatRecovery(got[len(got)-1]) != want || got[len(got)-2].RecoveredAt != nil {
				t.Errorf("%s: recovery: got %s, want %s", when, formatRecovery(got[len(got)-1]), want)
			}
		}
		want("before the device is unhealthy", "no")
		s.statuses.Set(status("a", false))
		want("while unhealthy", "no")
		s.statuses.Set(nil)
		want("while gone", "no")
		time.Sleep(30 * time.Second)
		s.statuses.Set(status("a", true))
		want("healthy again", "30.9s")
		time.Sleep(time.Second)
		s.Record(xidEvent(79, gpuDevice("a")))
		if got := s.incidents(); len(got) != 3 || got[0].RecoveredAt != nil || got[0].Count != 1 {
			t.Errorf("next incident: got %+v, want one event and no recovery", got[0])
		}
	})
}

// fakeTerminations simulates the kubelet's Pods API.
type fakeTerminations struct {
	mu   sync.Mutex
	pods map[string]device.Termination
}

func (f *fakeTerminations) set(s *fixture, pod string, termination device.Termination) {
	f.mu.Lock()
	f.pods[pod] = termination
	f.mu.Unlock()
	s.terminations.Set(f.find)
}

func (f *fakeTerminations) find(assignment device.Assignment) (device.Termination, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	termination, ok := f.pods[assignment.Owner.Pod]
	if assignment.PodUID != "" && assignment.PodUID != termination.PodUID {
		return device.Termination{}, false
	}
	return termination, ok
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

func TestTerminations(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		code := func(n int32) *int32 { return &n }
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		want := func(when, uid, want string) {
			t.Helper()
			got := s.incidents()[0].Affected[0]
			if got.UID != uid || formatTermination(got.Termination) != want {
				t.Errorf("%s: got %q %s, want %q %s", when, got.UID, formatTermination(got.Termination), uid, want)
			}
		}
		want("without a Pods API", "", "-")
		f.set(s, "B", device.Termination{PodUID: "b"})
		want("before the pod is known", "", "-")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running"})
		want("running", "a", "-")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running", Restarts: 1, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("restarted", "a", "Running Error 3 1")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running", Restarts: 2, Ended: true, Reason: "OOMKilled", ExitCode: code(137)})
		want("later run with another exit code", "a", "Running Error 3 2")
		s.terminations.Set(nil)
		want("while terminations are unknown", "a", "Running Error 3 2")
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Restarts: 2, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("final", "a", "Failed Error 3 2")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running"})
		want("no change after the final state", "a", "Failed Error 3 2")
	})
}

// TestTerminationInParts checks that the kubelet may report the end of the pod before the end of the container.
func TestTerminationInParts(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Failed", Ended: true, Reason: "Evicted"})
		s.settle()
		n := int32(137)
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Ended: true, Reason: "Evicted", ExitCode: &n})
		if got := formatTermination(s.incidents()[0].Affected[0].Termination); got != "Failed Evicted 137 0" {
			t.Errorf("termination: got %s, want Failed Evicted 137 0", got)
		}
	})
}

// TestTerminationAtInvalidTime checks that a time that JSON cannot represent is left out.
func TestTerminationAtInvalidTime(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Ended: true, EndedAt: time.Unix(1<<60, 0)})
		if got := s.incidents()[0].Affected[0].Termination; got == nil || !got.At.IsZero() {
			t.Errorf("termination: got %+v, want no time", got)
		}
	})
}

// TestUnknownTermination checks that the search for an unknown pod ends.
func TestUnknownTermination(t *testing.T) {
	runFixture(t, incident.Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		s.terminations.Set(f.find)
		time.Sleep(11 * time.Minute)
		f.set(s, "A", device.Termination{PodUID: "a", Ended: true})
		if got := s.incidents()[0].Affected[0]; got.UID != "" || got.Termination != nil {
			t.Errorf("after the timeout: got %+v, want an unknown pod", got)
		}
	})
}
