package podresources

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// markPodEnded notes that a pod has ended, and tells whether it is known to hold something: that the
// kubelet still says so may be a matter of a moment.
func (t *allocationTracker) markPodEnded(p podName, now time.Time) bool {
	hasAllocation := t.hasAllocation(p)
	if hasAllocation {
		t.endedPods[p] = now
	}
	return hasAllocation
}

// dropEndedPods takes from those who have ended what they held, since the kubelet does not answer. It
// tells whether there was any.
func (t *allocationTracker) dropEndedPods(now time.Time) bool {
	t.scratch = t.scratch[:0]
	for _, h := range t.allocations {
		if _, ended := t.endedPods[podNameOf(h)]; !ended {
			t.scratch = append(t.scratch, h)
		}
	}
	return t.commit(now)
}

func podNameOf(h device.Allocation) podName { return podName{h.Owner.Namespace, h.Owner.Pod} }
