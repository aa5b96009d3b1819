package incident

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func status(id device.ID, healthy bool) []device.Status {
	return []device.Status{{Device: gpuDevice("other"), Healthy: true}, {Device: gpuDevice(id), Healthy: healthy, Since: time.Now()}}
}

func formatRecovery(i Incident) string {
	if i.RecoveredAt == nil {
		return "no"
	}
	return i.RecoveredAt.Sub(i.First).String()
}

func TestRecovery(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		s.statuses.Set(status("a", true))
		time.Sleep(time.Second)
		s.Record(xidEvent(79, gpuDevice("a"))) // the board is as before
		s.Record(xidEvent(31, gpuDevice("a")))
		want := func(when, want string) {
			t.Helper()
			if got := s.incidents(); formatRecovery(got[len(got)-1]) != want || got[len(got)-2].RecoveredAt != nil {
				t.Errorf("%s: recovered %s, want %s", when, formatRecovery(got[len(got)-1]), want)
			}
		}
		want("before the device is unhealthy", "no")
		s.statuses.Set(status("a", false))
		want("while it is bad", "no")
		s.statuses.Set(nil)
		want("while it is gone", "no")
		time.Sleep(mergeWindow / 2)
		s.statuses.Set(status("a", true))
		want("healthy again", "30.9s")
		time.Sleep(time.Second)
		s.Record(xidEvent(79, gpuDevice("a")))
		if got := s.incidents(); len(got) != 3 || got[0].RecoveredAt != nil || got[0].Count != 1 {
			t.Errorf("the next one is %+v", got[0])
		}
	})
}

// fakeTerminations is a kubelet's Pods API.
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

func (f *fakeTerminations) find(stay device.Assignment) (device.Termination, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	termination, ok := f.pods[stay.Owner.Pod]
	if stay.PodUID != "" && stay.PodUID != termination.PodUID {
		return device.Termination{}, false
	}
	return termination, ok
}

func formatTermination(e *PodTermination) string {
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
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		code := func(n int32) *int32 { return &n }
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		want := func(when, uid, want string) {
			t.Helper()
			got := s.incidents()[0].Affected[0]
			if got.UID != uid || formatTermination(got.Termination) != want {
				t.Errorf("%s: it is %q %s, want %q %s", when, got.UID, formatTermination(got.Termination), uid, want)
			}
		}
		want("without a Pods API", "", "-")
		f.set(s, "B", device.Termination{PodUID: "b"})
		want("before its pod is known", "", "-")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running"})
		want("it runs", "a", "-")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running", Restarts: 1, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("it was started again", "a", "Running Error 3 1")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running", Restarts: 2, Ended: true, Reason: "OOMKilled", ExitCode: code(137)})
		want("a later run ended in another way", "a", "Running Error 3 2")
		s.terminations.Set(nil)
		want("while terminations are unknown", "a", "Running Error 3 2")
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Restarts: 2, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("it is over", "a", "Failed Error 3 2")
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Running"})
		want("nothing comes after that", "a", "Failed Error 3 2")
	})
}

// TestTerminationInParts: the kubelet reports the end of the pod before the end of the container.
func TestTerminationInParts(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		f.set(s, "A", device.Termination{PodUID: "a", PodPhase: "Failed", Ended: true, Reason: "Evicted"})
		s.settle()
		n := int32(137)
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Ended: true, Reason: "Evicted", ExitCode: &n})
		if got := formatTermination(s.incidents()[0].Affected[0].Termination); got != "Failed Evicted 137 0" {
			t.Errorf("it ended %s", got)
		}
	})
}

// TestTerminationAtInvalidTime: a time that JSON lacks is left out.
func TestTerminationAtInvalidTime(t *testing.T) {
	runFixture(t, inFolder(t.TempDir()), func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		f.set(s, "A", device.Termination{PodUID: "a", PodEnded: true, PodPhase: "Failed", Ended: true, EndedAt: time.Unix(1<<60, 0)})
		if got := s.incidents()[0].Affected[0].Termination; got == nil || !got.At.IsZero() {
			t.Errorf("it ended %+v", got)
		}
		if known := s.waitWritten(); !known.Persisted {
			t.Error(known.Err)
		}
	})
}

// TestUnknownTermination: the search for an unknown pod ends.
func TestUnknownTermination(t *testing.T) {
	runFixture(t, Options{}, func(t *testing.T, s *fixture) {
		f := &fakeTerminations{pods: map[string]device.Termination{}}
		s.allocations.setOwner("a", owner("A"))
		s.Record(xidEvent(31, gpuDevice("a")))
		s.terminations.Set(f.find)
		s.settle()
		if !s.awaitsTermination() {
			t.Error("no search")
		}
		time.Sleep(terminationTimeout)
		f.set(s, "B", device.Termination{})
		s.settle()
		if s.awaitsTermination() {
			t.Error("the search has not ended")
		}
	})
}

// awaitsTermination reports whether some termination is not final.
func (l *Log) awaitsTermination() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tracker.awaitsTermination()
}
