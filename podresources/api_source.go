package podresources

import (
	"slices"
	"strings"
	"time"
)

// apiSource tracks whether the kubelet's answers have the pods that it gets from the API
// server. A kubelet that is restarted while the API server is away lists static pods alone for
// as long as that lasts, and frees nothing (UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go returns early).
type apiSource struct {
	// node is the name of the node, with which names of static pods end; "" where it is not
	// known, and then every pod counts as one of the API server.
	node string
	// listed reports whether the newest answer has a pod of the API server.
	listed bool
	// missing reports whether all answers over this connection lack such pods, though the
	// connection before had some. It ends when the kubelet has the API server's pods, even if all
	// others were deleted: podgauge's own is one of them, as a DaemonSet's.
	missing bool
	// back is when an answer had such a pod again; zero if none was missing.
	back time.Time
}

// heard takes the pods of an answer, and whether it is the first over its connection.
func (s *apiSource) heard(pods []podName, first bool, asked time.Time) {
	listed := slices.ContainsFunc(pods, func(p podName) bool { return !s.static(p) })
	switch {
	case first:
		s.missing, s.back = (s.listed || s.missing) && !listed, time.Time{}
	case s.missing && listed:
		s.missing, s.back = false, asked
	}
	s.listed = listed
}

// static reports whether a pod comes from a file of the node: the kubelet adds the node's name
// to the pod's (generatePodName in pkg/kubelet/config/common.go).
func (s *apiSource) static(p podName) bool {
	return s.node != "" && strings.HasSuffix(p.pod, "-"+s.node)
}

// incomplete reports whether an answer may lack pods of the API server: until one is listed,
// and for as long after it as a kubelet that starts takes.
func (s *apiSource) incomplete(asked time.Time) bool {
	return s.missing || !s.back.IsZero() && asked.Sub(s.back) < settleAfter
}

// OnNode sets the name of the node, which tells static pods from those of the API server. To
// be called before Run.
func (c *Client) OnNode(name string) { c.memory.api.node = strings.ToLower(name) }
