package podresources

import (
	"slices"
	"time"
)

const (
	// maxGetPods is the number of pods up to which Get is called for each: one List answers for all pods, and counts as much towards
	// the kubelet's limit.
	maxGetPods = 3
	// maxGetAttempts is the number of calls of Get for one pod.
	maxGetAttempts = 2
)

// recentPods are the pods that were added lately. One of them may own a pending allocation, and then Get returns that pod alone, where
// List returns all of the node.
type recentPods []recentPod

type recentPod struct {
	name     podName
	addedAt  time.Time
	attempts int
}

func (r *recentPods) add(name podName, now time.Time) {
	*r = slices.DeleteFunc(*r, func(p recentPod) bool {
		return p.name == name || now.Sub(p.addedAt) > maxAdmissionDelay+ownerLookupTimeout
	})
	*r = append(*r, recentPod{name: name, addedAt: now})
}

// nextCandidates returns the pods that may own an allocation made since a time and have none, and counts an attempt for each; none if
// there are too many.
func (r *recentPods) nextCandidates(since time.Time, hasAllocation func(podName) bool) (names []podName) {
	for _, p := range *r {
		if p.attempts < maxGetAttempts && p.addedAt.After(since.Add(-maxAdmissionDelay)) && !hasAllocation(p.name) {
			names = append(names, p.name)
		}
	}
	if len(names) > maxGetPods {
		return nil
	}
	for i := range *r {
		if slices.Contains(names, (*r)[i].name) {
			(*r)[i].attempts++
		}
	}
	return names
}
