package podresources

import (
	"slices"
	"strings"
	"time"
)

// apiPodsPhase is whether the kubelet lists the pods of the API server. A kubelet restarted in an outage of the API server lists static
// pods alone until the end of the outage, and frees no device (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go returns
// early). The phase follows from each List, by the table nextAPIPodsPhases.
//
// After settleTimeout, apiPodsReturned counts as apiPodsListed. The phase apiPodsMissing ends even if all user pods were deleted:
// podgauge's own pod, of a DaemonSet, is an API pod.
type apiPodsPhase uint8

const (
	apiPodsListed apiPodsPhase = iota // or never seen
	apiPodsMissing
	apiPodsReturned
)

const (
	firstWith    = iota // the first List over a connection has API pods
	firstLost           // the first has none, but the List before had
	firstWithout        // the first has none, and the List before had none
	laterWith           // a later List has API pods
	laterWithout
)

var nextAPIPodsPhases = [...][3]apiPodsPhase{
	// phase before: apiPodsListed, apiPodsMissing, apiPodsReturned
	firstWith:    {apiPodsListed, apiPodsListed, apiPodsListed},
	firstLost:    {apiPodsMissing, apiPodsMissing, apiPodsMissing},
	firstWithout: {apiPodsListed, apiPodsMissing, apiPodsListed},
	laterWith:    {apiPodsListed, apiPodsReturned, apiPodsReturned},
	laterWithout: {apiPodsListed, apiPodsMissing, apiPodsReturned},
}

// apiPodTracker tracks whether the kubelet lists the pods of the API server.
type apiPodTracker struct {
	nodeName   string // lower case; if empty, every pod counts as an API pod
	phase      apiPodsPhase
	hasAPIPods bool      // the last List had API pods
	returnedAt time.Time // request of the List at the begin of apiPodsReturned
}

// update records the pods of a List. The first List over a connection may follow a kubelet restart.
func (t *apiPodTracker) update(pods []podName, first bool, requestedAt time.Time) {
	had := t.hasAPIPods
	t.hasAPIPods = slices.ContainsFunc(pods, func(p podName) bool { return !t.isStatic(p) })
	event := laterWithout
	switch {
	case first && t.hasAPIPods:
		event = firstWith
	case first && had:
		event = firstLost
	case first:
		event = firstWithout
	case t.hasAPIPods:
		event = laterWith
	}
	before := t.phase
	if t.phase = nextAPIPodsPhases[event][before]; t.phase == apiPodsReturned && before != apiPodsReturned {
		t.returnedAt = requestedAt
	}
}

// isStatic reports whether a pod comes from a file of the node. The kubelet appends the node's name to the names of such pods
// (generatePodName in pkg/kubelet/config/common.go).
func (t *apiPodTracker) isStatic(p podName) bool {
	return t.nodeName != "" && strings.HasSuffix(p.pod, "-"+t.nodeName)
}

// isIncomplete reports whether a List may lack pods of the API server.
func (t *apiPodTracker) isIncomplete(requestedAt time.Time) bool {
	return t.phase == apiPodsMissing || t.phase == apiPodsReturned && requestedAt.Sub(t.returnedAt) < settleTimeout
}
