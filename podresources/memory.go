package podresources

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/device"
)

// settleAfter is how long a kubelet that was (re)started may go without listing
// pods that it has: first it lists none, then the static ones, then those that it
// gets from the API server.
const settleAfter = 60 * time.Second

// memory is what is known of holders from answer to answer. It has no lock and
// reads no clock: its owner brings both.
type memory struct {
	// held is what stands, in the order of device.Holders.Held. Once set it is
	// replaced and not written, since it was published.
	held    []device.Holding
	settled bool
	// unnamed holds, by allocation, when Allocate returned for those whose name
	// is not known.
	unnamed map[allocation]time.Time
	recent  history
	next    []device.Holding // scratch
}

type allocation struct {
	resource string
	offered  device.OfferedID
}

func of(h device.Holding) allocation { return allocation{h.Resource, h.Offered} }

func newMemory() memory {
	return memory{unnamed: map[allocation]time.Time{}, recent: history{}}
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
		m.unnamed[allocation{resource, id}] = now
		m.next = append(m.next, device.Holding{Resource: resource, Offered: id})
	}
	return m.replace()
}

// take merges an answer in and tells whether anybody's holding changed. An answer
// counts for when it was asked for.
func (m *memory) take(a rawAnswer, l link, asked time.Time) bool {
	settled := m.settled || asked.Sub(l.kubeletStart) >= settleAfter
	became := settled != m.settled
	m.settled = settled
	m.next = m.next[:0]
	for _, h := range a.held {
		if at, ok := m.unnamed[of(h)]; ok {
			if at.After(asked) {
				continue // the answer is older than the allocation
			}
			delete(m.unnamed, of(h))
		}
		m.next = append(m.next, h)
		m.recent.saw(h, asked)
	}
	listed := m.next
	slices.SortFunc(listed, device.CompareHoldings)
	young := asked.Sub(l.connected) < settleAfter
	for _, h := range m.held {
		if m.stands(h, a, young) && !lists(listed, h) {
			m.next = append(m.next, h)
		}
	}
	m.recent.forget(asked)
	return m.replace() || became
}

// stands tells whether a holding that an answer may not name goes on.
func (m *memory) stands(h device.Holding, a rawAnswer, young bool) bool {
	if _, unnamed := m.unnamed[of(h)]; unnamed {
		return h.Owner == (device.Owner{})
	}
	return h.Owner != (device.Owner{}) && young && !a.pods[podName{h.Owner.Namespace, h.Owner.Pod}]
}

// lists tells whether the id of h is among the sorted rows, whoever holds it.
func lists(rows []device.Holding, h device.Holding) bool {
	i, _ := slices.BinarySearchFunc(rows, h, func(r, h device.Holding) int {
		r.Owner, h.Owner = device.Owner{}, device.Owner{}
		return device.CompareHoldings(r, h)
	})
	return i < len(rows) && of(rows[i]) == of(h)
}

// replace makes next what stands, where that differs.
func (m *memory) replace() bool {
	slices.SortFunc(m.next, device.CompareHoldings)
	m.next = slices.Compact(m.next) // a device of two NUMA nodes is listed twice
	if slices.Equal(m.next, m.held) {
		return false
	}
	m.held = slices.Clone(m.next)
	return true
}

// nameless tells whether an allocation is young enough to be looked for.
func (m *memory) nameless(now time.Time) bool {
	for _, at := range m.unnamed {
		if now.Sub(at) < lookFor {
			return true
		}
	}
	return false
}
