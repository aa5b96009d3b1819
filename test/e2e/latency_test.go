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

// TestEventLatency measures the time from Xid 79 to the device list in the kubelet's log. PODGAUGE_XIDS is the number of Xids.
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
	prefix := fmt.Sprintf("Xid 79 → Unhealthy in the kubelet's log, n=%d: ", len(took))
	measureDurations(t, prefix+"p50", 5*time.Millisecond, percentile(took, 50))
	measureDurations(t, prefix+"p99", 20*time.Millisecond, percentile(took, 99))
	printMeasurement(t, prefix+"max", formatSeconds(took[len(took)-1]))
}

// percentile returns a percentile of sorted durations.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// measureEventLatency measures at most limit Xids, with a new podgauge without state and the largest number of GPUs. Each GPU reports two
// Xids with a reset in between: each further failure would lengthen its recovery.
func measureEventLatency(ctx context.Context, t *testing.T, n *node.RealNode, limit int) (took []time.Duration) {
	t.Helper()
	ids := uuids(nvmltest.MaxGPUs)
	m := newMachine(t, n, fmt.Sprintf("gpus %d", len(ids)))
	d := m.start(t, n)
	for range 2 {
		waitForAllocatable(ctx, t, n, ids...)
		var begins []time.Time
		for i := range ids {
			if len(took)+len(begins) == limit {
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

// latencyToNextList returns the time from each begin to the next device list, which must arrive before the next begin.
func latencyToNextList(t *testing.T, n *node.RealNode, begins []time.Time) (took []time.Duration) {
	t.Helper()
	times := gpuListTimes(t, n)
	for i, begin := range begins {
		at := slices.IndexFunc(times, begin.Before)
		if at < 0 || i+1 < len(begins) && times[at].After(begins[i+1]) {
			t.Fatalf("device list after Xid %d: got none", i)
		}
		took = append(took, times[at].Sub(begin))
		times = times[at:]
	}
	return took
}
