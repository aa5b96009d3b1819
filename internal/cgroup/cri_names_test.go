package cgroup

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

var noOwner device.Owner

func TestOwnerNames(t *testing.T) {
	long := device.Owner{
		Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 100),
		Container: "c",
	} // truncates the id
	// leaves the pod's name only
	longer := device.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 253), Container: "c"}
	uncut := device.Owner{
		Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 120),
		Container: "c",
	} // 251 characters
	quoted := device.Owner{Namespace: "m\"l\n", Pod: "\xff\xfe", Container: "ma\\in"}
	both := []device.Owner{side, train, infer}
	link := func(o device.Owner, id string) func(*procFixture) {
		return func(s *procFixture) { s.addLogLink(o, id) }
	}
	dirs := func(o device.Owner, uid string, containers ...string) func(*procFixture) {
		return func(s *procFixture) { s.addPodDirs(o, uid, containers...) }
	}
	cases := []struct {
		name    string
		prepare func(s *procFixture)
		owners  []device.Owner
		want    device.Owner
	}{
		{"link", link(train, idA), both, train},
		{"several links", func(s *procFixture) {
			s.addLogLink(side, idB)
			s.addLogLink(train, idA)
			s.addLogLink(infer,
				idC)
		}, both, train},
		{"link of a container without an allocation", link(side, idA), []device.Owner{train, infer}, noOwner},
		{
			"link takes precedence over the pod's only candidate",
			func(s *procFixture) { s.addLogLink(side, idA); s.addPodDirs(train, uid, "main", "side") },
			[]device.Owner{train},
			noOwner,
		},
		{
			"same names in another namespace", link(train, idA),
			[]device.Owner{{Namespace: "other", Pod: "train-0", Container: "main"}},
			noOwner,
		},
		{"link of maximum length", link(uncut, idA), []device.Owner{uncut}, uncut},
		{
			"link with a truncated id", func(s *procFixture) { s.addLogLink(long, idA); s.addPodDirs(long, uid, "c") },
			[]device.Owner{long},
			long,
		},
		{"link truncated to the pod's name", link(longer, idA), []device.Owner{longer}, noOwner},
		{"link with the id of another container", link(train, idB), both, noOwner},
		{"pod folder, one candidate", dirs(train, uid, "main", "side"), []device.Owner{infer, train}, train},
		{
			"pod folder, one candidate with two replicas",
			dirs(train, uid, "main", "side"),
			[]device.Owner{train, train},
			train,
		},
		{"pod folder, two candidates", dirs(train, uid, "main", "side"), both, noOwner},
		{"pod folder, two candidates, one container", dirs(train, uid, "side"), both, side},
		{"pod folder, one container without an allocation", dirs(train, uid, "side"), []device.Owner{train}, noOwner},
		{"pod folder with a file", func(s *procFixture) {
			s.addPodDirs(train, uid, "main")
			s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid+"/file", nil, 0o644))
		}, both, train},
		{"empty pod folder", dirs(train, uid), both, noOwner},
		{"pod folder, pod is no candidate", dirs(train, uid, "main"), []device.Owner{infer}, noOwner},
		{"folder of an earlier pod of the name", dirs(train, uid2, "main"), []device.Owner{train}, noOwner},
		{"file instead of a folder", func(s *procFixture) {
			s.must(os.WriteFile(s.pods+"/ml_train-0_"+uid, nil, 0o644))
		}, []device.Owner{train}, train},
		{"no link and no folder", func(*procFixture) {}, both, noOwner},
		{
			"no folders at all", func(s *procFixture) { s.must(os.RemoveAll(s.logs)); s.must(os.RemoveAll(s.pods)) },
			both,
			noOwner,
		},
		{"links only", func(s *procFixture) { s.must(os.RemoveAll(s.pods)); s.addLogLink(train, idA) }, both, train},
		{
			"pods' folders only", func(s *procFixture) {
				s.must(os.RemoveAll(s.logs))
				s.addPodDirs(train, uid, "main")
			},
			both, train,
		},
		{"link with invalid names", link(quoted, idA), both, noOwner},
		{"link with the invalid names of a candidate", link(quoted, idA), []device.Owner{quoted}, quoted},
		{"invalid entries", func(s *procFixture) {
			for _, name := range []string{
				"-" + idA + ".log", "x-" + idA + ".log", "a_b-" + idA + ".log",
				"a_b_-" + idA + ".log", "a_b_c_d-" + idA + ".log", "\xff", "é\n_\"_'-" + idB + ".log",
			} {
				s.must(os.WriteFile(s.logs+"/"+name, nil, 0o644))
			}
			for _, name := range []string{
				"_" + uid, "ml_" + uid, "_train-0_" + uid, "a_b_c_" + uid, "\xff\xff_" + uid,
				uid,
			} {
				s.must(os.Mkdir(s.pods+"/"+name, 0o755))
			}
			s.addLogLink(train, idA)
		}, both, train},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newProcFixture(t)
			s.addProcess(5, cgroupFileA)
			c.prepare(s)
			l := s.newLocator()
			s.wantOwner(l, 5, c.want, c.owners...)
			s.wantOwner(l, 5, c.want, c.owners...) // cached
		})
	}
}

func TestResolveOwnerComesFirst(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFileA)
	s.addLogLink(side, idA)
	s.addLogLink(infer, idB)
	known, calls := false, []containerRef(nil)
	l := New(Options{
		Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: discardLog,
		ResolveOwner: func(uid, id string) (device.Owner, bool) {
			calls = append(calls, containerRef{uid, id})
			return train, known
		},
	})
	s.wantOwner(l, 5, side, train, side) // ResolveOwner fails, so the link decides
	known = true
	s.wantOwner(l, 5, side, train, side) // cached
	s.addProcess(6, cgroupFile(uid2, idB))
	s.wantOwner(l, 6, train, train, infer) // ResolveOwner decides
	s.addProcess(7, cgroupFile(uid2, idB))
	s.wantOwner(l, 7, train, train, infer)
	if want := []containerRef{{uid, idA}, {uid2, idB}}; !slices.Equal(calls, want) {
		t.Errorf("calls: got %v, want %v", calls, want)
	}
}

// TestListingInterval adds links. A new link is found in the next listing.
func TestListingInterval(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.addProcess(6, cgroupFile(uid2, idB))
	bubble.Test(t, func(*testing.T) {
		l := s.newLocator()
		s.wantOwner(l, 5, noOwner, train)
		s.addLogLink(train, idA)
		s.addLogLink(infer, idB)
		time.Sleep(recheckInterval - time.Millisecond)
		s.wantOwner(l, 5, noOwner, train)
		s.wantOwner(l, 6, noOwner, infer) // also for a new process
		time.Sleep(time.Millisecond)
		s.wantOwner(l, 5, train, train)
		s.wantOwner(l, 6, infer, infer) // from the same listing

		s.must(os.RemoveAll(s.logs))
		time.Sleep(time.Hour)
		s.wantOwner(l, 5, train, train) // resolved for good
	})
}

// TestListingBackoff counts the listings for a container without a name.
func TestListingBackoff(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	bubble.Test(t, func(t *testing.T) {
		l := s.newLocator()
		listings, begin := 0, time.Now()
		for last := l.names.listedAt; ; time.Sleep(recheckInterval) {
			s.wantOwner(l, 5, noOwner, train)
			if l.names.listedAt != last {
				last = l.names.listedAt
				listings++
			}
			if listings == 10 {
				break
			}
		}
		// At 0, 1, 3, 7, 15, 31 and 63 s, and each minute from then on.
		if took := time.Since(begin); took != 63*time.Second+3*maxListInterval {
			t.Errorf("tenth listing: got it after %v, want 63 s and three times maxListInterval", took)
		}
		s.addLogLink(train, idA)
		time.Sleep(maxListInterval)
		s.wantOwner(l, 5, train, train)
	})
}

// TestLinkCorrectsOwner attributes a process by the pod alone until the
// container's link appears.
func TestLinkCorrectsOwner(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.addPodDirs(train, uid, "main", "side")
	bubble.Test(t, func(*testing.T) {
		l := s.newLocator()
		s.wantOwner(l, 5, train, train)
		s.addLogLink(side, idA)
		time.Sleep(recheckInterval)
		s.wantOwner(l, 5, noOwner, train)
		s.wantOwner(l, 5, side, train, side)
	})
}

// TestUnreadableFolderLoggedOnce checks the log of a missing folder, and its
// later appearance.
func TestUnreadableFolderLoggedOnce(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFile(uid, idA))
	s.must(os.Remove(s.logs))
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 100 {
			s.wantOwner(l, 5, noOwner, train)
			time.Sleep(recheckInterval)
		}
		if lineCount(&log) != 1 || !strings.Contains(log.String(), s.logs) {
			t.Errorf("got log %q, want one line with the folder", log.String())
		}
		s.must(os.Mkdir(s.logs, 0o755))
		s.addLogLink(train, idA)
		time.Sleep(maxListInterval)
		s.wantOwner(l, 5, train, train)
	})
}
