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

// TestPreferredPair has pairs of GPUs that NVLinks join, none of neighbours, and one GPU without a partner. A pod of two GPUs gets a pair, and
// one of a single GPU the one that nobody misses.
func TestPreferredPair(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	pairs := [][2]int{{0, 5}, {1, 4}, {2, 6}} // each across the sockets, so that nothing but NVLinks speaks for a pair
	const alone = 3
	lines := []string{"gpus 7", "gpu * link 0-17 none"}
	for _, pair := range pairs {
		lines = append(lines, fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[0], pair[1]), fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[1], pair[0]))
	}
	m := newMachine(t, n, lines...)
	m.start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(7)})
	await(ctx, t, "the links were read", func(context.Context) error {
		if m.checkedCalls(t).Count("nvmlDeviceGetTopologyCommonAncestor", 5) == 0 { // the last question is about 5 and 6
			return errors.New("nobody has asked for them")
		}
		return nil
	})

	holding := []node.StaticPod{}
	takes := func(name string, count int, want ...int) {
		t.Helper()
		pod := podWithResource(name, gpuResource, count)
		runPod(ctx, t, n, pod)
		holding = append(holding, pod)
		got := []int{}
		for _, id := range waitForDevices(ctx, t, n, pod) {
			got = append(got, indexOf(t, id))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("pod %s has GPUs %v, want %v", name, got, want)
		}
	}
	takes("single", 1, alone)
	takes("pair", 2, 0, 5)
	takes("breaks", 1, 1) // nothing else is left
	takes("mends", 1, 4)
	takes("last", 2, 2, 6)
	for _, pod := range holding {
		removePod(ctx, t, n, pod)
	}
	// A broken pair is no pair: what is left of it goes to a pod of one.
	m.setLines(t, "gpu 4 lost")
	waitForResources(ctx, t, n, idsByResource{gpuResource: slices.Delete(uuids(7), 4, 5)})
	takes("two", 2, 0, 5)
	takes("one", 1, 1)
}
