package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// A storm is a burst of reports at every tick, about one GPU after the other.
const (
	burstCount    = 100
	burstSize     = 100
	burstInterval = 100 * time.Millisecond
)

// stormXids is who reports what: programs that err, of which nobody has to be told, and a GPU that is off the bus, of which the kubelet has to
// hear once. At each tick the next one has its turn.
var stormXids = [...]struct{ gpu, xid int }{{0, 31}, {1, 43}, {2, 79}, {0, 13}}

// TestXidStorm has the driver report 10,000 errors in 10 s, each of which is counted, and nobody waits for that.
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
			return fmt.Errorf("it took %s", s.duration)
		}
		return s.wantValue(1, "nvidia_gpu_up", seriesLabels{"uuid": uuid(2)})
	})

	begin := time.Now()
	raged := make(chan error, 1)
	go func() { raged <- runStorm(ctx, m) }()
	await(ctx, t, "the storm has begun", func(ctx context.Context) error {
		s, err := d.device(ctx, uuid(2))
		if err == nil && s.Reason != "xid_79" {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
	pod := podWithGPUs(podDuringHang, 1)
	_, took := runPod(ctx, t, n, pod)
	measureDurations(t, "a new pod ran in a storm of Xids", 5*time.Second, took)
	held := allocatedGPU(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "it is shown with its GPU", func(s metricsScrape) error {
		return s.checkOwners([]string{held}, map[string]node.OwnerKey{held: mainContainer(pod)})
	})
	if err := <-raged; err != nil {
		t.Fatal(err)
	}
	long := time.Since(begin)
	begin = time.Now()
	d.scrapeUntil(ctx, t, "each report is counted", func(s metricsScrape) error { return checkXidCounts(ctx, d, s) })
	// Counts are stored once a second, and a collection serves the scrapes of a second.
	measureDurations(t, fmt.Sprintf("%d Xids in %s: the last is counted after", burstCount*burstSize, formatSeconds(long)), 2500*time.Millisecond, time.Since(begin))
	if err := checkXidCounts(ctx, d, d.nextScrape(ctx, t)); err != nil {
		t.Errorf("the next scrape: %v", err)
	}
	printMeasurement(t, "scrapes in the storm", fmt.Sprint(watch.stop(t)))
	measureDurations(t, "the slowest of them", maxScrapeDuration, watch.longest)
	sent := len(gpuListTimes(t, n)) - lists
	printMeasurement(t, "lists that the storm had sent to the kubelet", fmt.Sprintf("%d; may be 2", sent))
	if sent < 1 || sent > 2 {
		t.Errorf("the kubelet was sent %d lists", sent)
	}
	printMeasurement(t, "lines that it made in podgauge's log", fmt.Sprint(len(d.logLines(t, "driver event"))))
	waitForAllocatable(ctx, t, n, without(uuids(defaultGPUs), uuid(2))...)
	removePod(ctx, t, n, pod)
}

// runStorm makes the storm.
func runStorm(ctx context.Context, m *simulatedMachine) error {
	tick := time.NewTicker(burstInterval)
	defer tick.Stop()
	for i := range burstCount {
		of := stormXids[i%len(stormXids)]
		if err := m.Event(of.gpu, fmt.Sprintf("xid %d x %d", of.xid, burstSize)); err != nil {
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

// checkXidCounts says where a report was not counted, or twice: as an Xid of its GPU, as what happened to the device, and in what is told of that.
func checkXidCounts(ctx context.Context, d *podgaugeProcess, s metricsScrape) error {
	wrong := []error{}
	for _, of := range stormXids {
		const want = burstCount * burstSize / len(stormXids)
		id, reason := uuid(of.gpu), fmt.Sprintf("xid_%d", of.xid)
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		told := 0
		for _, i := range all {
			told += int(i.Count)
		}
		if err == nil && told != want {
			err = fmt.Errorf("of %s %d reports are told", reason, told)
		}
		wrong = append(wrong, err, s.wantValue(float64(want), "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": id, "xid": strings.TrimPrefix(reason, "xid_")}),
			s.wantValue(float64(want), "nvidia_gpu_incidents_total", seriesLabels{"uuid": id, "reason": reason}))
	}
	return errors.Join(wrong...)
}
