// Package conformance is a table of kubelet behavior, from the point of view of
// a device plugin and a PodResources client. The table runs against
// internal/sim/kubelet and, by test/e2e, against real kubelets. If the two
// differ, a test fails, and internal/sim/kubelet is wrong.
//
// The cases use the kubelet's sockets and pods, and a fake device plugin. Each
// case has a new resource and new pods and cleans up: the same kubelet can run
// the whole table.
package conformance

import (
	"slices"
	"testing"
)

// allCases returns the table. The order of the cases is irrelevant.
func allCases() []kubeletCase {
	return slices.Concat(
		registrationCases, listCases, allocationCases, podResourcesCases, podCases, podsAPICases, restartCases)
}

// Run runs the table against a kubelet.
func Run(t *testing.T, k Kubelet) {
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) { c.run(newCaseFixture(t, k)) })
	}
}

// RunEach runs each case against a new kubelet.
func RunEach(t *testing.T, start func(t *testing.T) Kubelet) {
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newCaseFixture(t, start(t)))
		})
	}
}
