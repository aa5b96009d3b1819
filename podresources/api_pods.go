package podresources

import (
	"slices"
	"strings"
	"time"
)

// apiPodTracker tracks whether the kubelet's answers have the pods that it gets from the API
// server. A kubelet that is restarted while the API server is away lists static pods alone for
// as long as that lasts, and frees nothing (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go returns early).
type apiPodTracker struct {
	// nodeName is the name of the node, with which names of static pods end; "" where it is not
	// known, and then every pod counts as one of the API server.
	nodeName string
	// hasAPIPods reports whether the newest answer has a pod of the API server.
	hasAPIPods bool
	// missing reports whether all answers over this connection lack such pods, though the
	// connection before had some. It ends when the kubelet has the API server's pods, even if all
	// others were deleted: podgauge's own is one of them, as a DaemonSet's.
	missing bool
	// restoredAt is when an answer had such a pod again; zero if none was missing.
	restoredAt time.Time
}

// update takes the pods of an answer, and whether it is the first over its connection.
func (t *apiPodTracker) update(pods []podName, first bool, requestedAt time.Time) {
	hasAPIPods := slices.ContainsFunc(pods, func(p podName) bool { return !t.isStatic(p) })
	switch {
	case first:
		t.missing, t.restoredAt = (t.hasAPIPods || t.missing) && !hasAPIPods, time.Time{}
	case t.missing && hasAPIPods:
		t.missing, t.restoredAt = false, requestedAt
	}
	t.hasAPIPods = hasAPIPods
}

// isStatic reports whether a pod comes from a file of the node: the kubelet adds the node's name
// to the pod's (generatePodName in pkg/kubelet/config/common.go).
func (t *apiPodTracker) isStatic(p podName) bool {
	return t.nodeName != "" && strings.HasSuffix(p.pod, "-"+t.nodeName)
}

// isIncomplete reports whether an answer may lack pods of the API server: until one is listed,
// and for as long after it as a kubelet that starts takes.
func (t *apiPodTracker) isIncomplete(requestedAt time.Time) bool {
	return t.missing || !t.restoredAt.IsZero() && requestedAt.Sub(t.restoredAt) < settleTimeout
}
