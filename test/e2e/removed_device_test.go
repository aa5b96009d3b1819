package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestWithdrawnGoes has a GPU be shared while a pod holds the whole of it. When that pod ends, the whole is not to be given to anybody else: its
// replicas are.
func TestWithdrawnGoes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1)})
	old := podWithResource("old", gpuResource, 1)
	runPod(ctx, t, n, old)
	waitForDevices(ctx, t, n, old)
	d.nextScrape(ctx, t) // podgauge knows the holder

	config.write(t, timeSlicingConfig(2))
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Concat(uuids(1), replicaIDs(uuid(0), 2))})
	for i := range 2 {
		runPod(ctx, t, n, podWithResource(fmt.Sprintf("new-%d", i), gpuResource, 1))
	}
	removePod(ctx, t, n, old)
	// The kubelet has heard of nothing yet. A pod that comes at once may be refused, but it must not get the whole GPU.
	late := podWithResource("late", gpuResource, 1)
	status, err := n.RunPod(ctx, late)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" {
		t.Errorf("two pods share the GPU, and a third one has %q", waitForDevices(ctx, t, n, late))
	}
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 2)})
}
