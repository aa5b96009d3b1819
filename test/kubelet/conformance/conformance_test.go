// Package conformance is a table of kubelet behavior, from the point of view of a device plugin and a PodResources client. The table runs
// against internal/sim/kubelet and real kubelets. If the two differ, a test fails, and internal/sim/kubelet is wrong.
//
// The cases use the kubelet's sockets and pods, and a fake device plugin. Each case has a new resource and new pods and cleans up:
// the same kubelet can run the whole table.
package conformance

import (
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNewKubelets runs each case against a new simulated kubelet.
func TestNewKubelets(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		for _, c := range allCases() {
			t.Run(string(version)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(newCaseFixture(t, startSimulatedKubelet(t, version)))
			})
		}
	}
}

// TestKubelet runs the table against one simulated kubelet of each version.
func TestKubelet(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			runAll(t, startSimulatedKubelet(t, version))
		})
	}
}

// TestRealKubelet runs the table against the kubelet that TestConformance of test/e2e has started.
func TestRealKubelet(t *testing.T) { runAll(t, connectRealKubelet(t)) }

// allCases returns the table. The order of the cases is irrelevant.
func allCases() []kubeletCase {
	return slices.Concat(registrationCases, listCases, allocationCases, podResourcesCases, podCases, podsAPICases, restartCases)
}

func runAll(t *testing.T, k subject) {
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) { c.run(newCaseFixture(t, k)) })
	}
}
