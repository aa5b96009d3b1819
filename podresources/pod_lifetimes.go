package podresources

import (
	"maps"
	"time"
)

// maxAdmissionDelay is how long a pod may have been listed when Allocate is called
// for it: its admission asks other plugins too, and they take their time.
const maxAdmissionDelay = 10 * time.Second

// podLifetimes are when the pods that the kubelet lists came, as closely as its
// answers tell. A pod is listed, with or without devices, from before its
// admission (HandlePodAdditions in pkg/kubelet/kubelet.go) until it has ended, and
// what it had is free when it is listed no more (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go). So an allocation whose holder is not
// named is over when none of those is listed who came in time for it. A pod that
// came back under its name between two answers passes for the one before it.
type podLifetimes struct {
	pods      map[podName]podPresence
	responses int // how many there were
	// completeAt is when the newest answer was asked for that left out nobody.
	completeAt time.Time
}

// podPresence is of one pod. The times are when answers were asked for.
type podPresence struct {
	absentAt     time.Time // the newest that left out nobody and did not list it; zero where there was none
	firstListed  time.Time // the first that listed it
	lastResponse int       // the newest that listed it, by its number
}

func newPodLifetimes() podLifetimes { return podLifetimes{pods: map[podName]podPresence{}} }

// update takes in the pods of an answer, and whether it left out nobody.
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

// mayOwn tells whether a pod is there that what was allocated in that time may
// have been for, but for those of whom it is known that it was not.
func (l *podLifetimes) mayOwn(allocatedAt timeInterval, known func(podName) bool) bool {
	for p, presence := range l.pods {
		if presence.absentAt.Before(allocatedAt.latest) && presence.firstListed.After(allocatedAt.earliest.Add(-maxAdmissionDelay)) && !known(p) {
			return true
		}
	}
	return false
}
