package cgroup

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

var noOwner device.Owner

func TestNames(t *testing.T) {
	long := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 100), Container: "c"}   // the id is cut
	longer := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 253), Container: "c"} // all but the pod's name is
	uncut := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 120), Container: "c"}  // 251 characters
	quoted := device.Owner{Namespace: "m\"l\n", Pod: "\xff\xfe", Container: "ma\\in"}
	both := []device.Owner{side, train, infer}
	cases := []struct {
		name    string
		place   func(s *procFixture)
		holders []device.Owner
		want    device.Owner
	}{
		{"a link", func(s *procFixture) { s.addLogLink(train, idA) }, both, train},
		{"a link, and another's", func(s *procFixture) { s.addLogLink(side, idB); s.addLogLink(train, idA); s.addLogLink(infer, idC) }, both, train},
		{"a link of a container that does not hold the device", func(s *procFixture) { s.addLogLink(side, idA) }, []device.Owner{train, infer}, noOwner},
		{"a link rather than a guess", func(s *procFixture) { s.addLogLink(side, idA); s.addPodDirs(train, uid, "main", "side") }, []device.Owner{train}, noOwner},
		{"the same names in another namespace", func(s *procFixture) { s.addLogLink(train, idA) }, []device.Owner{{Namespace: "other", Pod: "train-0", Container: "main"}}, noOwner},
		{"a link that just fits", func(s *procFixture) { s.addLogLink(uncut, idA) }, []device.Owner{uncut}, uncut},
		{"a link with an id that is cut", func(s *procFixture) { s.addLogLink(long, idA); s.addPodDirs(long, uid, "c") }, []device.Owner{long}, long},
		{"a link with nothing but the pod", func(s *procFixture) { s.addLogLink(longer, idA) }, []device.Owner{longer}, noOwner},
		{"a link by the id of another container", func(s *procFixture) { s.addLogLink(train, idB) }, both, noOwner},
		{"the pod's folder, one holder", func(s *procFixture) { s.addPodDirs(train, uid, "main", "side") }, []device.Owner{infer, train}, train},
		{"the pod's folder, one holder of two shares", func(s *procFixture) { s.addPodDirs(train, uid, "main", "side") }, []device.Owner{train, train}, train},
		{"the pod's folder, two holders", func(s *procFixture) { s.addPodDirs(train, uid, "main", "side") }, both, noOwner},
		{"the pod's folder, two holders, one container", func(s *procFixture) { s.addPodDirs(train, uid, "side") }, both, side},
		{"the pod's folder, one container, which does not hold it", func(s *procFixture) { s.addPodDirs(train, uid, "side") }, []device.Owner{train}, noOwner},
		{"the pod's folder, and a file in it", func(s *procFixture) {
			s.addPodDirs(train, uid, "main")
			s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid+"/file", nil, 0o644))
		}, both, train},
		{"the pod's folder, empty", func(s *procFixture) { s.addPodDirs(train, uid) }, both, noOwner},
		{"the pod's folder, and its pod no holder", func(s *procFixture) { s.addPodDirs(train, uid, "main") }, []device.Owner{infer}, noOwner},
		{"the folder of an earlier pod of that name", func(s *procFixture) { s.addPodDirs(train, uid2, "main") }, []device.Owner{train}, noOwner},
		{"a file for a folder", func(s *procFixture) { s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid, nil, 0o644)) }, []device.Owner{train}, train},
		{"no link and no folder", func(*procFixture) {}, both, noOwner},
		{"no folders at all", func(s *procFixture) { s.must(os.RemoveAll(s.logs)); s.must(os.RemoveAll(s.pods)) }, both, noOwner},
		{"links only", func(s *procFixture) { s.must(os.RemoveAll(s.pods)); s.addLogLink(train, idA) }, both, train},
		{"pods' folders only", func(s *procFixture) { s.must(os.RemoveAll(s.logs)); s.addPodDirs(train, uid, "main") }, both, train},
		{"bytes that no name has", func(s *procFixture) { s.addLogLink(quoted, idA) }, both, noOwner},
		{"bytes that no name has, of a holder", func(s *procFixture) { s.addLogLink(quoted, idA) }, []device.Owner{quoted}, quoted},
		{"broken names beside", func(s *procFixture) {
			for _, name := range []string{"-" + idA + ".log", "x-" + idA + ".log", "a_b-" + idA + ".log", "a_b_-" + idA + ".log", "a_b_c_d-" + idA + ".log", "\xff", "é\n_\"_'-" + idB + ".log"} {
				s.must(os.WriteFile(s.logs+"/"+name, nil, 0o644))
			}
			for _, name := range []string{"_" + uid, "ml_" + uid, "_train-0_" + uid, "a_b_c_" + uid, "\xff\xff_" + uid, uid} {
				s.must(os.Mkdir(s.pods+"/"+name, 0o755))
			}
			s.addLogLink(train, idA)
		}, both, train},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newProcFixture(t)
			s.addProcess(5, cgroupFileA)
			c.place(s)
			l := s.newLocator()
			s.wantOwner(l, 5, c.want, c.holders...)
			s.wantOwner(l, 5, c.want, c.holders...) // the same from memory
		})
	}
}

func TestNamedComesFirst(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFileA)
	s.addLogLink(side, idA)
	s.addLogLink(infer, idB)
	knows, asked := false, []containerRef(nil)
	l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: discardLog, ResolveOwner: func(uid, id string) (device.Owner, bool) {
		asked = append(asked, containerRef{uid, id})
		return train, knows
	}})
	s.wantOwner(l, 5, side, train, side) // it does not know, the link does
	knows = true
	s.wantOwner(l, 5, side, train, side) // a name stays
	s.addProcess(6, cgroupFile(uid2, idB))
	s.wantOwner(l, 6, train, train, infer) // it does, and the link is not asked
	s.addProcess(7, cgroupFile(uid2, idB))
	s.wantOwner(l, 7, train, train, infer)
	if want := []containerRef{{uid, idA}, {uid2, idB}}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
}

// TestFoldersAreReadSeldom has links appear, and counts on a folder that is not read
// not to show them.
func TestFoldersAreReadSeldom(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.addProcess(6, cgroupFile(uid2, idB))
	synctest.Test(t, func(*testing.T) {
		l := s.newLocator()
		s.wantOwner(l, 5, noOwner, train)
		s.addLogLink(train, idA)
		s.addLogLink(infer, idB)
		time.Sleep(recheckInterval - time.Millisecond)
		s.wantOwner(l, 5, noOwner, train)
		s.wantOwner(l, 6, noOwner, infer) // for a new one neither
		time.Sleep(time.Millisecond)
		s.wantOwner(l, 5, train, train)
		s.wantOwner(l, 6, infer, infer) // in what was read for the other

		s.must(os.RemoveAll(s.logs))
		time.Sleep(time.Hour)
		s.wantOwner(l, 5, train, train) // what is known is not looked for again
	})
}

// TestFoldersAreReadLessAndLess has a container that is never found.
func TestFoldersAreReadLessAndLess(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	synctest.Test(t, func(t *testing.T) {
		l := s.newLocator()
		reads, begin := 0, time.Now()
		for last := l.names.listedAt; ; time.Sleep(recheckInterval) {
			s.wantOwner(l, 5, noOwner, train)
			if l.names.listedAt != last {
				last = l.names.listedAt
				reads++
			}
			if reads == 10 {
				break
			}
		}
		// At 0, 1, 3, 7, 15, 31 and 63 s, and each minute from then on.
		if took := time.Since(begin); took != 63*time.Second+3*maxListInterval {
			t.Errorf("the folders are read for the tenth time after %v", took)
		}
		s.addLogLink(train, idA)
		time.Sleep(maxListInterval)
		s.wantOwner(l, 5, train, train)
	})
}

// TestGuessIsCorrected has a pod with two containers, whose process is at first known
// only by its pod.
func TestGuessIsCorrected(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.addPodDirs(train, uid, "main", "side")
	synctest.Test(t, func(*testing.T) {
		l := s.newLocator()
		s.wantOwner(l, 5, train, train)
		s.addLogLink(side, idA)
		time.Sleep(recheckInterval)
		s.wantOwner(l, 5, noOwner, train)
		s.wantOwner(l, 5, side, train, side)
	})
}

// TestUnreadableFolderIsSaidOnce has a folder that is not one, and then is.
func TestUnreadableFolderIsSaidOnce(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.must(os.Remove(s.logs))
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 100 {
			s.wantOwner(l, 5, noOwner, train)
			time.Sleep(recheckInterval)
		}
		if lineCount(&log) != 1 || !strings.Contains(log.String(), s.logs) {
			t.Errorf("the log is %q", log.String())
		}
		s.must(os.Mkdir(s.logs, 0o755))
		s.addLogLink(train, idA)
		time.Sleep(maxListInterval)
		s.wantOwner(l, 5, train, train)
	})
}
