package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestLeftoverProcess checks that a container's start is rejected until a leftover process of an ended container has released the GPU.
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
	if lines := d.logLines(t, "container rejected", "cannot start", uuid(0), "4711"); len(lines) == 0 {
		t.Error("log lines about the rejected container: got none")
	}
	m.clear(t, "gpu 0 process")
	measureDurations(t, "end of a leftover process → container started", 25*time.Second, waitForStart(ctx, t, n, pod))
	removePod(ctx, t, n, pod)
}
