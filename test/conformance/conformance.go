// Package conformance is a table of what a kubelet does, as a device plugin and a PodResources
// client see it. It runs against internal/sim/kubelet and against real kubelets: a habit in which the
// two differ is a failing test, and internal/sim/kubelet is wrong.
//
// Every habit is driven from outside, through the kubelet's sockets and its pods, with a small
// device plugin of its own. A habit takes a resource and pods of its own and cleans up, so that
// one kubelet can serve the whole table.
package conformance

import (
	"context"
	"slices"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Kubelet is one that runs, with a node around it. Its pods are static: they need no API
// server.
type Kubelet interface {
	// Dir is the kubelet's folder, with device-plugins/kubelet.sock and
	// pod-resources/kubelet.sock in it, as this process sees it.
	Dir() string
	// Version is the minor version whose habits are expected.
	Version() kubelet.Version
	// RunPod gives the node a static pod and returns its status when each of its containers was
	// started or the pod has Failed, which is no error. Containers run until they are told to
	// end, except regular init containers, which exit 0 at once. With a Grace they ignore
	// SIGTERM.
	RunPod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// Pod returns what the kubelet says of a pod now. Its name is the full one, with the node's
	// name at its end.
	Pod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// EndPod makes the containers of a pod with restartPolicy Never exit, with whatever status,
	// and returns at once.
	EndPod(ctx context.Context, pod kubelet.PodSpec) error
	// RemovePod removes a pod's manifest and returns at once.
	RemovePod(ctx context.Context, pod kubelet.PodSpec) error
	// RestartContainer kills a container and returns when the kubelet has started it again.
	RestartContainer(ctx context.Context, pod kubelet.PodSpec, container string) error
	// Restart ends the kubelet by a signal, calls while when it has ended, and returns when its
	// successor answers on both sockets.
	Restart(ctx context.Context, signal syscall.Signal, while func()) error
}

// Case is a row of the table.
type Case struct {
	Name string
	// Run fails the test where the kubelet has another habit.
	Run func(t *testing.T, k Kubelet)
}

// All is the table. An order other than this one does as well.
func All() []Case {
	return slices.Concat(registrationCases(), listCases(), allocationCases(), podResourcesCases(), claimCases(), podLifecycleCases(), podsAPICases(), restartCases())
}

// Run runs the whole table against one kubelet.
func Run(t *testing.T, k Kubelet) {
	for _, habit := range All() {
		t.Run(habit.Name, func(t *testing.T) { habit.Run(t, k) })
	}
}

// newCase makes a row of a function that wants a stage to play on.
func newCase(name string, play func(s *caseFixture)) Case {
	return Case{Name: name, Run: func(t *testing.T, k Kubelet) { play(newCaseFixture(t, k)) }}
}
