package podresources

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
)

// model is rule 4 of the design, one allocation at a time and without a thought
// for speed. memory is held against it.
type model struct {
	fates   map[allocation]*fate
	settled bool
	trusted time.Time
	asked   time.Time
	over    link
	done    bool // with the notes of this connection
}

// fate is what is known of one allocation.
type fate struct {
	owners    []device.Owner
	over      link      // the connection over which they were named
	allocated time.Time // zero where they have a name
}

func (m *model) of(a allocation) *fate {
	if m.fates[a] == nil {
		m.fates[a] = &fate{}
	}
	return m.fates[a]
}

func (m *model) answer(listed map[allocation][]device.Owner, pods []podName, over link, asked time.Time) {
	if over != m.over {
		m.trusted, m.done = time.Time{}, false
	}
	m.over, m.asked = over, asked
	if m.trusted.IsZero() && asked.Sub(over.kubeletStart) >= time.Minute {
		m.trusted = asked
	}
	m.settled = m.settled || !m.trusted.IsZero()
	for a := range listed {
		m.of(a)
	}
	for a, f := range m.fates {
		switch owners := listed[a]; {
		case f.allocated.After(asked): // nobody can know yet
		case owners != nil:
			*f = fate{owners: owners, over: over}
		case !f.allocated.IsZero(): // nobody has said yet
		case f.over == over || asked.Sub(over.connected) >= time.Minute: // over for all
			f.owners = nil
		default: // over for those whose pods are there without it
			f.owners = slices.DeleteFunc(slices.Clone(f.owners), func(o device.Owner) bool {
				return slices.Contains(pods, podName{o.Namespace, o.Pod})
			})
		}
	}
}

func (m *model) allocate(resource string, ids []device.OfferedID, now time.Time) {
	for _, id := range ids {
		f := m.of(allocation{resource, id})
		f.owners, f.allocated = nil, now
	}
}

func (m *model) review(n notes, err error, now time.Time) {
	for a, f := range m.fates {
		limit, gone := 10*time.Second, !n.allocated[a]
		if err != nil {
			limit, gone = time.Hour, true
		}
		if gone && !f.allocated.IsZero() && now.Sub(f.allocated) >= limit {
			f.allocated = time.Time{}
		}
	}
	if err != nil || m.done || m.trusted.IsZero() || now.Sub(m.trusted) >= 10*time.Second {
		return
	}
	if !n.written.After(m.trusted) || n.written.After(m.asked) {
		return
	}
	m.done = true
	for a := range n.allocated {
		if f := m.of(a); len(f.owners) == 0 && f.allocated.IsZero() && f.over != m.over {
			f.allocated = m.trusted
		}
	}
}

func (m *model) held() (rows []device.Holding) {
	for a, f := range m.fates {
		owners := f.owners
		if !f.allocated.IsZero() {
			owners = []device.Owner{{}}
		}
		for _, o := range owners {
			rows = append(rows, device.Holding{Resource: a.resource, Offered: a.offered, Owner: o})
		}
	}
	slices.SortFunc(rows, device.CompareHoldings)
	return slices.Compact(rows)
}

// story plays events that a source of chance chooses on a memory and on the model.
type story struct {
	t      testing.TB
	choose func(n int) int
	memory memory
	model  model
	now    time.Time
	link   link
	asked  time.Time // of the question that is under way; zero where none is
}

var (
	storyIDs  = []device.OfferedID{"a", "a::1", "b", "c"} // two of them one device's
	storyTime = []time.Duration{0, time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second, 50 * time.Second, time.Minute, time.Hour}
	storyRess = []string{"nvidia.com/gpu", "nvidia.com/mig"}
)

func newStory(t testing.TB, choose func(n int) int) *story {
	s := &story{t: t, choose: choose, memory: newMemory(), model: model{fates: map[allocation]*fate{}}, now: time.Unix(1<<30, 0)}
	s.connect()
	return s
}

func (s *story) play(events int) {
	for range events {
		before, copied := s.memory.held, slices.Clone(s.memory.held)
		settled := s.memory.settled
		changed := false
		switch s.choose(8) {
		case 0:
			s.now = s.now.Add(storyTime[s.choose(len(storyTime))])
		case 1:
			s.connect()
		case 2:
			if s.asked.IsZero() {
				s.asked = s.now
			}
		case 3, 4:
			changed = s.answer()
		case 5, 6:
			changed = s.allocate()
		case 7:
			changed = s.review()
		}
		s.compare()
		if !slices.Equal(before, copied) {
			s.t.Fatal("what was published was written")
		}
		if is := !slices.Equal(before, s.memory.held) || settled != s.memory.settled; is != changed {
			s.t.Fatalf("changed is told as %t: %v became %v", changed, before, s.memory.held)
		}
	}
}

func (s *story) connect() {
	s.now = s.now.Add(time.Millisecond)
	s.link = link{connected: s.now, kubeletStart: s.now.Add(-storyTime[s.choose(len(storyTime))])}
}

// answer is what the kubelet says, with every id listed twice, as for two NUMA
// nodes.
func (s *story) answer() bool {
	asked := s.asked
	if s.asked = (time.Time{}); asked.IsZero() {
		asked = s.now
	}
	listed := map[allocation][]device.Owner{}
	pods := []podName{}
	raw := newAnswer()
	for pod := range 4 {
		name := podName{"team", string(rune('p' + pod))}
		if s.choose(3) == 0 {
			continue
		}
		pods = append(pods, name)
		for range s.choose(3) {
			a := allocation{storyRess[s.choose(2)], storyIDs[s.choose(len(storyIDs))]}
			o := device.Owner{Namespace: name.namespace, Pod: name.pod, Container: "main"}
			listed[a] = append(listed[a], o)
			raw.held = append(raw.held, device.Holding{Resource: a.resource, Offered: a.offered, Owner: o})
		}
	}
	raw.pods = pods
	raw.held = append(raw.held, raw.held...)
	s.model.answer(listed, pods, s.link, asked)
	return s.memory.take(&raw, s.link, asked)
}

func (s *story) allocate() bool {
	resource := storyRess[s.choose(2)]
	var ids []device.OfferedID
	for range s.choose(3) {
		ids = append(ids, storyIDs[s.choose(len(storyIDs))])
	}
	s.model.allocate(resource, ids, s.now)
	return s.memory.allocated(resource, ids, s.now)
}

func (s *story) review() bool {
	n := notes{allocated: map[allocation]bool{}, written: s.now.Add(-storyTime[s.choose(len(storyTime))])}
	var err error
	if s.choose(3) == 0 {
		err = errBroken
	}
	for range s.choose(4) {
		n.allocated[allocation{storyRess[s.choose(2)], storyIDs[s.choose(len(storyIDs))]}] = true
	}
	s.model.review(n, err, s.now)
	return s.memory.review(n, err, s.now)
}

func (s *story) compare() {
	s.t.Helper()
	if want := s.model.held(); !slices.Equal(s.memory.held, want) {
		s.t.Fatalf("held is\n%v, by rule 4 it were\n%v", s.memory.held, want)
	}
	if s.memory.settled != s.model.settled {
		s.t.Fatalf("settled is %t", s.memory.settled)
	}
	for a := range maps.Keys(s.memory.unnamed) {
		if !lists(s.memory.held, a) {
			s.t.Fatalf("%v waits for a name and is not held", a)
		}
	}
}

func TestMemoryAgainstTheModel(t *testing.T) {
	for seed := range uint64(2000) {
		chance := rand.New(rand.NewPCG(seed, 0))
		newStory(t, chance.IntN).play(100)
	}
}

func FuzzMemory(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("allocated, asked, answered, connected anew"))
	f.Fuzz(func(t *testing.T, script []byte) {
		choose := func(n int) int {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int(b) % n
		}
		newStory(t, choose).play(min(len(script), 500))
	})
}
