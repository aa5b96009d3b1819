package podresources

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// noteEnd notes that a pod has ended, and tells whether it is known to hold something: that the
// kubelet still says so may be a matter of a moment.
func (m *memory) noteEnd(p podName, now time.Time) bool {
	holds := m.has(p)
	if holds {
		m.ended[p] = now
	}
	return holds
}

// bury takes from those who have ended what they held, since the kubelet does not answer. It
// tells whether there was any.
func (m *memory) bury(now time.Time) bool {
	m.next = m.next[:0]
	for _, h := range m.held {
		if _, over := m.ended[ownerOf(h)]; !over {
			m.next = append(m.next, h)
		}
	}
	return m.replace(now)
}

func ownerOf(h device.Holding) podName { return podName{h.Owner.Namespace, h.Owner.Pod} }
