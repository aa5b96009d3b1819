// Package conformance is a table of kubelet behavior, as a device plugin and a client of PodResources see it. The table runs against
// internal/sim/kubelet and against real kubelets: if one behaves otherwise, a test fails, and internal/sim/kubelet is wrong.
//
// The cases use the kubelet's sockets and pods, and a device plugin of their own. Each case has its own resource and pods and cleans up,
// so that one kubelet can run the whole table.
package conformance

import (
	"slices"
	"testing"
)

// All returns the table. The order of the cases is irrelevant.
func All() []Case {
	return slices.Concat(registrationCases, listCases, allocationCases, podResourcesCases, podCases, podsAPICases, restartCases)
}

// Run runs the table against one kubelet.
func Run(t *testing.T, k Subject) {
	for _, c := range All() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, k) })
	}
}
