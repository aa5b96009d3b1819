package incident

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/device"
)

func inStore(t *testing.T) Options {
	return Options{Path: filepath.Join(t.TempDir(), "state", "incidents.db")}
}

// again ends a Log and starts the next one on the same store.
func (s *stage) again(o Options) *stage {
	s.stop()
	return start(o)
}

func TestARestartForgetsNothing(t *testing.T) {
	o := inStore(t)
	play(t, o, func(t *testing.T, s *stage) {
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(79, whole("a")))
		s.Happened(xid(31, whole("a")))
		time.Sleep(time.Second)
		s.Happened(xid(31, whole("a")))
		was, _ := s.Look()
		if was.Kept == false || was.Err != nil {
			t.Errorf("it is kept %v, %v", was.Kept, was.Err)
		}
		before := fmt.Sprint(s.incidents())
		was, _ = s.Look()
		s = s.again(o)
		defer s.stop()
		is, _ := s.Look() // before the kubelet is heard, who says that A is gone
		for i := range is.Incidents {
			is.Incidents[i].Holders[0].Until = time.Time{}
		}
		if len(is.Incidents) != 2 || is.Incidents[0].Count != 2 || fmt.Sprint(local(is.Incidents)) != before {
			t.Errorf("after a restart there are\n%v, want\n%v", local(is.Incidents), before)
		}
		if fmt.Sprint(is.Devices) != fmt.Sprint(was.Devices) || fmt.Sprint(is.Hits) != fmt.Sprint(was.Hits) {
			t.Errorf("after a restart the counts are\n%v %v, want\n%v %v", is.Devices, is.Hits, was.Devices, was.Hits)
		}
		s.kubelet.name("a", owner("A"))
		s.Happened(xid(31, whole("a")))
		got := s.incidents()
		if len(got) != 3 || got[0].ID <= got[1].ID {
			t.Errorf("the next one is %+v", got[0])
		}
		if known, _ := s.Look(); known.Devices[0].Count != 3 || known.Hits[0].Count != 3 {
			t.Errorf("the counts go on at %v, %v", known.Devices, known.Hits)
		}
		if n := s.lines.count("msg=incident"); n != 1 {
			t.Errorf("%d incidents are in the log of the second process", n)
		}
		s.board.Post([]device.Status{{Device: whole("a"), Healthy: true, Since: time.Now().Add(-time.Hour)}})
		if got := s.incidents(); got[2].Healed == nil {
			t.Errorf("an earlier process' incident is not healed")
		}
	})
}

// local gives times the zone that JSON takes from them.
func local(all []Incident) []Incident {
	all = slices.Clone(all)
	for i := range all {
		x := &all[i]
		x.First, x.Last = x.First.In(time.Local), x.Last.In(time.Local)
		x.Holders = slices.Clone(x.Holders)
		for k := range x.Holders {
			x.Holders[k].Since = x.Holders[k].Since.In(time.Local)
		}
	}
	return all
}

// What Sync has confirmed is there when the process is gone at that very moment; that
// takes no longer than a batch is gathered.
func TestSync(t *testing.T) {
	o := inStore(t)
	play(t, o, func(t *testing.T, s *stage) {
		began := time.Now()
		s.Happened(xid(31, whole("a")))
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		now := copyOf(t, o.Path)
		if got := contentsOf(t, now); len(got.incidents) != 1 || len(got.counts) != 1 {
			t.Errorf("the store has %v", got)
		}
	})
	if err := New(Options{}).Sync(t.Context()); err != nil {
		t.Errorf("without a store Sync says %v", err)
	}
}

func copyOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(other, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return other
}

func contentsOf(t *testing.T, path string) contents {
	t.Helper()
	s := &store{path: path, log: New(Options{}).o.Log}
	defer s.close()
	got, err := s.load()
	if err != nil {
		t.Errorf("load %s: %v", path, err)
	}
	return got
}

// The file has what is remembered and no more, however much has gone through it.
func TestTheStoreIsBounded(t *testing.T) {
	o := inStore(t)
	o.MaxIncidents, o.MaxAge = 20, 5*time.Minute
	play(t, o, func(t *testing.T, s *stage) {
		for i := range 600 {
			s.Happened(xid(31, whole(device.ID(fmt.Sprint("GPU-", i)))))
			time.Sleep(time.Second)
		}
		s.board.Post([]device.Status{{Device: whole("GPU-599"), Healthy: true}})
		time.Sleep(2 * pruneEvery)
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := contentsOf(t, copyOf(t, o.Path))
		if len(got.incidents) != 20 || len(got.counts) > 360 {
			t.Errorf("the store has %d incidents and %d counts", len(got.incidents), len(got.counts))
		}
		time.Sleep(2 * time.Hour)
		got = contentsOf(t, copyOf(t, o.Path))
		if len(got.incidents) != 0 || len(got.counts) != 1 || got.counts[0].Device != "GPU-599" {
			t.Errorf("after two hours the store has %v", got)
		}
	})
	if info, _ := os.Stat(o.Path); info.Size() > 1<<20 {
		t.Errorf("the file has %d bytes", info.Size())
	}
}

// A store that another process has holds up nobody, and gets it all when it is free.
func TestAStoreOfAnotherProcess(t *testing.T) {
	o := inStore(t)
	play(t, o, func(t *testing.T, first *stage) {
		first.kubelet.name("a", owner("A"))
		first.Happened(xid(43, whole("a")))
		first.settle()
		second := start(o)
		defer second.stop()
		second.kubelet.name("a", owner("A"))
		if err := second.Ready(); err != nil {
			t.Errorf("it is not ready: %v", err)
		}
		// The driver tells both of this one, and the second alone of the next.
		for _, s := range []*stage{first, second} {
			s.Happened(xid(31, whole("a")))
		}
		if err := second.Sync(t.Context()); !errors.Is(err, errLocked) {
			t.Errorf("Sync says %v", err)
		}
		second.settle()
		known, _ := second.Look()
		if known.Kept || !errors.Is(known.Err, errLocked) || len(known.Incidents) != 1 || known.Devices != nil || known.Hits != nil {
			t.Errorf("while it is another's, it knows %+v", known)
		}
		first.stop()
		second.Happened(xid(94, whole("a")))
		time.Sleep(2 * lockedEvery)
		known, _ = second.Look()
		if !known.Kept || known.Err != nil || len(known.Incidents) != 3 {
			t.Fatalf("when it is free, it knows %+v", known)
		}
		var counts []string
		for _, c := range known.Devices {
			counts = append(counts, fmt.Sprint(c.Device, " ", c.GPU, " ", c.Index, " ", c.Reason, " ", c.Count))
		}
		if want := []string{"a a 0 xid_31 1", "a a 0 xid_43 1", "a a 0 xid_94 1"}; !slices.Equal(counts, want) {
			t.Errorf("the counts are %q, want %q", counts, want)
		}
		if err := second.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if got := contentsOf(t, copyOf(t, o.Path)); len(got.incidents) != 3 {
			t.Errorf("the store has %v", got.incidents)
		}
		if n := second.lines.count("kept in memory alone"); n != 1 {
			t.Errorf("it is said %d times", n)
		}
	})
}

// Two processes may give one number in the same millisecond, and two reports of one kind
// that are apart are two.
func TestJoin(t *testing.T) {
	at := time.Unix(1<<30, 0)
	b := newBook(Options{MaxIncidents: 100, MaxAge: time.Hour, Path: "there is one"})
	hit := func(at time.Time, reason string, id device.ID) {
		b.happened(&device.Occurrence{At: at, Hit: []device.Device{whole(id)}, Reason: reason}, &device.Holders{Settled: true}, at)
	}
	hit(at, "xid_31", "a")
	hit(at.Add(time.Hour/2), "xid_43", "a")
	found := contents{
		incidents: []Incident{
			{ID: uint64(at.UnixMilli()), Device: "b", Reason: "xid_31", First: at, Last: at, Count: 7},
			{ID: uint64(at.UnixMilli()) + 1, Device: "a", Reason: "xid_31", First: at.Add(-time.Minute), Last: at.Add(-2 * time.Second), Count: 5},
		},
		counts: []record{{Device: "a", Reason: "xid_31", Count: 50, Last: at}, {Device: "b", Reason: "xid_31", Count: 7, Last: at}},
	}
	b.join(found)
	if !slices.IsSortedFunc(b.entries, func(x, y *entry) int { return byID(x, y.ID) }) || len(b.entries) != 4 {
		t.Fatalf("there are %v", b.incidents())
	}
	ids := map[uint64]bool{}
	for _, e := range b.entries {
		ids[e.ID] = true
	}
	if len(ids) != 4 {
		t.Errorf("the ids are %v", ids)
	}
	if got := b.counts(); got[0].Count != 51 || got[1].Count != 1 || got[2].Count != 7 {
		t.Errorf("the counts are %v", got)
	}
	w := b.batch()
	b.confirm(w, nil)
	hit(at.Add(time.Hour/2), "xid_43", "a")
	b.join(contents{incidents: w.incidents, counts: w.counts}) // the disk failed meanwhile, and had it all
	if got := b.counts(); got[0].Count != 51 || got[1].Count != 2 {
		t.Errorf("when it is read again the counts are %v", got)
	}
	b.confirm(b.batch(), nil)
	b.join(contents{}) // somebody has taken the file away
	if got := b.counts(); got[0].Count != 51 || got[1].Count != 2 || len(b.batch().incidents) != 4 {
		t.Errorf("after the file was taken away the counts are %v", got)
	}
}

// A disk that takes nothing costs a line, and memory goes on.
func TestADiskThatTakesNothing(t *testing.T) {
	o := Options{Path: filepath.Join(t.TempDir(), "incidents.db")}
	if err := os.Mkdir(o.Path, 0o700); err != nil { // what root cannot write to, either
		t.Fatal(err)
	}
	play(t, o, func(t *testing.T, s *stage) {
		s.Happened(xid(31, whole("a")))
		time.Sleep(5 * failedEvery)
		known, _ := s.Look()
		if known.Kept || known.Err == nil || len(known.Incidents) != 1 || len(known.Devices) != 1 {
			t.Errorf("it knows %+v", known)
		}
		if n := s.lines.count("kept in memory alone"); n != 1 {
			t.Errorf("it is said %d times", n)
		}
		if err := os.Remove(o.Path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * failedEvery)
		if known, _ := s.Look(); !known.Kept || known.Err != nil {
			t.Errorf("when it works again, it knows %+v", known)
		}
		if err := s.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if got := contentsOf(t, copyOf(t, o.Path)); len(got.incidents) != 1 {
			t.Errorf("the store has %v", got.incidents)
		}
	})
}

// A file that is cut off beneath a process that has it mapped: what is not there cannot be
// read, and that ends no process.
func TestAFileThatIsCutOff(t *testing.T) {
	o := inStore(t)
	play(t, o, func(t *testing.T, s *stage) {
		for i := range 200 {
			s.Happened(xid(31, whole(device.ID(fmt.Sprint("GPU-", i)))))
		}
		s.settle()
		if err := os.Truncate(o.Path, 2*int64(os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			s.Happened(xid(43, whole(device.ID(fmt.Sprint("GPU-", i)))))
		}
		time.Sleep(3 * failedEvery)
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := contentsOf(t, copyOf(t, o.Path)); len(got.incidents) != 400 || len(got.counts) != 400 {
			t.Errorf("the store has %d incidents and %d counts", len(got.incidents), len(got.counts))
		}
		if _, err := os.Stat(aside(o.Path)); err != nil {
			t.Errorf("what was left is not set aside: %v", err)
		}
	})
}

// filled is a store with some hundred records, and what its records were at any time.
func filled(t testing.TB) (path string, written map[uint64][]Incident) {
	path = filepath.Join(t.TempDir(), "incidents.db")
	s := &store{path: path, log: New(Options{}).o.Log}
	defer s.close()
	if _, err := s.open(); err != nil {
		t.Fatal(err)
	}
	written = map[uint64][]Incident{}
	for round := range uint64(20) {
		w := &batch{}
		for k := range uint64(10) {
			for _, id := range []uint64{round*10 + k, round * 5} {
				i := Incident{
					ID: id, Last: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), Count: round + 1, Device: device.ID(fmt.Sprint("GPU-", id)), Reason: "xid_31",
					Holders: []Holder{{Namespace: "team", Pod: fmt.Sprint("pod-", id), Container: "main"}},
				}
				w.incidents = append(w.incidents, i)
				w.counts = append(w.counts, record{Device: i.Device, Reason: i.Reason, Count: round + 1})
				written[id] = append(written[id], i)
			}
		}
		if err := s.write(w); err != nil {
			t.Fatal(err)
		}
	}
	return path, written
}

// A store whose bytes are other ones than were written is read as it was at some time, or
// is set aside and what is left of it kept; nothing is read that was not written, and
// nothing ends the process.
func FuzzABrokenStore(f *testing.F) {
	path, written := filled(f)
	sound, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 5))
	f.Add(uint32(len(sound)), uint32(0), uint16(0), byte(0))
	for range 120 {
		f.Add(uint32(len(sound)), r.Uint32(), uint16(r.IntN(64)), byte(1<<r.IntN(8)))
		f.Add(uint32(len(sound)), uint32(r.IntN(64))<<12|uint32(r.IntN(40)), uint16(8), byte(r.Uint32()))
	}
	for range 50 {
		f.Add(r.Uint32()%uint32(len(sound)), uint32(0), uint16(0), byte(0))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, size, at uint32, n uint16, turn byte) {
		data := slices.Clone(sound[:min(int(size), len(sound))])
		for i := range int(n) {
			if len(data) > 0 {
				data[(int(at)+i)%len(data)] ^= turn
			}
		}
		path := filepath.Join(dir, "incidents.db")
		defer os.Remove(path)
		defer os.Remove(aside(path))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &store{path: path, log: New(Options{}).o.Log}
		defer s.close()
		found, err := s.open()
		if errors.Is(err, errLater) {
			t.Error("a broken store passes for one of a later version")
		}
		if err != nil {
			t.Fatal(err)
		}
		whole := len(found.incidents) == len(written)
		for _, i := range found.incidents {
			if !slices.ContainsFunc(written[i.ID], func(w Incident) bool { return fmt.Sprint(w) == fmt.Sprint(i) }) {
				t.Errorf("an incident is read that was not written: %+v", i)
			}
		}
		// One of the two meta pages may be lost: then it is as it was a transaction ago.
		if !whole && len(found.incidents) != len(written)-10 && !found.salvaged && len(data) > 0 {
			t.Errorf("%d of %d incidents are read, and nobody is told", len(found.incidents), len(written))
		}
		if err := s.write(&batch{incidents: []Incident{{ID: 1 << 40}}}); err != nil {
			t.Errorf("it cannot be written to: %v", err)
		}
	})
}

func TestAStoreOfALaterVersionIsLeftAlone(t *testing.T) {
	path, _ := filled(t)
	s := &store{path: path, log: New(Options{}).o.Log}
	if _, err := s.open(); err != nil {
		t.Fatal(err)
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	later, err := wrap(sealKey, &seal{Format: storeFormat + 1})
	if err != nil {
		t.Fatal(err)
	}
	tx.Bucket(sealBucket).Put(sealKey, later)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.close()
	if _, err := s.open(); !errors.Is(err, errLater) {
		t.Errorf("it says %v", err)
	}
	if _, err := os.Stat(aside(path)); err == nil {
		t.Error("it is set aside")
	}
}

// Whoever waits for the lock of a file that is then set aside does not end up with that.
func TestAFileThatIsSetAsideWhileItIsOpened(t *testing.T) {
	path, _ := filled(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !isStill(f, path) {
		t.Error("a file is not where it is")
	}
	if err := os.Rename(path, aside(path)); err != nil {
		t.Fatal(err)
	}
	if isStill(f, path) {
		t.Error("a file is where nothing is")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if isStill(f, path) {
		t.Error("a file is where another one is")
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s := &store{path: path, log: New(Options{}).o.Log}
	if found, err := s.open(); err != nil || len(found.incidents) > 0 {
		t.Errorf("the new file has %d incidents, %v", len(found.incidents), err)
	}
	s.close()
}

// A write that failed may have come to the disk all the same. Nothing of it counts twice when
// the file is read again, and nothing is lost.
func TestAWriteThatFailedCountsOnce(t *testing.T) {
	for _, before := range []bool{false, true} { // whether the store has an earlier state
		for _, landed := range []bool{false, true} {
			b := newBook(Options{Path: "unused", MaxIncidents: 10})
			now := time.Now()
			held := &device.Holders{At: now, Settled: true, Held: []device.Holding{{Resource: gpu, Offered: "a", Owner: owner("A")}}}
			o, want := xid(31, whole("a")), uint64(0)
			happened := func() { b.happened(&o, held, now); want++ }
			var found contents
			take := func(w *batch) { found = contents{incidents: w.incidents, counts: w.counts} }
			if before {
				happened()
				w := b.batch()
				b.confirm(w, nil)
				take(w)
			}
			happened()
			w := b.batch()
			b.confirm(w, errors.New("the disk"))
			if landed {
				take(w)
			}
			happened()
			b.join(found)
			if len(b.entries) != 1 || b.entries[0].Count != want || b.counts()[0].Count != want || b.hitRows()[0].Count != want {
				t.Errorf("had something before: %v, landed: %v: %d incidents, counts %v and %v, want %d", before, landed,
					len(b.entries), b.counts(), b.hitRows(), want)
			}
		}
	}
}

// A file that is older than what was confirmed, as a disk leaves it that has lied or somebody
// who has put another in its place, takes nothing from a count that is published.
func TestAStoreThatHasLessTakesNothingAway(t *testing.T) {
	b := newBook(Options{Path: "unused", MaxIncidents: 10})
	now := time.Now()
	o := xid(31, whole("a"))
	var older contents
	for n := range 3 {
		b.happened(&o, &device.Holders{At: now, Settled: true}, now)
		w := b.batch()
		b.confirm(w, nil)
		if n == 0 {
			older = contents{incidents: w.incidents, counts: w.counts}
		}
	}
	b.join(older)
	if got := b.counts()[0].Count; got != 3 || b.entries[0].Count != 3 {
		t.Errorf("it counts %d, and the incident %d, want 3", got, b.entries[0].Count)
	}
	if w := b.batch(); len(w.incidents) != 1 || len(w.counts) != 1 || w.counts[0].Count != 3 {
		t.Errorf("to be written are %+v and %+v", w.incidents, w.counts)
	}
}

// A disk that does not answer holds nobody up. Counts are not shown without what it has: they
// would seem to jump when it answers.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Path: "unused"})
		l.Happened(xid(31, whole("a")))
		l.awaitStore(t.Context()) // nobody opens it
		l.turn(time.Now())
		known, _ := l.Look()
		if l.Ready() != nil || known.Kept || known.Err == nil || len(known.Incidents) != 1 || known.Devices != nil || known.Hits != nil {
			t.Errorf("ready: %v, known %+v", l.Ready(), known)
		}
	})
}
