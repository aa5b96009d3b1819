package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

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
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n, "--kernel-log=")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	lists := len(gpuListTimes(t, n))
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		if s.duration > maxScrapeDuration*timeoutFactor() {
			return fmt.Errorf("scrape duration: got %s", s.duration)
		}
		return s.wantValue(1, "nvidia_gpu_up", seriesLabels{"uuid": uuid(2)})
	})

	begin := time.Now()
	stormDone := make(chan error, 1)
	go func() { stormDone <- runStorm(ctx, m) }()
	await(ctx, t, "the storm has begun", func(ctx context.Context) error {
		s, err := d.device(ctx, uuid(2))
		if err == nil && s.Reason != "xid_79" {
			err = fmt.Errorf("device: got %+v, want reason xid_79", s)
		}
		return err
	})
	pod := podWithGPUs(podDuringFault, 1)
	_, took := runPod(ctx, t, n, pod)
	measureDurations(t, "new pod during a storm of Xids: created → running", 5*time.Second, took)
	gpuID := allocatedGPU(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "the pod's allocation is exported", func(s metricsScrape) error {
		return s.checkOwners([]string{gpuID}, map[string]node.OwnerKey{gpuID: mainContainer(pod)})
	})
	if err := <-stormDone; err != nil {
		t.Fatal(err)
	}
	duration := time.Since(begin)
	begin = time.Now()
	d.scrapeUntil(ctx, t, "each Xid is counted", func(s metricsScrape) error { return checkXidCounts(ctx, d, s) })
	// Counts are stored once a second, and scrapes share the collection of a second.
	name := fmt.Sprintf("end of %d Xids in %s → all counted", burstCount*burstSize, formatSeconds(duration))
	measureDurations(t, name, 2500*time.Millisecond, time.Since(begin))
	if err := checkXidCounts(ctx, d, d.nextScrape(ctx, t)); err != nil {
		t.Errorf("next scrape: %v", err)
	}
	printMeasurement(t, "storm: number of scrapes", fmt.Sprint(watch.stop(t)))
	measureDurations(t, "storm: slowest scrape", maxScrapeDuration, watch.longest)
	sent := len(gpuListTimes(t, n)) - lists
	printMeasurement(t, "storm: device lists sent", fmt.Sprintf("%d; limit 2", sent))
	if sent < 1 || sent > 2 {
		t.Errorf("device lists sent: got %d, want 1 or 2", sent)
	}
	printMeasurement(t, "storm: log lines", fmt.Sprint(len(d.logLines(t, "driver event"))))
	waitForAllocatable(ctx, t, n, without(uuids(defaultGPUs), uuid(2))...)
	removePod(ctx, t, n, pod)
}

func runStorm(ctx context.Context, m *simulatedMachine) error {
	tick := time.NewTicker(burstInterval)
	defer tick.Stop()
	for i := range burstCount {
		burst := stormXids[i%len(stormXids)]
		if err := m.Event(burst.gpu, fmt.Sprintf("xid %d x %d", burst.xid, burstSize)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
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
