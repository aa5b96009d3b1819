package podresources

import (
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// settleAfter is how long a kubelet that was (re)started may go without listing
// pods that it has: first it lists none, then the static ones, then those that it
// gets from the API server.
const settleAfter = 60 * time.Second

// unnamedMost is how long an allocation is kept that nobody can say more of.
const unnamedMost = time.Hour

// minPruned is how many rows that nobody has may be known as named.
const minPruned = 64

// memory is what is known of holders from answer to answer. It has no lock and
// reads no clock: its owner brings both. Answers come in the order in which they
// were asked for.
type memory struct {
	// held is what stands, in the order of device.Holders.Held. Once set it is
	// replaced and not written, since it was published.
	held    []device.Holding
	settled bool
	// unnamed are the allocations whose holder's name is not known, by when they
	// were made.
	unnamed  map[allocation]span
	arrivals arrivals
	// ended are pods that hold something and of which somebody has told that they are over:
	// they do not stand. A later answer of the kubelet's is as good.
	ended  map[podName]time.Time
	recent history
	own    ownIDs // as of the newest answer

	asked time.Time // when the newest answer was asked for
	link  link      // over which it came
	// named are the rows that answers over link have named, by their keys.
	named map[device.Holding]bool
	// trusted is when the first answer over link was asked for that left out
	// nobody; zero while there was none.
	trusted time.Time
	// api has the API server's pods.
	api apiSource
	// podUIDs are those of the pods that had held rows by the checkpoint when this connection was
	// made, or as soon after it as the checkpoint had any.
	podUIDs map[allocation]string
	// caughtUp says that the notes since then have been gone through.
	caughtUp bool
	// noted are the newest notes that were there before an answer was asked for,
	// and notedFor is when that was: the zero value while there were none.
	noted    notes
	notedFor time.Time

	next []device.Holding // scratch
}

type allocation struct {
	resource string
	offered  device.OfferedID
}

// span is the time in which something happened.
type span struct{ early, late time.Time }

// since is from when on somebody who is named at a time has had for sure what was
// allocated then. Of what was allocated before this process began only the latest is known.
func (s span) since(named time.Time) time.Time {
	if s.early.IsZero() {
		return named
	}
	return s.late
}

func of(h device.Holding) allocation { return allocation{h.Resource, h.Offered} }

// key is by what a row is known again that was named before: what a plugin gives has one
// holder, so that naming another one says that the first has it no more. What is claimed
// may have several.
func key(h device.Holding) device.Holding {
	if !h.Claimed() {
		h.Owner = device.Owner{}
	}
	return h
}

func newMemory() memory {
	return memory{
		unnamed: map[allocation]span{}, named: map[device.Holding]bool{}, arrivals: newArrivals(), ended: map[podName]time.Time{}, recent: newHistory(), podUIDs: map[allocation]string{},
	}
}

// allocated notes that the ids are about to be held by somebody new: whoever held
// them before does not any more. It tells whether that changed anything.
func (m *memory) allocated(resource string, ids []device.OfferedID, now time.Time) bool {
	m.next = m.next[:0]
	for _, h := range m.held {
		if h.Resource != resource || !slices.Contains(ids, h.Offered) {
			m.next = append(m.next, h)
		}
	}
	for _, id := range ids {
		m.unnamed[allocation{resource, id}] = span{now, now}
		m.next = append(m.next, device.Holding{Resource: resource, Offered: id})
	}
	return m.replace(now)
}

// take merges an answer in and tells whether anybody's holding changed. An answer
// counts for when it was asked for.
func (m *memory) take(a *rawAnswer, over link, asked time.Time) bool {
	m.own = a.given.foreign.own
	became := m.heard(a.pods, over, asked)
	m.arrivals.heard(a.pods, asked, !m.trusted.IsZero())
	m.next = m.next[:0]
	for _, h := range a.held {
		made, waits := m.unnamed[of(h)]
		if waits && made.late.After(asked) {
			continue // the answer is older than the allocation
		}
		delete(m.unnamed, of(h))
		m.next = append(m.next, h)
		m.named[key(h)] = true
		if m.own.has(h.Offered.Device()) {
			m.recent.saw(h, made.since(asked), asked)
		}
	}
	m.end()
	for _, h := range m.held {
		if m.stands(h, a.pods) {
			m.next = append(m.next, h)
		}
	}
	maps.DeleteFunc(m.ended, func(_ podName, told time.Time) bool { return told.Before(asked) })
	changed := m.replace(asked)
	m.recent.forget(asked)
	m.prune(asked)
	return changed || became
}

// prune forgets which rows were named that nobody has any more: only catchUp asks for those.
func (m *memory) prune(now time.Time) {
	catchesUp := !m.caughtUp && (m.trusted.IsZero() || m.behind(now))
	if len(m.named) <= 2*len(m.held)+minPruned {
		return
	}
	maps.DeleteFunc(m.named, func(h device.Holding, _ bool) bool {
		if h.Claimed() {
			_, held := slices.BinarySearchFunc(m.held, h, device.CompareHoldings)
			return !held
		}
		return !catchesUp && !lists(m.held, of(h))
	})
}

// name takes in what one pod was said to have. That says nothing of anybody else: it may
// give an allocation the name that it waits for, and takes nothing away. It tells whether
// it did.
func (m *memory) name(rows []device.Holding, over link, asked time.Time) bool {
	if over != m.link { // what has become of the rest is for a List to say
		return false
	}
	m.next = append(m.next[:0], m.held...)
	for _, h := range rows {
		made, waits := m.unnamed[of(h)]
		if !waits || made.late.After(asked) {
			continue
		}
		delete(m.unnamed, of(h))
		if told, over := m.ended[ownerOf(h)]; over && told.Before(made.early) { // that was another of the name
			delete(m.ended, ownerOf(h))
		}
		nobody := device.Holding{Resource: h.Resource, Offered: h.Offered}
		m.next[slices.Index(m.next, nobody)] = h
		m.named[key(h)] = true
		m.recent.saw(h, made.since(asked), asked)
	}
	return m.replace(asked)
}

// heard notes that an answer came, and reports whether it is the first whose absences count.
func (m *memory) heard(pods []podName, over link, asked time.Time) bool {
	m.asked = asked
	m.api.heard(pods, over != m.link, asked)
	if over != m.link {
		m.link, m.trusted, m.caughtUp = over, time.Time{}, false
		clear(m.named)
		m.identify()
	}
	if m.trusted.IsZero() && asked.Sub(over.kubeletStart) >= settleAfter && !m.api.incomplete(asked) {
		m.trusted = asked
	}
	if m.settled || m.trusted.IsZero() {
		return false
	}
	m.settled = true
	return true
}

// end forgets the allocations that nobody who is listed may have: the pod was
// turned away after Allocate, or it ended before anybody saw its name, or only its
// init container had the device. The kubelet's notes may have them for days yet.
func (m *memory) end() {
	maps.DeleteFunc(m.unnamed, func(_ allocation, made span) bool {
		return m.over(made, func(podName) bool { return false })
	})
}

// over tells whether nobody who is listed may have an allocation, but for those of
// whom it is known that they have not.
func (m *memory) over(made span, known func(podName) bool) bool {
	return !m.trusted.IsZero() && m.asked.Sub(made.late) >= lookFor && !m.arrivals.mayHold(made, known)
}

// stands reports whether an allocation goes on that the newest answer does not name, or names
// another owner for. After a restart the kubelet names ever more of what it has, so what this
// connection has named once, it would name again.
func (m *memory) stands(h device.Holding, pods []podName) bool {
	if _, unnamed := m.unnamed[of(h)]; unnamed {
		return h.Owner == (device.Owner{})
	}
	_, over := m.ended[ownerOf(h)]
	return h.Owner != (device.Owner{}) && !over && !m.named[key(h)] && !slices.Contains(pods, ownerOf(h)) &&
		(m.asked.Sub(m.link.connected) < settleAfter || m.kept(h))
}

// kept reports whether an allocation goes on as long as the kubelet lacks the API server's pods:
// its pod is one of them, and the checkpoint still has it for the same pod. The checkpoint has
// no claims. One that cannot be read counts for a minute as it was.
func (m *memory) kept(h device.Holding) bool {
	if !m.api.incomplete(m.asked) || m.api.static(ownerOf(h)) {
		return false
	}
	if h.Claimed() {
		return true
	}
	uid, has := m.noted.allocated[of(h)]
	before, known := m.podUIDs[of(h)]
	return has && (!known || uid == before) && m.asked.Sub(m.notedFor) < settleAfter
}

// identify notes the UIDs of those who have something, where the checkpoint has them.
func (m *memory) identify() {
	clear(m.podUIDs)
	for _, h := range m.held {
		if uid, has := m.noted.allocated[of(h)]; has && h.Owner != (device.Owner{}) {
			m.podUIDs[of(h)] = uid
		}
	}
}

// lists tells whether an allocation is among the sorted rows, whoever holds it.
func lists(rows []device.Holding, a allocation) bool {
	wanted := device.Holding{Resource: a.resource, Offered: a.offered} // no owner sorts before the zero one
	i, _ := slices.BinarySearchFunc(rows, wanted, device.CompareHoldings)
	return i < len(rows) && of(rows[i]) == a
}

// replace makes next what stands, where that differs.
func (m *memory) replace(now time.Time) bool {
	slices.SortFunc(m.next, device.CompareHoldings)
	m.next = slices.Compact(m.next) // a device of two NUMA nodes is listed twice
	if slices.Equal(m.next, m.held) {
		return false
	}
	m.held = slices.Clone(m.next)
	m.recent.end(m.held, now)
	return true
}

// curious tells whether something may show soon: the name of an allocation, that of a holder
// who stands, or the kubelet's notes of this hour.
func (m *memory) curious(now time.Time) bool {
	_, waits := m.waits(now)
	return waits || m.behind(now) || m.awaits(now)
}

// waits tells whether an allocation is looked for, and when the first of those was made, at
// the earliest.
func (m *memory) waits(now time.Time) (since time.Time, waits bool) {
	for _, made := range m.unnamed {
		if now.Sub(made.late) < lookFor && (!waits || made.early.Before(since)) {
			since, waits = made.early, true
		}
	}
	return since, waits
}

// awaits tells whether a holder stands whom the kubelet has not named since it came back, and
// will soon: one that ends before it is named here cannot be told from one that is not named
// yet, and stands for a minute.
func (m *memory) awaits(now time.Time) bool {
	return now.Sub(m.link.connected) < lookFor && slices.ContainsFunc(m.held, func(h device.Holding) bool {
		return h.Owner != (device.Owner{}) && !m.named[key(h)]
	})
}

// behind tells whether the kubelet's notes may still tell of allocations from
// before this process began.
func (m *memory) behind(now time.Time) bool {
	return !m.caughtUp && !m.trusted.IsZero() && now.Sub(m.trusted) < lookFor
}

// has tells whether a pod is known to hold something.
func (m *memory) has(p podName) bool {
	return slices.ContainsFunc(m.held, func(h device.Holding) bool { return ownerOf(h) == p })
}

// open tells whether there are questions that notes might answer, and whether one
// of them is overdue: an allocation that was looked for and not found.
func (m *memory) open(now time.Time) (open, overdue bool) {
	for _, made := range m.unnamed {
		overdue = overdue || now.Sub(made.late) >= lookFor
	}
	return overdue || m.behind(now), overdue
}

// review takes in the kubelet's notes, or that they cannot be read, as of a time
// before they were read. It tells whether that changed anything.
func (m *memory) review(n notes, err error, now time.Time) bool {
	uids := m.uids(n)
	for a, made := range m.unnamed {
		age := now.Sub(made.late)
		_, noted := n.allocated[a]
		if err != nil && age >= unnamedMost || err == nil && age >= lookFor && (!noted || m.over(made, n.others(a, made, uids))) {
			delete(m.unnamed, a)
		}
	}
	m.next = m.next[:0]
	for _, h := range m.held {
		_, unnamed := m.unnamed[of(h)]
		if unnamed || h.Owner != (device.Owner{}) && (err != nil || !m.freed(h, n)) {
			m.next = append(m.next, h)
		}
	}
	if err == nil {
		if m.behind(now) {
			m.catchUp(n)
		}
		m.note(n)
	}
	return m.replace(now)
}

// freed tells whether somebody who stands, since the kubelet has not named him after its
// restart, has nothing any more: its notes had it, and those that it has written since have
// not. It never forgets in them what is held.
func (m *memory) freed(h device.Holding, n notes) bool {
	_, had := m.noted.allocated[of(h)]
	_, has := n.allocated[of(h)]
	return had && !has && !m.named[key(h)] && n.written.After(m.link.kubeletStart)
}

func (m *memory) note(n notes) {
	if n.written.Add(stampedLate).After(m.asked) {
		return
	}
	m.noted, m.notedFor = n, m.asked
	for _, h := range m.held {
		uid, has := n.allocated[of(h)]
		if _, known := m.podUIDs[of(h)]; has && !known && h.Owner != (device.Owner{}) && !m.named[key(h)] {
			m.podUIDs[of(h)] = uid
		}
	}
}

// doubts tells whether an answer over a connection may be one of a kubelet that was
// restarted unnoticed, and that leaves out whom the one before it has let in.
func (m *memory) doubts(over link, asked time.Time) bool {
	return m.settled && over != m.link && asked.Sub(over.kubeletStart) < settleAfter
}

// lost takes in the kubelet's notes when it does not answer, or not all yet: an id
// that the last answer did not name may have been allocated since. It tells whether
// that changed anything. Foreign ids are left out, as in catchUp.
func (m *memory) lost(n notes, now time.Time) bool {
	if !m.settled { // nothing is called idle
		return false
	}
	m.next = append(m.next[:0], m.held...)
	for a := range n.allocated {
		if _, known := m.unnamed[a]; known || lists(m.held, a) || !m.own.mayHaveHad(a.offered.Device()) || !m.isNew(n, a) {
			continue
		}
		made := span{m.asked, now}
		if !m.notedFor.IsZero() {
			made.early = m.notedFor
		}
		if n.written.Before(now) {
			made.late = n.written
		}
		m.unnamed[a] = made
		m.next = append(m.next, device.Holding{Resource: a.resource, Offered: a.offered})
	}
	return m.replace(now)
}

// isNew tells whether what notes have was allocated since an answer that did not
// name it. A kubelet that starts writes down anew what is long over, so the time of
// the writing decides only where the notes of before were not seen.
func (m *memory) isNew(n notes, a allocation) bool {
	if m.notedFor.IsZero() {
		return n.written.Add(stampedLate).After(m.asked)
	}
	uid, had := m.noted.allocated[a]
	return !had || uid != n.allocated[a]
}

// uids are those that the notes have for pods, by what these hold by name; "" for
// a pod of which they are not clear.
func (m *memory) uids(n notes) map[podName]string {
	uids := map[podName]string{}
	for _, h := range m.held {
		if h.Claimed() { // the notes are the device manager's, and claims another's
			continue
		}
		p, uid := ownerOf(h), n.allocated[of(h)]
		if other, twice := uids[p]; twice && other != uid {
			uid = ""
		}
		uids[p] = uid
	}
	return uids
}

// catchUp adds the allocations that the notes have and no answer names: those of
// init containers, of which an earlier process was told. Notes that are older than
// the first full answer are not believed: it may have freed what they have. An allocation of a
// foreign id is left out, since an answer may have had too many of them to keep.
func (m *memory) catchUp(n notes) {
	if !n.written.After(m.trusted) || n.written.After(m.asked) {
		return
	}
	m.caughtUp = true
	for a := range n.allocated {
		if _, known := m.unnamed[a]; !known && m.own.mayHaveHad(a.offered.Device()) && !m.named[device.Holding{Resource: a.resource, Offered: a.offered}] && !lists(m.held, a) {
			m.unnamed[a] = span{late: m.trusted}
			m.next = append(m.next, device.Holding{Resource: a.resource, Offered: a.offered})
		}
	}
}
