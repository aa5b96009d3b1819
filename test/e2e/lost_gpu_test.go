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

// TestLostGPU has a GPU fall off the bus without an Xid, and podgauge begin anew on a machine that has one. The driver then fails calls that
// are about no GPU, too.
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
	measureDurations(t, "a GPU that is lost without a word is taken from the kubelet's GPUs", 5*time.Second, time.Since(begin))
	runPodPairs(ctx, t, n, d, others, "known")

	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
	d = m.start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: others})
	runPodPairs(ctx, t, n, d, others, "unknown")

	m.clear(t, fmt.Sprintf("gpu %d lost", lost))
	begin = time.Now()
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(defaultGPUs)})
	measureDurations(t, "a GPU that was lost at podgauge's start is among the kubelet's when it is back", 15*time.Second, time.Since(begin))
}

// runPodPairs runs pods of two GPUs until one GPU of these is left, one with the kubelet's choice and podgauge's advice each.
func runPodPairs(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, ids []string, name string) {
	t.Helper()
	before := d.nextScrape(ctx, t)
	left := slices.Clone(ids)
	holding := map[string]node.OwnerKey{}
	pods := []node.StaticPod{}
	for i := range len(ids) / 2 {
		pod := podWithResource(fmt.Sprintf("%s-%d", name, i), gpuResource, 2)
		runPod(ctx, t, n, pod)
		pods = append(pods, pod)
		for _, id := range waitForDevices(ctx, t, n, pod) {
			at := slices.Index(left, id)
			if at < 0 {
				t.Fatalf("pod %s has %s, of %q", pod.Name, id, left)
			}
			left = slices.Delete(left, at, at+1)
			holding[id] = mainContainer(pod)
		}
	}
	s := d.nextScrape(ctx, t)
	const asked = "podgauge_plugin_request_duration_seconds_count"
	with := seriesLabels{"method": "GetPreferredAllocation"}
	if calls := s.sum(asked, with) - before.sum(asked, with); calls != float64(len(pods)) {
		t.Errorf("the kubelet has asked for a choice %v times", calls)
	}
	if err := errors.Join(s.checkOwners(ids, holding), checkRejections(s, 0)); err != nil {
		t.Error(err)
	}
	if said := d.logLines(t, "level=ERROR"); len(said) > 0 {
		t.Errorf("podgauge says %q", said)
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
}
