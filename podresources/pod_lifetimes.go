package podresources

import (
	"maps"
	"time"
)

const (
	// maxAdmissionDelay is the time that a pod may have been listed before Allocate: the admission also calls other plugins.
	maxAdmissionDelay = 10 * time.Second
	// ownerLookupTimeout is how long after Allocate an owner is looked up.
	ownerLookupTimeout = 10 * time.Second
)

// podLifetimes tracks the first listing of each pod, as closely as responses allow. A pod is listed, with or without devices, from before
// the admission (HandlePodAdditions in pkg/kubelet/kubelet.go) until the end; then the devices are free (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go). So a pending allocation is over if no listed pod came in time. A pod recreated under the same
// name between two responses looks like the earlier pod.
type podLifetimes struct {
	pods       map[podName]podPresence
	responses  int
	completeAt time.Time // request of the newest complete response
}

// podPresence is the presence of a pod in responses.
type podPresence struct {
	absentAt     time.Time // request of the newest complete response before firstListed; zero without any
	firstListed  time.Time // request of the first response with the pod
	lastResponse int       // number of the newest response with the pod
}

// update records the pods of a response. A complete response omits no pod.
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

// mayOwn reports whether a listed pod may own an allocation.
func (l *podLifetimes) mayOwn(allocatedAt timeInterval) bool {
	for _, presence := range l.pods {
		if presence.absentAt.Before(allocatedAt.latest) && presence.firstListed.After(allocatedAt.earliest.Add(-maxAdmissionDelay)) {
			return true
		}
	}
	return false
}
