package incident

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

func TestAnIncidentSaysAll(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.name("a", owner("one"))
		since := time.Now()
		time.Sleep(time.Minute)
		at := time.Now()
		slice := device.Device{ID: "a", GPU: "GPU-1", Index: 3, Slice: 0, Profile: "1g.10gb", Model: "H100", PCI: "0000:1a:00.0"}
		s.Happened(device.Occurrence{
			At: at, GPU: "GPU-1", Hit: []device.Device{slice}, Xid: 79, Reason: "xid_79", Class: "reboot",
			Action: "reboot", Condemned: true, Witness: "kmsg",
		})
		got := s.incidents()
		if len(got) != 1 {
			t.Fatalf("there are %d incidents", len(got))
		}
		want := Incident{
			ID: uint64(at.UnixMilli()), First: at, Last: at, Count: 1, Device: "a", GPU: "GPU-1", Index: 3, Profile: "1g.10gb",
			Model: "H100", PCI: "0000:1a:00.0", Reason: "xid_79", Xid: 79, Class: "reboot", Action: "reboot", Condemned: true, Witness: "kmsg",
			Holders: []Holder{{Namespace: "team", Pod: "one", Container: "main", Since: since}},
		}
		if fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("the incident is\n%+v, want\n%+v", got[0], want)
		}
		known, _ := s.Look()
		if want := []Count{{"a", "GPU-1", 3, "xid_79", 1, at}}; !slices.Equal(known.Devices, want) {
			t.Errorf("the counts are %v, want %v", known.Devices, want)
		}
		if want := []Hit{{"a", "GPU-1", 3, owner("one"), "xid_79", 1, at}}; !slices.Equal(known.Hits, want) {
			t.Errorf("the hits are %v, want %v", known.Hits, want)
		}
		if known.Kept || known.Err != nil {
			t.Errorf("without a store it says kept %v, %v", known.Kept, known.Err)
		}
		if n := s.lines.count("level=WARN msg=incident"); n != 1 {
			t.Errorf("it is in the log %d times", n)
		}
	})
}

func TestEachDeviceThatCanBeHeldIsHit(t *testing.T) {
	gpu := whole("GPU-1")
	gpu.MIG = true
	one, two := gpu, gpu
	one.ID, one.MIG, two.ID, two.MIG = "MIG-1", false, "MIG-2", false
	for name, test := range map[string]struct {
		hit  []device.Device
		want []device.ID
	}{
		"a whole GPU":                   {[]device.Device{whole("GPU-2")}, []device.ID{"GPU-2"}},
		"a partitioned GPU":             {[]device.Device{gpu, one, two}, []device.ID{"MIG-2", "MIG-1"}},
		"a slice":                       {[]device.Device{two}, []device.ID{"MIG-2"}},
		"a partitioned GPU, no slices":  {[]device.Device{gpu}, []device.ID{"GPU-1"}},
		"an occurrence that hit nobody": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, Options{}, func(t *testing.T, s *stage) {
				s.Happened(device.Occurrence{At: time.Now(), GPU: "GPU-1", Hit: test.hit, Reason: "lost"})
				var got []device.ID
				for _, i := range s.incidents() {
					got = append(got, i.Device)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("hit are %v, want %v", got, test.want)
				}
			})
		})
	}
}

// A partitioned GPU can be held as a whole where its slices are not offered. Who holds it is
// named.
func TestAPartitionedGPUThatIsHeldIsHit(t *testing.T) {
	gpu := whole("GPU-1")
	gpu.MIG = true
	slice := gpu
	slice.ID, slice.MIG = "MIG-1", false
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.name("GPU-1", owner("A"))
		s.Happened(xid(79, gpu, slice))
		i := slices.IndexFunc(s.incidents(), func(i Incident) bool { return i.Device == "GPU-1" && names(i) == "A" })
		if i < 0 {
			t.Errorf("the incidents are %+v", s.incidents())
		}
	})
}

// What goes on happening to the same containers is one incident.
func TestReportsOfTheSameAreOneIncident(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		s.kubelet.name("a", owner("one"))
		var ids []uint64
		want := func(when string, counts ...uint64) {
			t.Helper()
			got := s.incidents()
			var is []uint64
			ids = nil
			for _, i := range got {
				is, ids = append(is, i.Count), append(ids, i.ID)
			}
			if !slices.Equal(is, counts) {
				t.Errorf("%s: the incidents count %v, want %v", when, is, counts)
			}
		}
		s.Happened(xid(31, whole("a")))
		time.Sleep(30 * time.Second)
		s.Happened(xid(31, whole("a")))
		time.Sleep(30 * time.Second)
		s.Happened(xid(31, whole("a")))
		want("each within a minute", 3)
		s.Happened(xid(43, whole("a")))
		want("another Xid", 1, 3)
		s.Happened(xid(31, whole("b")))
		want("another device", 1, 1, 3)
		s.kubelet.name("a", owner("two"))
		s.Happened(xid(31, whole("a")))
		want("another holder", 1, 1, 1, 3)
		time.Sleep(sameWithin + time.Second)
		s.Happened(xid(31, whole("a")))
		want("after more than a minute", 1, 1, 1, 1, 3)
		if !slices.IsSortedFunc(ids, func(a, b uint64) int { return int(int64(b) - int64(a)) }) {
			t.Errorf("the ids are %v", ids)
		}
		known, _ := s.Look()
		if got := known.Devices; len(got) != 3 || got[0].Count != 5 {
			t.Errorf("the counts are %v", got)
		}
		if got := known.Hits; len(got) != 3 || got[0].Owner.Pod != "one" || got[0].Count != 3 || got[1].Count != 1 || got[2].Count != 2 {
			t.Errorf("the hits are %v", got)
		}
	})
}

// A storm is published ten times a second at most, and counted to the last.
func TestStorm(t *testing.T) {
	play(t, Options{Folder: disk.OpenFolder(t.TempDir())}, func(t *testing.T, s *stage) {
		s.kubelet.name("a", owner("one"))
		s.settle()
		posts := make(chan int)
		stop := make(chan struct{})
		go func() {
			for n := 0; ; n++ {
				_, changed := s.Look()
				select {
				case <-changed:
				case <-stop:
					posts <- n
					return
				}
			}
		}()
		for range 10_000 {
			s.Happened(xid(31, whole("a")))
			time.Sleep(time.Millisecond)
		}
		got := s.incidents()
		close(stop)
		if n := <-posts; n < 90 || n > 110 {
			t.Errorf("it was published %d times in ten seconds", n)
		}
		if len(got) != 1 || got[0].Count != 10_000 {
			t.Errorf("the incidents are %v", got)
		}
		time.Sleep(disk.WriteInterval)
		if known, _ := s.Look(); known.Devices[0].Count != 10_000 || known.Hits[0].Count != 10_000 {
			t.Errorf("the counts are %v, %v", known.Devices, known.Hits)
		}
	})
}

// What goes on happening costs no memory, whoever reads or writes meanwhile.
func TestReportsAllocations(t *testing.T) {
	k := newKubelet()
	for i := range 4 {
		k.name(device.ID("a").Replica(i), owner(fmt.Sprint("pod-", i)))
	}
	l := New(Options{Holders: k.look, Folder: disk.OpenFolder(t.TempDir())})
	o := xid(31, whole("a"))
	l.Happened(o)
	if n := testing.AllocsPerRun(1000, func() { l.Happened(o) }); n > 0 {
		t.Errorf("a report of the same costs %v allocations", n)
	}
}

func BenchmarkHappened(b *testing.B) {
	k := newKubelet()
	k.name("a", owner("one"))
	l := New(Options{Holders: k.look})
	o := xid(31, whole("a"))
	b.ReportAllocs()
	for b.Loop() {
		l.Happened(o)
	}
}

func TestBounds(t *testing.T) {
	play(t, Options{MaxIncidents: 10, MaxAge: time.Hour}, func(t *testing.T, s *stage) {
		s.board.Post([]device.Status{{Device: whole("here")}})
		s.Happened(xid(79, whole("bad")))
		time.Sleep(time.Second)
		for i := range 30 {
			s.Happened(xid(31, whole(device.ID(fmt.Sprint("a", i)))))
		}
		s.Happened(xid(31, whole("here")))
		got := s.incidents()
		if len(got) != 10 || got[0].Device != "here" || got[1].Device != "a29" || got[9].Device != "bad" {
			t.Errorf("of too many %d are kept, the last of %s", len(got), got[len(got)-1].Device)
		}
		time.Sleep(58 * time.Minute)
		if got := s.incidents(); len(got) != 10 {
			t.Errorf("after less than an hour there are %d", len(got))
		}
		time.Sleep(3 * time.Minute)
		if got := s.incidents(); len(got) != 0 {
			t.Errorf("after an hour there are %d", len(got))
		}
		if known, _ := s.Look(); len(known.Devices) != 1 || known.Devices[0].Device != "here" || len(known.Hits) != 0 {
			t.Errorf("the counts after an hour are %v, %v", known.Devices, known.Hits)
		}
	})
}

func TestLookBeforeRun(t *testing.T) {
	l := New(Options{})
	if known, changed := l.Look(); known.Incidents != nil || changed == nil {
		t.Errorf("something is known before Run: %v", known)
	}
}

// A kernel's report is believed half a second after it was made. A device that turned healthy
// in between has not recovered from it.
func TestWhatIsToldLateIsNotHealedBefore(t *testing.T) {
	play(t, Options{}, func(t *testing.T, s *stage) {
		o := xid(79, whole("a"))
		time.Sleep(100 * time.Millisecond)
		s.board.Post([]device.Status{{Device: whole("a"), Healthy: true, Since: time.Now()}})
		time.Sleep(400 * time.Millisecond)
		s.Happened(o)
		if got := s.incidents(); got[0].Healed != nil {
			t.Errorf("healed at %s, before it was told", got[0].Healed)
		}
		s.board.Post([]device.Status{{Device: whole("a"), Reason: "xid_79", Since: time.Now()}})
		time.Sleep(time.Second)
		s.board.Post([]device.Status{{Device: whole("a"), Healthy: true, Since: time.Now()}})
		if got := s.incidents(); got[0].Healed == nil {
			t.Error("not healed")
		}
	})
}
