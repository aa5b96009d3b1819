package incident

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Who is named, by what the kubelet says before and after a report. One letter is one
// container; two seconds pass between the steps that are apart.
func TestWhoHeldItThen(t *testing.T) {
	xid31 := func(s *stage) { s.Happened(xid(31, whole("a"))) }
	lost := func(s *stage) {
		s.Happened(device.Occurrence{At: time.Now(), GPU: "a", Hit: []device.Device{whole("a")}, Reason: "lost", Condemned: true})
	}
	wait := func(d time.Duration) func(*stage) { return func(*stage) { time.Sleep(d) } }
	allocate := func(id device.OfferedID) func(*stage) { return func(s *stage) { s.kubelet.allocate(id) } }
	name := func(id device.OfferedID, pod string) func(*stage) {
		return func(s *stage) { s.kubelet.name(id, owner(pod)) }
	}
	free := func(id device.OfferedID) func(*stage) { return func(s *stage) { s.kubelet.free(id) } }
	for _, test := range []struct {
		name  string
		steps []func(*stage)
		want  string
	}{
		{"nobody", []func(*stage){xid31}, ""},
		{"one", []func(*stage){name("a", "A"), xid31}, "A"},
		{"one, while another device is another's", []func(*stage){name("a", "A"), name("b", "B"), xid31}, "A"},
		{"replicas", []func(*stage){name("a::0", "A"), name("a::1", "B"), name("a::2", "B"), xid31}, "A B"},
		{"one who goes later", []func(*stage){name("a", "A"), xid31, wait(time.Second), free("a")}, "(A)"},
		{"one who goes before, just", []func(*stage){name("a", "A"), wait(time.Minute), free("a"), wait(justBefore), xid31}, "(A)"},
		{"one who goes before, long", []func(*stage){name("a", "A"), free("a"), wait(justBefore + 1), xid31}, ""},
		{"one whom nobody was asked about for long", []func(*stage){name("a", "A"), wait(time.Minute), free("a"), xid31}, "(A)"},
		{"one after the other, an Xid", []func(*stage){name("a", "A"), wait(time.Second), free("a"), allocate("a"), wait(time.Second), name("a", "B"), xid31}, "B"},
		{"one after the other, a check", []func(*stage){name("a", "A"), wait(time.Second), free("a"), allocate("a"), wait(time.Second), name("a", "B"), lost}, "B (A)"},
		{"one after the other, the second not named", []func(*stage){name("a", "A"), wait(time.Second), allocate("a"), xid31}, "?"},
		{"a replica's, before the other's", []func(*stage){name("a::0", "A"), name("a::1", "B"), wait(time.Minute), free("a::0"), wait(time.Second), xid31}, "B (A)"},

		{"named later", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(time.Second), name("a", "A")}, "A"},
		{"named later, and gone", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), free("a")}, "(A)"},
		{"named, gone, and another before anybody looks", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(1), name("a", "A"), free("a"), wait(1), allocate("a"), name("a", "B")}, "(A)"},
		{"never named", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(time.Hour)}, "?"},
		{"never named, and another after it", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(time.Second), allocate("a"), name("a", "B")}, "?"},
		{"never named, and another before anybody looks", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(1), allocate("a"), name("a", "B")}, "?"},
		{"never named, and idle, and another", []func(*stage){allocate("a"), wait(time.Second), xid31, wait(1), free("a"), wait(time.Second), name("a", "B")}, "?"},
		{"one replica of two named", []func(*stage){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B")}, "B ?"},
		{"both replicas named", []func(*stage){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(time.Second), name("a::1", "B"), wait(time.Second), name("a::0", "A")}, "B A"},
		{"one replica of two named, and the other gone", []func(*stage){allocate("a::0"), allocate("a::1"), wait(1), xid31, wait(1), name("a::1", "B"), free("a::0")}, "B ?"},
		{"idle, and somebody right after", []func(*stage){xid31, wait(1), allocate("a"), name("a", "B")}, ""},
		{"a new one, before the report is taken down", []func(*stage){func(s *stage) {
			o := xid(31, whole("a"))
			time.Sleep(time.Millisecond)
			s.kubelet.allocate("a")
			s.kubelet.name("a", owner("B"))
			s.Happened(o)
		}}, ""},
		{"one who goes, and another, before the report is taken down", []func(*stage){name("a", "A"), wait(time.Second), func(s *stage) {
			o := xid(31, whole("a"))
			time.Sleep(100 * time.Millisecond)
			s.kubelet.free("a")
			s.kubelet.allocate("a")
			s.kubelet.name("a", owner("B"))
			s.Happened(o)
		}}, "(A)"},
		{"one who comes and goes before the report is taken down", []func(*stage){func(s *stage) {
			o := xid(31, whole("a"))
			time.Sleep(time.Millisecond)
			s.kubelet.name("a", owner("B"))
			s.kubelet.free("a")
			s.Happened(o)
		}}, ""},
		{"nobody can tell who has it any more", []func(*stage){name("a", "A"), xid31, wait(time.Second), func(s *stage) { s.kubelet.post(device.Holders{}) }}, "A"},
		{"the same name again, before anybody looks", []func(*stage){name("a", "A"), xid31, wait(time.Second), free("a"), name("a", "A")}, "(A)"},
		{"the same name again", []func(*stage){name("a", "A"), wait(time.Second), xid31, wait(time.Second), allocate("a"), wait(time.Second), name("a", "A")}, "(A)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			play(t, Options{}, func(t *testing.T, s *stage) {
				time.Sleep(time.Minute)
				for _, step := range test.steps {
					step(s)
				}
				got := s.incidents()
				if len(got) != 1 || names(got[0]) != test.want {
					t.Errorf("the incident names %q, want %q", names(got[0]), test.want)
				}
			})
		})
	}
}

// A StatefulSet's next pod has the name and the device of the one before. It is another, and
// what hits it is another incident, also within a minute.
func TestTheNextPodOfTheSameNameIsAnother(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		for range 2 {
			s.kubelet.allocate("a")
			s.kubelet.name("a", owner("A"))
			time.Sleep(time.Second)
			s.Happened(xid(31, whole("a")))
			time.Sleep(time.Second)
			s.kubelet.free("a")
			time.Sleep(time.Second)
		}
		got := s.incidents()
		if len(got) != 2 || names(got[0]) != "(A)" || names(got[1]) != "(A)" || !got[0].Holders[0].Since.After(got[1].Last) {
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Look(); len(known.Hits) != 1 || known.Hits[0].Count != 2 {
			t.Errorf("the hits are %+v", known.Hits)
		}
	})
}

// A kubelet that comes up, as after a reboot, names one pod after the other. Who held the
// device before, and is not named yet, is not said to have lost it.
func TestWhoIsNotNamedYetHasTheDeviceStill(t *testing.T) {
	b := newBook(Options{MaxIncidents: 10}, time.Now())
	now := time.Now()
	b.load(snapshot{incidents: []Incident{{ID: 1, Device: "a", Reason: "xid_31", First: now, Last: now, Holders: []Holder{
		{Namespace: "team", Pod: "A", Container: "main"}, {Namespace: "team", Pod: "B", Container: "main"},
	}}}})
	h := device.Holders{At: now, Held: []device.Holding{{Resource: gpu, Offered: "a::1", Owner: owner("B")}}}
	b.follow(&h, now)
	if got := names(b.entries[0].Incident); got != "A B" {
		t.Errorf("while the kubelet comes up: %q", got)
	}
	h.Settled = true
	b.follow(&h, now)
	if got := names(b.entries[0].Incident); got != "(A) B" {
		t.Errorf("when it is up: %q", got)
	}
}

// Reports of a storm go to the one incident, whose holder gets his name meanwhile.
func TestStormWhileANameIsMissing(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.allocate("a")
		for i := range 100 {
			time.Sleep(time.Millisecond)
			if i == 50 {
				s.kubelet.name("a", owner("A"))
			}
			s.Happened(xid(31, whole("a")))
		}
		got := s.incidents()
		if len(got) != 1 || names(got[0]) != "A" || got[0].Count != 100 {
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Look(); len(known.Hits) != 1 || known.Hits[0].Count != 100 {
			t.Errorf("the hits are %+v", known.Hits)
		}
	})
}

func TestNobodyWasAsked(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.post(device.Holders{})
		s.Happened(xid(31, whole("a")))
		if got := s.incidents(); !got[0].HoldersUnknown || len(got[0].Holders) > 0 || got[0].Nameless {
			t.Errorf("the incident is %+v", got[0])
		}
	})
}

// TestNamedLate has the kubelet answer for the first time after a report. Its answer names the
// affected container only if the device is gone, since no other container can get it then.
func TestNamedLate(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason string
		after  time.Duration
		heal   bool
		want   string
	}{
		{"gone", device.ReasonGone, 10 * time.Second, false, "A"},
		{"gone, and back before", device.ReasonGone, 10 * time.Second, true, ""},
		{"gone, and long before", device.ReasonGone, amendWithin + time.Second, false, ""},
		{"lost", "lost", 10 * time.Second, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, Options{}, func(t *testing.T, s *stage) {
				s.kubelet.post(device.Holders{})
				s.Happened(device.Occurrence{At: time.Now(), GPU: "a", Hit: []device.Device{whole("a")}, Reason: c.reason, Condemned: true})
				time.Sleep(c.after)
				if c.heal {
					s.board.Post([]device.Status{{Device: whole("a"), Healthy: true, Since: time.Now()}})
					s.settle()
				}
				s.kubelet.name("a", owner("A"))
				time.Sleep(time.Second)
				if got := s.incidents(); len(got) != 1 || names(got[0]) != c.want || got[0].HoldersUnknown != (c.want == "") {
					t.Errorf("the incidents are %+v, want %q", got, c.want)
				}
				if known, _ := s.Look(); c.want != "" && len(known.Hits) != 1 {
					t.Errorf("the hits are %+v", known.Hits)
				}
			})
		})
	}
}

func TestManyHolders(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		for i := range mostHolders + 10 {
			s.kubelet.name(device.ID("a").Replica(i), owner(fmt.Sprint("pod-", i)))
		}
		s.Happened(xid(31, whole("a")))
		if got := s.incidents(); len(got[0].Holders) != mostHolders {
			t.Errorf("the incident has %d holders", len(got[0].Holders))
		}
	})
}

// truth is who really had a device, and from when until when.
type truth struct {
	pod      string
	from, to time.Time // to is zero while he has it
}

// Whatever comes and goes, and however late it is named: nobody is named who did not have
// the device at the time, or just before; and whoever had it is named, or it is said that
// a name is missing.
func TestNobodyIsNamedWhoWasNotThere(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			s := start(Options{})
			defer s.stop()
			r := rand.New(rand.NewPCG(seed, 1))
			var had []truth
			var reports []time.Time
			holds, named, pods := false, false, 0
			for range 60 {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				switch what := r.IntN(6); {
				case what < 2: // Allocate for the next pod, whoever had it
					if holds {
						had[len(had)-1].to = time.Now()
					}
					pods++
					had = append(had, truth{pod: fmt.Sprint("pod-", pods), from: time.Now()})
					s.kubelet.allocate("a")
					holds, named = true, false
				case what == 2 && holds && !named:
					s.kubelet.name("a", owner(had[len(had)-1].pod))
					named = true
				case what == 3 && holds:
					had[len(had)-1].to = time.Now()
					s.kubelet.free("a")
					holds = false
				case what > 3:
					s.Happened(xid(31, whole("a")))
					reports = append(reports, time.Now())
				}
				time.Sleep(time.Nanosecond)
			}
			for _, i := range s.incidents() {
				judge(t, seed, i, had)
			}
			if len(reports) == 0 {
				t.Errorf("seed %d: nothing happened", seed)
			}
		})
	}
}

func judge(t *testing.T, seed uint64, i Incident, had []truth) {
	t.Helper()
	for _, h := range i.Holders {
		k := slices.IndexFunc(had, func(x truth) bool { return x.pod == h.Pod })
		x := had[k]
		if x.from.After(i.First) || !x.to.IsZero() && x.to.Before(i.First.Add(-justBefore)) {
			t.Errorf("seed %d: the incident of %s names %s, who had the device from %s to %s", seed, i.First, h.Pod, x.from, x.to)
		}
		if h.Until.IsZero() && !x.to.IsZero() {
			t.Errorf("seed %d: %s is said to have the device still", seed, h.Pod)
		}
	}
	for _, x := range had {
		there := !x.from.After(i.First) && (x.to.IsZero() || x.to.After(i.First))
		if there && !i.Nameless && !strings.Contains(names(i), x.pod) {
			t.Errorf("seed %d: the incident of %s does not name %s, who had the device from %s to %s", seed, i.First, x.pod, x.from, x.to)
		}
	}
}

// TestWhatIsPastNamesNobody: an incident from before the start has no holder, and counts nowhere.
func TestWhatIsPastNamesNobody(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.name("a", owner("A"))
		past := xid(79, whole("a"))
		past.Past = true
		s.Happened(past)
		s.Happened(xid(79, whole("a")))
		if got := s.incidents(); len(got) != 2 || len(got[1].Holders) != 0 || !got[1].HoldersUnknown || !got[1].Past || len(got[0].Holders) != 1 {
			t.Errorf("the incidents are %+v", got)
		}
		if known, _ := s.Look(); len(known.Devices) != 1 || known.Devices[0].Count != 1 {
			t.Errorf("the counts are %+v", known.Devices)
		}
		past = xid(94, whole("a"))
		past.Past = true
		s.Happened(past)
		s.incidents()
		if known, _ := s.Look(); len(known.Incidents) != 3 || len(known.Devices) != 1 {
			t.Errorf("with another one of the past the counts are %+v", known.Devices)
		}
	})
}
