package podresources

import (
	"maps"
	"time"
)

// admittedWithin is how long a pod may have been listed when Allocate is called
// for it: its admission asks other plugins too, and they take their time.
const admittedWithin = 10 * time.Second

// arrivals are when the pods that the kubelet lists came, as closely as its
// answers tell. A pod is listed, with or without devices, from before its
// admission (HandlePodAdditions in pkg/kubelet/kubelet.go) until it has ended, and
// what it had is free when it is listed no more (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go). So an allocation whose holder is not
// named is over when none of those is listed who came in time for it. A pod that
// came back under its name between two answers passes for the one before it.
type arrivals struct {
	pods    map[podName]arrival
	answers int // how many there were
	// complete is when the newest answer was asked for that left out nobody.
	complete time.Time
}

// arrival is of one pod. The times are when answers were asked for.
type arrival struct {
	after time.Time // the newest that left out nobody and did not list it; zero where there was none
	first time.Time // the first that listed it
	last  int       // the newest that listed it, by its number
}

func newArrivals() arrivals { return arrivals{pods: map[podName]arrival{}} }

// heard takes in the pods of an answer, and whether it left out nobody.
func (a *arrivals) heard(pods []podName, asked time.Time, complete bool) {
	a.answers++
	for _, p := range pods {
		came, known := a.pods[p]
		if !known {
			came = arrival{after: a.complete, first: asked}
		}
		came.last = a.answers
		a.pods[p] = came
	}
	if complete {
		a.complete = asked
		maps.DeleteFunc(a.pods, func(_ podName, came arrival) bool { return came.last != a.answers })
	}
}

// mayHold tells whether a pod is there that what was allocated in that time may
// have been for, but for those of whom it is known that it was not.
func (a *arrivals) mayHold(made span, known func(podName) bool) bool {
	for p, came := range a.pods {
		if came.after.Before(made.late) && came.first.After(made.early.Add(-admittedWithin)) && !known(p) {
			return true
		}
	}
	return false
}
