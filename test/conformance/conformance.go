// Package conformance is a table of kubelet behavior, from the point of view of a device plugin and a PodResources client. The table runs
// against internal/sim/kubelet and real kubelets. If the two differ, a test fails, and internal/sim/kubelet is wrong.
//
// The cases use the kubelet's sockets and pods, and a fake device plugin. Each case has a new resource and new pods and cleans up:
// the same kubelet can run the whole table.
package conformance

import (
	"slices"
	"testing"
)

// All returns the table. The order of the cases is irrelevant.
func All() []Case {
	return slices.Concat(registrationCases, listCases, allocationCases, podResourcesCases, podCases, podsAPICases, restartCases)
}

// Run runs the table against a kubelet.
func Run(t *testing.T, k Subject) {
	for _, c := range All() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, k) })
	}
}
