package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestLeftoverProcess has a process on a GPU that no container can account for: the next container's start is refused until it is gone.
func TestLeftoverProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--pre-start-check")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1)})
	m.setLines(t, "gpu 0 process 4711 1073741824")
	pod := podWithResource("after", gpuResource, 1)
	if _, err := n.CreatePod(pod); err != nil {
		t.Fatal(err)
	}
	waitForStartRejected(ctx, t, n, pod, uuid(0)+": in use by process 4711")
	if said := d.logLines(t, "container rejected", "cannot start", uuid(0), "4711"); len(said) == 0 {
		t.Error("podgauge says nothing of it")
	}
	m.clear(t, "gpu 0 process")
	measureDurations(t, "from the end of a leftover process to the container's start", 25*time.Second, waitForStart(ctx, t, n, pod))
	removePod(ctx, t, n, pod)
}
