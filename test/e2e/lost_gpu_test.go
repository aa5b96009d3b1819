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

// TestLostGPU checks podgauge, also after a restart, with a GPU that fell off the bus without an Xid. Calls about no GPU then fail as well.
func TestLostGPU(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const lost = 3
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(defaultGPUs)})
	others := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return id == uuid(lost) })

	begin := time.Now()
	m.setLines(t, fmt.Sprintf("gpu %d lost", lost))
	waitForResources(ctx, t, n, idsByResource{gpuResource: others})
	measureDurations(t, "GPU lost without an Xid → not allocatable", 5*time.Second, time.Since(begin))
	runPodPairs(ctx, t, n, d, others, "known")

	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
	d = m.start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: others})
	runPodPairs(ctx, t, n, d, others, "unknown")

	m.clear(t, fmt.Sprintf("gpu %d lost", lost))
	begin = time.Now()
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(defaultGPUs)})
	measureDurations(t, "GPU lost at podgauge's start is back → allocatable", 15*time.Second, time.Since(begin))
}

// runPodPairs runs pods with two GPUs each until one of the GPUs is left. For each pod the kubelet must call GetPreferredAllocation.
func runPodPairs(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, ids []string, name string) {
	t.Helper()
	before := d.nextScrape(ctx, t)
	left := slices.Clone(ids)
	owners := map[string]node.OwnerKey{}
	pods := []node.StaticPod{}
	for i := range len(ids) / 2 {
		pod := podWithResource(fmt.Sprintf("%s-%d", name, i), gpuResource, 2)
		runPod(ctx, t, n, pod)
		pods = append(pods, pod)
		for _, id := range waitForDevices(ctx, t, n, pod) {
			at := slices.Index(left, id)
			if at < 0 {
				t.Fatalf("GPU of pod %s: got %s, want one of %q", pod.Name, id, left)
			}
			left = slices.Delete(left, at, at+1)
			owners[id] = mainContainer(pod)
		}
	}
	s := d.nextScrape(ctx, t)
	const requestCount = "podgauge_plugin_request_duration_seconds_count"
	with := seriesLabels{"method": "GetPreferredAllocation"}
	if calls := s.sum(requestCount, with) - before.sum(requestCount, with); calls != float64(len(pods)) {
		t.Errorf("GetPreferredAllocation calls: got %v, want %d", calls, len(pods))
	}
	if err := errors.Join(s.checkOwners(ids, owners), checkRejections(s, 0)); err != nil {
		t.Error(err)
	}
	if lines := d.logLines(t, "level=ERROR"); len(lines) > 0 {
		t.Errorf("podgauge's errors: got %q, want none", lines)
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
}
