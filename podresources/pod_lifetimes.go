package podresources

import (
	"maps"
	"time"
)

const (
	// maxAdmissionDelay is how long a pod may have been listed before Allocate: its admission calls other plugins too.
	maxAdmissionDelay = 10 * time.Second
	// ownerLookupTimeout is how long after Allocate an owner is looked up.
	ownerLookupTimeout = 10 * time.Second
)

// podLifetimes tracks when pods were first listed, as closely as responses tell. A pod is listed, with or without devices, from before
// its admission (HandlePodAdditions in pkg/kubelet/kubelet.go) until its end; then its devices are free (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go). So a pending allocation is over if no listed pod came in time for it. A pod that takes the
// name of an earlier one between two responses is taken for that one.
type podLifetimes struct {
	pods       map[podName]podPresence
	responses  int
	completeAt time.Time // request of the newest response that omitted no pod
}

// podPresence is the presence of one pod in responses.
type podPresence struct {
	absentAt     time.Time // request of the newest complete response before firstListed; zero if there was none
	firstListed  time.Time // request of the first response with the pod
	lastResponse int       // number of the newest response with the pod
}

func newPodLifetimes() podLifetimes { return podLifetimes{pods: map[podName]podPresence{}} }

// update records the pods of a response, and whether it is complete.
func (l *podLifetimes) update(pods []podName, requestedAt time.Time, complete bool) {
	l.responses++
	for _, p := range pods {
		presence, known := l.pods[p]
		if !known {
			presence = podPresence{absentAt: l.completeAt, firstListed: requestedAt}
		}
		presence.lastResponse = l.responses
		l.pods[p] = presence
	}
	if complete {
		l.completeAt = requestedAt
		maps.DeleteFunc(l.pods, func(_ podName, presence podPresence) bool { return presence.lastResponse != l.responses })
	}
}

// mayOwn reports whether a listed pod may own an allocation, apart from pods that are known not to.
func (l *podLifetimes) mayOwn(allocatedAt timeInterval, isOther func(podName) bool) bool {
	for p, presence := range l.pods {
		if presence.absentAt.Before(allocatedAt.latest) && presence.firstListed.After(allocatedAt.earliest.Add(-maxAdmissionDelay)) && !isOther(p) {
			return true
		}
	}
	return false
}
