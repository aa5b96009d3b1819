package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestRemovedDevice configures replicas of a GPU while a pod has the whole GPU. After the pod's end, only the replicas are allocatable.
func TestRemovedDevice(t *testing.T) {
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
	d.nextScrape(ctx, t) // podgauge has the owner

	config.write(t, timeSlicingConfig(2))
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Concat(uuids(1), replicaIDs(uuid(0), 2))})
	for i := range 2 {
		runPod(ctx, t, n, podWithResource(fmt.Sprintf("new-%d", i), gpuResource, 1))
	}
	removePod(ctx, t, n, old)
	// The kubelet still has the old device list. A pod created now may be rejected, but must not get the whole GPU.
	late := podWithResource("late", gpuResource, 1)
	status, err := n.RunPod(ctx, late)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" {
		t.Errorf("devices of a third pod beside two pods with a replica: got %q, want none", waitForDevices(ctx, t, n, late))
	}
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 2)})
}
