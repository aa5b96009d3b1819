package incident

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func status(id device.ID, healthy bool) []device.Status {
	return []device.Status{{Device: whole("other"), Healthy: true}, {Device: whole(id), Healthy: healthy, Since: time.Now()}}
}

func healed(i Incident) string {
	if i.Healed == nil {
		return "no"
	}
	return i.Healed.Sub(i.First).String()
}

func TestHealing(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.board.Post(status("a", true))
		time.Sleep(time.Second)
		s.Happened(xid(79, whole("a"))) // the board is as before
		s.Happened(xid(31, whole("a")))
		want := func(when, want string) {
			t.Helper()
			if got := s.incidents(); healed(got[len(got)-1]) != want || got[len(got)-2].Healed != nil {
				t.Errorf("%s: healed %s, want %s", when, healed(got[len(got)-1]), want)
			}
		}
		want("before the verdict", "no")
		s.board.Post(status("a", false))
		want("while it is bad", "no")
		s.board.Post(nil)
		want("while it is gone", "no")
		time.Sleep(sameWithin / 2)
		s.board.Post(status("a", true))
		want("healthy again", "30.9s")
		time.Sleep(time.Second)
		s.Happened(xid(79, whole("a")))
		if got := s.incidents(); len(got) != 3 || got[0].Healed != nil || got[0].Count != 1 {
			t.Errorf("the next one is %+v", got[0])
		}
	})
}

// fates is a kubelet's Pods API.
type fates struct {
	mu   sync.Mutex
	pods map[string]device.Fate
}

func (f *fates) set(s *stage, pod string, fate device.Fate) {
	f.mu.Lock()
	f.pods[pod] = fate
	f.mu.Unlock()
	s.pods.post(f.find)
}

func (f *fates) find(stay device.Stay) (device.Fate, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fate, ok := f.pods[stay.Owner.Pod]
	if stay.UID != "" && stay.UID != fate.UID {
		return device.Fate{}, false
	}
	return fate, ok
}

func ending(e *Ending) string {
	if e == nil {
		return "-"
	}
	code := "?"
	if e.ExitCode != nil {
		code = fmt.Sprint(*e.ExitCode)
	}
	return fmt.Sprintf("%s %s %s %d", e.Phase, e.Reason, code, e.Restarts)
}

func TestEndings(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		f := &fates{pods: map[string]device.Fate{}}
		code := func(n int32) *int32 { return &n }
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(31, whole("a")))
		want := func(when, uid, want string) {
			t.Helper()
			got := s.incidents()[0].Holders[0]
			if got.UID != uid || ending(got.Ended) != want {
				t.Errorf("%s: it is %q %s, want %q %s", when, got.UID, ending(got.Ended), uid, want)
			}
		}
		want("without a Pods API", "", "-")
		f.set(s, "B", device.Fate{UID: "b"})
		want("before its pod is told of", "", "-")
		f.set(s, "A", device.Fate{UID: "a", Phase: "Running"})
		want("it runs", "a", "-")
		f.set(s, "A", device.Fate{UID: "a", Phase: "Running", Restarts: 1, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("it was started again", "a", "Running Error 3 1")
		f.set(s, "A", device.Fate{UID: "a", Phase: "Running", Restarts: 2, Ended: true, Reason: "OOMKilled", ExitCode: code(137)})
		want("a later run ended in another way", "a", "Running Error 3 2")
		s.pods.post(nil)
		want("while nobody can tell", "a", "Running Error 3 2")
		f.set(s, "A", device.Fate{UID: "a", Over: true, Phase: "Failed", Restarts: 2, Ended: true, Reason: "Error", ExitCode: code(3)})
		want("it is over", "a", "Failed Error 3 2")
		f.set(s, "A", device.Fate{UID: "a", Phase: "Running"})
		want("nothing comes after that", "a", "Failed Error 3 2")
	})
}

// A pod that is told to be over before its container's end is.
func TestEndingThatComesInParts(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		f := &fates{pods: map[string]device.Fate{}}
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(31, whole("a")))
		f.set(s, "A", device.Fate{UID: "a", Phase: "Failed", Ended: true, Reason: "Evicted"})
		s.settle()
		n := int32(137)
		f.set(s, "A", device.Fate{UID: "a", Over: true, Phase: "Failed", Ended: true, Reason: "Evicted", ExitCode: &n})
		if got := ending(s.incidents()[0].Holders[0].Ended); got != "Failed Evicted 137 0" {
			t.Errorf("it ended %s", got)
		}
	})
}

// A time that JSON cannot have costs itself.
func TestEndingAtAnImpossibleTime(t *testing.T) {
	play(t, inFolder(t.TempDir()), func(t *testing.T, s *stage) {
		f := &fates{pods: map[string]device.Fate{}}
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(31, whole("a")))
		f.set(s, "A", device.Fate{UID: "a", Over: true, Phase: "Failed", Ended: true, At: time.Unix(1<<60, 0)})
		if got := s.incidents()[0].Holders[0].Ended; got == nil || !got.At.IsZero() {
			t.Errorf("it ended %+v", got)
		}
		if known := s.written(); !known.Kept {
			t.Error(known.Err)
		}
	})
}

// A pod that is never told of is not looked for for ever.
func TestEndingThatNobodyKnows(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		f := &fates{pods: map[string]device.Fate{}}
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(31, whole("a")))
		s.pods.post(f.find)
		s.settle()
		if !s.awaits() {
			t.Error("it is not looked for")
		}
		time.Sleep(tracedFor)
		f.set(s, "B", device.Fate{})
		s.settle()
		if s.awaits() {
			t.Error("it is looked for still")
		}
	})
}

// awaits tells whether more is to be known of somebody's end.
func (l *Log) awaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.awaits()
}
