package containers

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

var nobody device.Owner

func TestNames(t *testing.T) {
	long := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 100), Container: "c"}   // the id is cut
	longer := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 253), Container: "c"} // all but the pod's name is
	uncut := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 120), Container: "c"}  // 251 characters
	quoted := device.Owner{Namespace: "m\"l\n", Pod: "\xff\xfe", Container: "ma\\in"}
	both := []device.Owner{side, train, infer}
	cases := []struct {
		name    string
		place   func(s *stage)
		holders []device.Owner
		want    device.Owner
	}{
		{"a link", func(s *stage) { s.log(train, idA) }, both, train},
		{"a link, and another's", func(s *stage) { s.log(side, idB); s.log(train, idA); s.log(infer, idC) }, both, train},
		{"a link of a container that does not hold the device", func(s *stage) { s.log(side, idA) }, []device.Owner{train, infer}, nobody},
		{"a link rather than a guess", func(s *stage) { s.log(side, idA); s.folders(train, uid, "main", "side") }, []device.Owner{train}, nobody},
		{"the same names in another namespace", func(s *stage) { s.log(train, idA) }, []device.Owner{{Namespace: "other", Pod: "train-0", Container: "main"}}, nobody},
		{"a link that just fits", func(s *stage) { s.log(uncut, idA) }, []device.Owner{uncut}, uncut},
		{"a link with an id that is cut", func(s *stage) { s.log(long, idA); s.folders(long, uid, "c") }, []device.Owner{long}, long},
		{"a link with nothing but the pod", func(s *stage) { s.log(longer, idA) }, []device.Owner{longer}, nobody},
		{"a link by the id of another container", func(s *stage) { s.log(train, idB) }, both, nobody},
		{"the pod's folder, one holder", func(s *stage) { s.folders(train, uid, "main", "side") }, []device.Owner{infer, train}, train},
		{"the pod's folder, one holder of two shares", func(s *stage) { s.folders(train, uid, "main", "side") }, []device.Owner{train, train}, train},
		{"the pod's folder, two holders", func(s *stage) { s.folders(train, uid, "main", "side") }, both, nobody},
		{"the pod's folder, two holders, one container", func(s *stage) { s.folders(train, uid, "side") }, both, side},
		{"the pod's folder, one container, which does not hold it", func(s *stage) { s.folders(train, uid, "side") }, []device.Owner{train}, nobody},
		{"the pod's folder, and a file in it", func(s *stage) {
			s.folders(train, uid, "main")
			s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid+"/file", nil, 0o644))
		}, both, train},
		{"the pod's folder, empty", func(s *stage) { s.folders(train, uid) }, both, nobody},
		{"the pod's folder, and its pod no holder", func(s *stage) { s.folders(train, uid, "main") }, []device.Owner{infer}, nobody},
		{"the folder of an earlier pod of that name", func(s *stage) { s.folders(train, uid2, "main") }, []device.Owner{train}, nobody},
		{"a file for a folder", func(s *stage) { s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid, nil, 0o644)) }, []device.Owner{train}, train},
		{"no link and no folder", func(*stage) {}, both, nobody},
		{"no folders at all", func(s *stage) { s.must(os.RemoveAll(s.logs)); s.must(os.RemoveAll(s.pods)) }, both, nobody},
		{"links only", func(s *stage) { s.must(os.RemoveAll(s.pods)); s.log(train, idA) }, both, train},
		{"pods' folders only", func(s *stage) { s.must(os.RemoveAll(s.logs)); s.folders(train, uid, "main") }, both, train},
		{"bytes that no name has", func(s *stage) { s.log(quoted, idA) }, both, nobody},
		{"bytes that no name has, of a holder", func(s *stage) { s.log(quoted, idA) }, []device.Owner{quoted}, quoted},
		{"broken names beside", func(s *stage) {
			for _, name := range []string{"-" + idA + ".log", "x-" + idA + ".log", "a_b-" + idA + ".log", "a_b_-" + idA + ".log", "a_b_c_d-" + idA + ".log", "\xff", "é\n_\"_'-" + idB + ".log"} {
				s.must(os.WriteFile(s.logs+"/"+name, nil, 0o644))
			}
			for _, name := range []string{"_" + uid, "ml_" + uid, "_train-0_" + uid, "a_b_c_" + uid, "\xff\xff_" + uid, uid} {
				s.must(os.Mkdir(s.pods+"/"+name, 0o755))
			}
			s.log(train, idA)
		}, both, train},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			s.process(5, inOne)
			c.place(s)
			l := s.locator()
			s.is(l, 5, c.want, c.holders...)
			s.is(l, 5, c.want, c.holders...) // the same from memory
		})
	}
}

func TestNamedComesFirst(t *testing.T) {
	s := newStage(t)
	s.process(5, inOne)
	s.log(side, idA)
	s.log(infer, idB)
	knows, asked := false, []place(nil)
	l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: silent, Named: func(uid, id string) (device.Owner, bool) {
		asked = append(asked, place{uid, id})
		return train, knows
	}})
	s.is(l, 5, side, train, side) // it does not know, the link does
	knows = true
	s.is(l, 5, side, train, side) // a name stays
	s.process(6, in(uid2, idB))
	s.is(l, 6, train, train, infer) // it does, and the link is not asked
	s.process(7, in(uid2, idB))
	s.is(l, 7, train, train, infer)
	if want := []place{{uid, idA}, {uid2, idB}}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
}

// TestFoldersAreReadSeldom has links appear, and counts on a folder that is not read
// not to show them.
func TestFoldersAreReadSeldom(t *testing.T) {
	s := newStage(t)
	s.process(5, in(uid, idA))
	s.process(6, in(uid2, idB))
	synctest.Test(t, func(*testing.T) {
		l := s.locator()
		s.is(l, 5, nobody, train)
		s.log(train, idA)
		s.log(infer, idB)
		time.Sleep(recheck - time.Millisecond)
		s.is(l, 5, nobody, train)
		s.is(l, 6, nobody, infer) // for a new one neither
		time.Sleep(time.Millisecond)
		s.is(l, 5, train, train)
		s.is(l, 6, infer, infer) // in what was read for the other

		s.must(os.RemoveAll(s.logs))
		time.Sleep(time.Hour)
		s.is(l, 5, train, train) // what is known is not looked for again
	})
}

// TestFoldersAreReadLessAndLess has a container that is never found.
func TestFoldersAreReadLessAndLess(t *testing.T) {
	s := newStage(t)
	s.process(5, in(uid, idA))
	synctest.Test(t, func(t *testing.T) {
		l := s.locator()
		reads, begin := 0, time.Now()
		for last := l.listed; ; time.Sleep(recheck) {
			s.is(l, 5, nobody, train)
			if l.listed != last {
				last = l.listed
				reads++
			}
			if reads == 10 {
				break
			}
		}
		// At 0, 1, 3, 7, 15, 31 and 63 s, and each minute from then on.
		if took := time.Since(begin); took != 63*time.Second+3*rarely {
			t.Errorf("the folders are read for the tenth time after %v", took)
		}
		s.log(train, idA)
		time.Sleep(rarely)
		s.is(l, 5, train, train)
	})
}

// TestGuessIsCorrected has a pod with two containers, whose process is at first known
// only by its pod.
func TestGuessIsCorrected(t *testing.T) {
	s := newStage(t)
	s.process(5, in(uid, idA))
	s.folders(train, uid, "main", "side")
	synctest.Test(t, func(*testing.T) {
		l := s.locator()
		s.is(l, 5, train, train)
		s.log(side, idA)
		time.Sleep(recheck)
		s.is(l, 5, nobody, train)
		s.is(l, 5, side, train, side)
	})
}

// TestUnreadableFolderIsSaidOnce has a folder that is not one, and then is.
func TestUnreadableFolderIsSaidOnce(t *testing.T) {
	s := newStage(t)
	s.process(5, in(uid, idA))
	s.must(os.Remove(s.logs))
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 100 {
			s.is(l, 5, nobody, train)
			time.Sleep(recheck)
		}
		if lines(&log) != 1 || !strings.Contains(log.String(), s.logs) {
			t.Errorf("the log is %q", log.String())
		}
		s.must(os.Mkdir(s.logs, 0o755))
		s.log(train, idA)
		time.Sleep(rarely)
		s.is(l, 5, train, train)
	})
}
