package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestEventLatency measures the time from Xid 79 to the device list in the kubelet's log. PODGAUGE_XIDS is the number of Xids.
func TestEventLatency(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_XIDS"), "32"))
	if err != nil || count < 1 {
		t.Fatalf("PODGAUGE_XIDS: %d, %v", count, err)
	}
	n := startNode(t, node.Options{})
	var took []time.Duration
	for len(took) < count {
		took = append(took, measureEventLatency(t, n, count-len(took))...)
	}
	slices.Sort(took)
	percentile := func(p int) time.Duration { return took[(len(took)*p+99)/100-1] }
	prefix := fmt.Sprintf("Xid 79 → Unhealthy in the kubelet's log, n=%d: ", len(took))
	measureDurations(t, prefix+"p50", 5*time.Millisecond, percentile(50))
	measureDurations(t, prefix+"p99", 20*time.Millisecond, percentile(99))
	printMeasurement(t, prefix+"max", formatSeconds(took[len(took)-1]))
}

// measureEventLatency measures at most limit Xids, with a new podgauge without state and the largest number of GPUs. Each GPU reports two
// Xids with a reset in between: each further failure would lengthen its recovery.
func measureEventLatency(t *testing.T, n *node.RealNode, limit int) (took []time.Duration) {
	t.Helper()
	ids := uuids(nvmltest.MaxGPUs)
	m := newMachine(t, n, fmt.Sprintf("gpus %d", len(ids)))
	d := m.start(t, n)
	for range 2 {
		waitForAllocatable(t, n, ids...)
		var begins []time.Time
		for i := range ids[:min(len(ids), limit-len(took))] {
			begins = append(begins, time.Now())
			must(t, m.Event(i, "xid 79"))
			waitForAllocatable(t, n, ids[i+1:]...)
		}
		took = append(took, latencyToNextList(t, n, begins)...)
		waitUntil(t, time.Now().Add(2*time.Second)) // like a real reset: podgauge counts the resets after its first check
		for i := range ids {
			must(t, m.Reset(i))
		}
	}
	d.stop(t)
	waitForAllocatable(t, n)
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

// A storm is a sequence of bursts of Xids at an interval, each burst of one GPU.
const (
	burstCount    = 100
	burstSize     = 100
	burstInterval = 100 * time.Millisecond
)

// stormXids are the Xids of consecutive bursts. Only Xid 79 changes the device list, and only once; the others are application errors.
var stormXids = [...]struct{ gpu, xid int }{{0, 31}, {1, 43}, {2, 79}, {0, 13}}

// TestXidStorm reports 10,000 Xids in 10 s. Each Xid must be counted, and neither scrapes nor pods may be delayed.
func TestXidStorm(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n, "--kernel-log=")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	lists := len(gpuListTimes(t, n))
	scrapes := watchScrapeDurations(t, d)

	begin := time.Now()
	burst := 0
	storm := startWatch(t, burstInterval, func(context.Context) error {
		if burst == burstCount {
			return nil
		}
		x := stormXids[burst%len(stormXids)]
		burst++
		return m.Event(x.gpu, fmt.Sprintf("xid %d x %d", x.xid, burstSize))
	})
	await(t, "the storm has begun", func(ctx context.Context) error {
		s, err := d.device(ctx, uuid(2))
		if err == nil && s.Reason != "xid_79" {
			err = fmt.Errorf("device: got %+v, want reason xid_79", s)
		}
		return err
	})
	pod := podWithGPUs(podDuringFault, 1)
	_, took := runPod(t, n, pod)
	measureDurations(t, "new pod during a storm of Xids: created → running", 5*time.Second, took)
	owners := waitForOwners(t, n, pod)
	d.scrapeUntil(t, "the pod's allocation is exported", func(s metricsScrape) error { return s.checkNoWrongOwner(owners) })
	waitUntil(t, begin.Add((burstCount+1)*burstInterval))
	end := time.Now()
	d.scrapeUntil(t, "each Xid is counted", func(s metricsScrape) error { return checkXidCounts(t.Context(), d, s) })
	storm.stop(t)
	// Counts are stored once a second, and scrapes share the collection of a second.
	measureDurations(t, fmt.Sprintf("end of %d Xids in %s → all counted", burstCount*burstSize, formatSeconds(end.Sub(begin))),
		2500*time.Millisecond, time.Since(end))
	if err := checkXidCounts(t.Context(), d, d.nextScrape(t)); err != nil {
		t.Errorf("next scrape: %v", err)
	}
	scrapes.stop(t)
	measureDurations(t, "storm: slowest scrape", maxScrapeDuration, scrapes.longest)
	sent := len(gpuListTimes(t, n)) - lists
	printMeasurement(t, "storm: device lists sent; log lines", fmt.Sprintf("%d, limit 2; %d", sent, len(d.logLines(t, "driver event"))))
	if sent < 1 || sent > 2 {
		t.Errorf("device lists sent: got %d, want 1 or 2", sent)
	}
	waitForAllocatable(t, n, without(uuids(defaultGPUs), uuid(2))...)
}

// checkXidCounts returns an error unless each Xid is counted exactly once in the metrics of Xids and incidents, and in the API.
func checkXidCounts(ctx context.Context, d *podgaugeProcess, s metricsScrape) error {
	wrong := []error{}
	for _, burst := range stormXids {
		const want = burstCount * burstSize / len(stormXids)
		id, reason := uuid(burst.gpu), fmt.Sprintf("xid_%d", burst.xid)
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		count := 0
		for _, i := range all {
			count += int(i.Count)
		}
		if err == nil && count != want {
			err = fmt.Errorf("count of incidents %s: got %d, want %d", reason, count, want)
		}
		wrong = append(wrong, err, s.wantValue(float64(want), "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": id, "xid": fmt.Sprint(burst.xid)}),
			s.wantValue(float64(want), "nvidia_gpu_incidents_total", seriesLabels{"uuid": id, "reason": reason}))
	}
	return errors.Join(wrong...)
}
