package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestEventLatency has the GPUs of a machine report Xid 79 one after the other, and looks up in the kubelet's log when it was told. It takes the
// number of reports from PODGAUGE_XIDS; docs/contributing/benchmarks.md has 200.
func TestEventLatency(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_XIDS"), "32"))
	if err != nil || count < 1 {
		t.Fatalf("PODGAUGE_XIDS: %d, %v", count, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(count)*time.Second)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	var took []time.Duration
	for len(took) < count {
		took = append(took, measureEventLatency(ctx, t, n, count-len(took))...)
	}
	slices.Sort(took)
	from := fmt.Sprintf("from Xid 79 to Unhealthy on the stream, by the kubelet's log, n=%d: ", len(took))
	measureDurations(t, from+"p50", 5*time.Millisecond, percentile(took, 50))
	measureDurations(t, from+"p99", 20*time.Millisecond, percentile(took, 99))
	printMeasurement(t, from+"max", formatSeconds(took[len(took)-1]))
}

// percentile of durations in their order.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// measureEventLatency is that of a podgauge which remembers nothing, on a machine of as many GPUs as there can be. Each reports twice, and is reset between:
// one that has failed more often is recovering for longer and longer.
func measureEventLatency(ctx context.Context, t *testing.T, n *node.RealNode, most int) (took []time.Duration) {
	t.Helper()
	ids := uuids(nvmltest.MaxGPUs)
	m := newMachine(t, n, fmt.Sprintf("gpus %d", len(ids)))
	d := m.start(t, n)
	for range 2 {
		waitForAllocatable(ctx, t, n, ids...)
		var begins []time.Time
		for i := range ids {
			if len(took)+len(begins) == most {
				break
			}
			begins = append(begins, time.Now())
			m.addEvent(t, i, "xid 79")
			waitForAllocatable(ctx, t, n, ids[i+1:]...)
		}
		took = append(took, latencyToNextList(t, n, begins)...)
		for i := range ids {
			m.resetGPU(t, i)
		}
	}
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	return took
}

// latencyToNextList is how long after each of these times the next list arrived. Each of them has one of its own.
func latencyToNextList(t *testing.T, n *node.RealNode, begins []time.Time) (took []time.Duration) {
	t.Helper()
	times := gpuListTimes(t, n)
	for i, begin := range begins {
		at := slices.IndexFunc(times, begin.Before)
		if at < 0 || i+1 < len(begins) && times[at].After(begins[i+1]) {
			t.Fatalf("after report %d no list has come", i)
		}
		took = append(took, times[at].Sub(begin))
		times = times[at:]
	}
	return took
}
