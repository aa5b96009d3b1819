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
// A pod with one GPU gets the GPU without a link, also if a GPU falls off the bus without an Xid: calls about no GPU then fail as well.
func TestPreferredPair(t *testing.T) {
	n := startNode(t, node.Options{})
	pairs := [][2]int{{0, 5}, {1, 4}, {2, 6}} // across the CPU sockets, so that only the links favor the pairs
	const unlinked = 3
	lines := []string{"gpus 7", "gpu * link 0-17 none"}
	for _, pair := range pairs {
		lines = append(lines, fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[0], pair[1]), fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[1], pair[0]))
	}
	m := newMachine(t, n, lines...)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(7)...)
	waitForLinks(t, m)
	checkAllocations(t, n, []int{unlinked}, []int{0, 5}, []int{1} /* only pairs are left */, []int{4}, []int{2, 6})

	// If a GPU of a pair is lost, the other GPU is preferred for a pod with one GPU.
	begin := time.Now()
	must(t, m.Set("gpu 4 lost"))
	others := without(uuids(7), uuid(4))
	waitForAllocatable(t, n, others...)
	measureDurations(t, "GPU lost without an Xid → not allocatable", 5*time.Second, time.Since(begin))
	checkAllocations(t, n, []int{0, 5}, []int{1})
	d.stop(t)
	waitForAllocatable(t, n)
	d = m.start(t, n)
	waitForAllocatable(t, n, others...)
	waitForLinks(t, m)
	checkAllocations(t, n, []int{0, 5}, []int{1}, []int{2, 6})
	s := d.nextScrape(t)
	expect(t, errors.Join(s.checkOwners(others, nil), checkRejections(s, 0)))
	if lines := d.logLines(t, "level=ERROR"); len(lines) > 0 {
		t.Errorf("podgauge's errors: got %q, want none", lines)
	}
	must(t, m.Clear("gpu 4 lost"))
	measureDurations(t, "GPU lost at podgauge's start is back → allocatable", 15*time.Second, waitForAllocatable(t, n, uuids(7)...))
}

// waitForLinks waits until podgauge has read all links.
func waitForLinks(t *testing.T, m *simulatedMachine) {
	t.Helper()
	await(t, "podgauge has read the links", func(context.Context) error {
		if m.checkedCalls(t).Count("nvmlDeviceGetTopologyCommonAncestor", 5) == 0 { // the last call is for GPUs 5 and 6
			return errors.New("nvmlDeviceGetTopologyCommonAncestor of GPU 5: got no call")
		}
		return nil
	})
}

// checkAllocations runs pods one after another, checks that each gets exactly the GPUs with these indices, and removes the pods.
func checkAllocations(t *testing.T, n *node.RealNode, want ...[]int) {
	t.Helper()
	pods := []node.StaticPod{}
	for i, gpus := range want {
		pod := podWithGPUs(fmt.Sprintf("pod-%d", i), len(gpus))
		runPod(t, n, pod)
		pods = append(pods, pod)
		got := []int{}
		for _, id := range waitForDevices(t, n, pod) {
			got = append(got, indexOf(t, id))
		}
		if !slices.Equal(got, gpus) {
			t.Errorf("GPUs of pod %d: got %v, want %v", i, got, gpus)
		}
	}
	for _, pod := range pods {
		removePod(t, n, pod)
	}
}
