package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestPreferredPair checks allocations with pairs of GPUs connected by NVLink, and one GPU without a link. A pod with two GPUs gets a pair.
// A pod with one GPU gets the GPU without a link.
func TestPreferredPair(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	pairs := [][2]int{{0, 5}, {1, 4}, {2, 6}} // across the CPU sockets, so that only the links favor the pairs
	const unlinked = 3
	lines := []string{"gpus 7", "gpu * link 0-17 none"}
	for _, pair := range pairs {
		lines = append(lines, fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[0], pair[1]), fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[1], pair[0]))
	}
	m := newMachine(t, n, lines...)
	m.start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(7)})
	await(ctx, t, "podgauge has read the links", func(context.Context) error {
		if m.checkedCalls(t).Count("nvmlDeviceGetTopologyCommonAncestor", 5) == 0 { // the last call is for GPUs 5 and 6
			return errors.New("nvmlDeviceGetTopologyCommonAncestor of GPU 5: got no call")
		}
		return nil
	})

	pods := []node.StaticPod{}
	checkAllocation := func(name string, count int, want ...int) {
		t.Helper()
		pod := podWithResource(name, gpuResource, count)
		runPod(ctx, t, n, pod)
		pods = append(pods, pod)
		got := []int{}
		for _, id := range waitForDevices(ctx, t, n, pod) {
			got = append(got, indexOf(t, id))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("GPUs of pod %s: got %v, want %v", name, got, want)
		}
	}
	checkAllocation("single", 1, unlinked)
	checkAllocation("pair", 2, 0, 5)
	checkAllocation("split", 1, 1) // only pairs are left
	checkAllocation("rest", 1, 4)
	checkAllocation("last", 2, 2, 6)
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
	// If a GPU of a pair is lost, the other GPU is preferred for a pod with one GPU.
	m.setLines(t, "gpu 4 lost")
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Delete(uuids(7), 4, 5)})
	checkAllocation("two", 2, 0, 5)
	checkAllocation("one", 1, 1)
}
