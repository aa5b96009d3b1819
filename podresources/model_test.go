package podresources

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// model is rule 4 of the design, one allocation at a time and without a thought
// for speed. memory is held against it.
type model struct {
	fates   map[allocation]*fate
	heard   []heard // every answer there was, the oldest first
	settled bool
	trusted time.Time
	asked   time.Time
	over    link
	done    bool // with the notes of this connection
	noted   *noted
}

// fate is what is known of one allocation, or of what was claimed.
type fate struct {
	owners    []device.Owner
	over      link                  // the connection over which they were named
	overs     map[device.Owner]link // the same of each, where they claim
	uid       *string               // in the checkpoint when over was lost, or as soon after it as it was there
	allocated time.Time             // at the latest; zero where they have a name
	since     time.Time             // and at the earliest
}

// noted are notes that were there before an answer was asked for.
type noted struct {
	notes notes
	asked time.Time
}

// heard is an answer, and whether it left out nobody.
type heard struct {
	pods    []podName
	over    link
	asked   time.Time
	trusted bool
}

// outage reports, of all answers, whether those over the newest connection lack the pods of
// the API server, or have had them again for less than a minute.
func (m *model) outage(asked time.Time) bool {
	var missing, had bool
	var back time.Time
	for i, h := range m.heard {
		lists := slices.ContainsFunc(h.pods, func(p podName) bool { return !isStatic(p) })
		switch {
		case i == 0 || h.over != m.heard[i-1].over:
			missing, back = (missing || had) && !lists, time.Time{}
		case missing && lists:
			missing, back = false, h.asked
		}
		had = lists
	}
	return missing || !back.IsZero() && asked.Sub(back) < time.Minute
}

// isStatic tells static pods of the story's node.
func isStatic(p podName) bool { return strings.HasSuffix(p.pod, "-"+storyNode) }

func (m *model) of(a allocation) *fate {
	if m.fates[a] == nil {
		m.fates[a] = &fate{}
	}
	return m.fates[a]
}

func (m *model) answer(listed map[allocation][]device.Owner, pods []podName, over link, asked time.Time) {
	if over != m.over {
		m.trusted, m.done = time.Time{}, false
		for a, f := range m.fates {
			if f.uid = nil; m.noted != nil {
				f.identify(a, m.noted.notes)
			}
		}
	}
	m.over, m.asked = over, asked
	m.heard = append(m.heard, heard{pods, over, asked, false})
	outage := m.outage(asked)
	if m.trusted.IsZero() && asked.Sub(over.kubeletStart) >= time.Minute && !outage {
		m.trusted = asked
	}
	m.settled = m.settled || !m.trusted.IsZero()
	m.heard[len(m.heard)-1].trusted = !m.trusted.IsZero()
	for a := range listed {
		m.of(a)
	}
	for a, f := range m.fates {
		switch owners := listed[a]; {
		case a.resource == storyDriver:
			f.claims(owners, pods, over, asked, outage)
		case f.allocated.After(asked): // nobody can know yet
		case owners != nil:
			*f = fate{owners: owners, over: over}
		case !f.allocated.IsZero(): // nobody has said yet, and it is over when nobody is left to
			if m.ended(f, func(podName) bool { return true }) {
				f.allocated = time.Time{}
			}
		case f.over == over: // over for all
			f.owners = nil
		default: // over for those whose pods are there without it, and in the end for all
			f.owners = slices.DeleteFunc(slices.Clone(f.owners), func(o device.Owner) bool {
				p := podName{o.Namespace, o.Pod}
				goesOn := asked.Sub(over.connected) < time.Minute || outage && !isStatic(p) && m.checkpointed(a, f)
				return slices.Contains(pods, p) || !goesOn
			})
		}
	}
}

// identify notes the UID of who has something and is not named now.
func (f *fate) identify(a allocation, n notes) {
	if uid, has := n.allocated[a]; has && f.uid == nil && len(f.owners) > 0 {
		f.uid = &uid
	}
}

// checkpointed reports whether the checkpoint has had an allocation for the same pod within the
// last minute.
func (m *model) checkpointed(a allocation, f *fate) bool {
	if m.noted == nil || m.asked.Sub(m.noted.asked) >= time.Minute {
		return false
	}
	uid, has := m.noted.notes.allocated[a]
	return has && (f.uid == nil || *f.uid == uid)
}

// claims is an answer about what several pods may have at once: each has it until this
// connection has named him and does not any more, or has listed his pod without it, or is
// a minute old.
func (f *fate) claims(named []device.Owner, pods []podName, over link, asked time.Time, outage bool) {
	owners := slices.Clone(named)
	for _, o := range f.owners {
		p := podName{o.Namespace, o.Pod}
		goesOn := asked.Sub(over.connected) < time.Minute || outage && !isStatic(p)
		if !slices.Contains(named, o) && !slices.Contains(pods, p) && f.overs[o] != over && goesOn {
			owners = append(owners, o)
		}
	}
	f.owners = owners
	if f.overs == nil {
		f.overs = map[device.Owner]link{}
	}
	for _, o := range named {
		f.overs[o] = over
	}
}

// name is what Get says of one pod: it ends a wait for a name, and does nothing else.
func (m *model) name(rows []device.Holding, over link, asked time.Time) {
	for _, h := range rows {
		if f := m.of(of(h)); over == m.over && !f.allocated.IsZero() && !f.allocated.After(asked) {
			*f = fate{owners: []device.Owner{h.Owner}, over: over}
		}
	}
}

// ended tells whether an allocation has ended with the last pod that may have it.
func (m *model) ended(f *fate, mayBe func(podName) bool) bool {
	if m.trusted.IsZero() || m.asked.Sub(f.allocated) < 10*time.Second {
		return false
	}
	for _, p := range m.heard[len(m.heard)-1].pods {
		if mayBe(p) && m.mayHold(p, f) {
			return false
		}
	}
	return true
}

// mayHold tells whether a pod that is listed now may have been allocated something:
// it was not missing in an answer to be believed from then on, and nobody has seen
// it ten seconds before.
func (m *model) mayHold(p podName, f *fate) bool {
	var first time.Time
	for _, h := range slices.Backward(m.heard) {
		switch listed := slices.Contains(h.pods, p); {
		case listed:
			first = h.asked
		case h.trusted:
			return h.asked.Before(f.allocated) && first.After(f.since.Add(-10*time.Second))
		}
	}
	return first.After(f.since.Add(-10 * time.Second))
}

func (m *model) allocate(resource string, ids []device.OfferedID, now time.Time) {
	for _, id := range ids {
		f := m.of(allocation{resource, id})
		f.owners, f.since, f.allocated = nil, now, now
	}
}

func (m *model) review(n notes, err error, now time.Time) {
	for a, f := range m.fates {
		uid, noted := n.allocated[a]
		limit, gone := 10*time.Second, !noted || m.ended(f, func(p podName) bool { return m.mayBe(n, p, uid, f.allocated) })
		if err != nil {
			limit, gone = time.Hour, true
		}
		if gone && !f.allocated.IsZero() && now.Sub(f.allocated) >= limit {
			f.allocated = time.Time{}
		}
	}
	for a, f := range m.fates {
		if _, noted := n.allocated[a]; err == nil && !noted && m.noted != nil && f.over != m.over && n.written.After(m.over.kubeletStart) {
			if _, was := m.noted.notes.allocated[a]; was { // a kubelet of now has freed it
				f.owners = nil
			}
		}
	}
	if err == nil && m.asked.Sub(n.written) >= 10*time.Millisecond {
		defer func() {
			m.noted = &noted{n, m.asked}
			for a, f := range m.fates {
				if f.over != m.over {
					f.identify(a, n)
				}
			}
		}()
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
			f.since, f.allocated = time.Time{}, m.trusted
		}
	}
}

// lose is a question that was not answered, or answered by a kubelet that may not
// have read its pods.
func (m *model) lose(n notes, now time.Time) {
	if !m.settled {
		return
	}
	for a, uid := range n.allocated {
		f := m.of(a)
		if len(f.owners) > 0 || !f.allocated.IsZero() {
			continue // idle was what nobody had
		}
		since := m.asked
		if m.noted != nil {
			if before, had := m.noted.notes.allocated[a]; had && before == uid {
				continue // known before, and not named since
			}
			since = m.noted.asked
		} else if m.asked.Sub(n.written) >= 10*time.Millisecond {
			continue
		}
		f.owners, f.since, f.allocated = nil, since, now
		if n.written.Before(now) {
			f.allocated = n.written
		}
	}
}

// mayBe tells whether a pod may be the one of that UID: it is not where all that it
// holds is another's.
func (m *model) mayBe(n notes, p podName, uid string, allocated time.Time) bool {
	theirs := map[string]bool{}
	for a, f := range m.fates {
		for _, o := range f.owners {
			if a.resource != storyDriver && f.allocated.IsZero() && (podName{o.Namespace, o.Pod}) == p {
				theirs[n.allocated[a]] = true
			}
		}
	}
	return len(theirs) != 1 || theirs[""] || theirs[uid] || uid == "" || allocated.Sub(n.written) > 10*time.Millisecond
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
	storyTime = []time.Duration{0, time.Millisecond, 11 * time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second, 50 * time.Second, time.Minute, time.Hour}
	storyRess = []string{"nvidia.com/gpu", "nvidia.com/mig", storyDriver}
)

const (
	storyDriver = "gpu.nvidia.com"
	storyNode   = "n"
)

// storyPods are two of the API server, and two static ones.
var storyPods = []string{"p", "q", "r-" + storyNode, "s-" + storyNode}

func newStory(t testing.TB, choose func(n int) int) *story {
	s := &story{t: t, choose: choose, memory: newMemory(), model: model{fates: map[allocation]*fate{}}, now: time.Unix(1<<30, 0)}
	s.memory.api.node = storyNode
	s.connect()
	return s
}

func (s *story) play(events int) {
	for range events {
		before, copied := s.memory.held, slices.Clone(s.memory.held)
		settled := s.memory.settled
		changed := false
		switch s.choose(10) {
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
		case 8:
			changed = s.lose(s.now)
		case 9:
			if s.asked.IsZero() { // Get waits for its turn
				changed = s.name()
			}
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
		name := podName{"team", storyPods[pod]}
		if s.choose(3) == 0 {
			continue
		}
		pods = append(pods, name)
		for range s.choose(3) {
			a := allocation{storyRess[s.choose(3)], storyIDs[s.choose(len(storyIDs))]}
			o := device.Owner{Namespace: name.namespace, Pod: name.pod, Container: "main"}
			listed[a] = append(listed[a], o)
			raw.held = append(raw.held, device.Holding{Resource: a.resource, Offered: a.offered, Owner: o})
		}
	}
	raw.pods = pods
	raw.held = append(raw.held, raw.held...)
	doubts := s.model.settled && s.model.over != s.link && asked.Sub(s.link.kubeletStart) < time.Minute
	if s.memory.doubts(s.link, asked) != doubts {
		s.t.Fatalf("that it doubts the answer is not %t", doubts)
	}
	lost := doubts && s.lose(asked)
	s.model.answer(listed, pods, s.link, asked)
	return s.memory.take(&raw, s.link, asked) || lost
}

// name is a pod's answer to Get, over the newest connection.
func (s *story) name() bool {
	var rows []device.Holding
	owner := device.Owner{Namespace: "team", Pod: storyPods[s.choose(4)], Container: "main"}
	for range s.choose(4) {
		id := storyIDs[s.choose(len(storyIDs))]
		h := device.Holding{Resource: storyRess[s.choose(3)], Offered: id, Owner: owner}
		rows = append(rows, h, h)
	}
	s.model.name(rows, s.link, s.now)
	return s.memory.name(rows, s.link, s.now)
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

func (s *story) lose(now time.Time) bool {
	n := s.notes()
	s.model.lose(n, now)
	return s.memory.lost(n, now)
}

func (s *story) review() bool {
	n := s.notes()
	var err error
	if s.choose(3) == 0 {
		err = errBroken
	}
	s.model.review(n, err, s.now)
	return s.memory.review(n, err, s.now)
}

func (s *story) notes() notes {
	n := notes{allocated: map[allocation]string{}, written: s.now.Add(-storyTime[s.choose(len(storyTime))])}
	for range s.choose(9) {
		n.allocated[allocation{storyRess[s.choose(2)], storyIDs[s.choose(len(storyIDs))]}] = []string{"", "u", "v"}[s.choose(3)]
	}
	return n
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
