package podresources

import (
	"slices"
	"time"
)

const (
	// maxGetPods limits the calls of Get in place of a List: a List returns all pods for a single call of the kubelet's limit.
	maxGetPods = 3
	// maxGetAttempts limits the calls of Get for a pod.
	maxGetAttempts = 2
)

// recentPods are the recently added pods: the possible owners of a pending allocation. Get returns a single pod, where List returns all
// pods of the node.
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

// nextCandidates returns the possible owners of an allocation made after since, and counts an attempt for each; nil above maxGetPods.
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
