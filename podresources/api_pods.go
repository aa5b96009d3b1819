package podresources

import (
	"slices"
	"strings"
	"time"
)

// apiPodTracker tracks whether the kubelet lists the pods of the API server. A kubelet restarted in an outage of the API server lists static
// pods alone until the end of the outage, and frees no device (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go returns
// early). The outage ends even if all user pods were deleted: podgauge's own pod, of a DaemonSet, is an API pod.
type apiPodTracker struct {
	nodeName   string    // lower case; if empty, every pod counts as an API pod
	hasAPIPods bool      // the last List had API pods
	missing    bool      // the kubelet was restarted, and lists no API pods since
	returnedAt time.Time // request of the List that ended missing; zero without any over this connection
}

// update records the pods of a List. The first List over a connection may follow a kubelet restart.
func (t *apiPodTracker) update(pods []podName, first bool, requestedAt time.Time) {
	had := t.hasAPIPods
	t.hasAPIPods = slices.ContainsFunc(pods, func(p podName) bool { return !t.isStatic(p) })
	switch {
	case first:
		t.missing, t.returnedAt = !t.hasAPIPods && (had || t.missing), time.Time{}
	case t.missing && t.hasAPIPods:
		t.missing, t.returnedAt = false, requestedAt
	}
}

// isStatic reports whether a pod comes from a file of the node. The kubelet appends the node's name to the names of such pods
// (generatePodName in pkg/kubelet/config/common.go).
func (t *apiPodTracker) isStatic(p podName) bool {
	return t.nodeName != "" && strings.HasSuffix(p.pod, "-"+t.nodeName)
}

// isIncomplete reports whether a List may lack pods of the API server.
func (t *apiPodTracker) isIncomplete(requestedAt time.Time) bool {
	return t.missing || !t.returnedAt.IsZero() && requestedAt.Sub(t.returnedAt) < settleTimeout
}
