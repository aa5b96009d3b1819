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
	bursts    = 100
	burst     = 100
	burstTick = 100 * time.Millisecond
)

// storming is who reports what: programs that err, of which nobody has to be told, and a GPU that is off the bus, of which the kubelet has to
// hear once. At each tick the next one has its turn.
var storming = [...]struct{ gpu, xid int }{{0, 31}, {1, 43}, {2, 79}, {0, 13}}

// TestXidStorm has the driver report 10,000 errors in 10 s, each of which is counted, and nobody waits for that.
func TestXidStorm(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n, "--kernel-log=")
	allocatable(ctx, t, n, uuids(gpus)...)
	lists := len(listsArrived(t, n))
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s scrape) error {
		if s.took > answersWithin*leniency() {
			return fmt.Errorf("it took %s", s.took)
		}
		return s.is(1, "nvidia_gpu_up", labels{"uuid": uuid(2)})
	})

	begin := time.Now()
	raged := make(chan error, 1)
	go func() { raged <- rage(ctx, m) }()
	await(ctx, t, "the storm has begun", func(ctx context.Context) error {
		s, err := d.standing(ctx, uuid(2))
		if err == nil && s.Reason != "xid_79" {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
	pod := holds(meanwhile, 1)
	_, took := run(ctx, t, n, pod)
	figureOf(t, "a new pod ran in a storm of Xids", 5*time.Second, took)
	held := one(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "it is shown with its GPU", func(s scrape) error { return s.tells([]string{held}, map[string]node.Holder{held: holder(pod)}) })
	if err := <-raged; err != nil {
		t.Fatal(err)
	}
	long := time.Since(begin)
	begin = time.Now()
	d.scrapeUntil(ctx, t, "each report is counted", func(s scrape) error { return counts(ctx, d, s) })
	// Counts are stored once a second, and a collection serves the scrapes of a second.
	figureOf(t, fmt.Sprintf("%d Xids in %s: the last is counted after", bursts*burst, seconds(long)), 2500*time.Millisecond, time.Since(begin))
	if err := counts(ctx, d, d.next(ctx, t)); err != nil {
		t.Errorf("the next scrape: %v", err)
	}
	figure(t, "scrapes in the storm", fmt.Sprint(watch.stop(t)))
	figureOf(t, "the slowest of them", answersWithin, watch.longest)
	sent := len(listsArrived(t, n)) - lists
	figure(t, "lists that the storm had sent to the kubelet", fmt.Sprintf("%d; may be 2", sent))
	if sent < 1 || sent > 2 {
		t.Errorf("the kubelet was sent %d lists", sent)
	}
	figure(t, "lines that it made in podgauge's log", fmt.Sprint(len(d.logged(t, "driver event"))))
	allocatable(ctx, t, n, without(uuids(gpus), uuid(2))...)
	remove(ctx, t, n, pod)
}

// rage makes the storm.
func rage(ctx context.Context, m *machine) error {
	tick := time.NewTicker(burstTick)
	defer tick.Stop()
	for i := range bursts {
		of := storming[i%len(storming)]
		if err := m.Event(of.gpu, fmt.Sprintf("xid %d x %d", of.xid, burst)); err != nil {
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

// counts says where a report was not counted, or twice: as an Xid of its GPU, as what happened to the device, and in what is told of that.
func counts(ctx context.Context, d *daemon, s scrape) error {
	wrong := []error{}
	for _, of := range storming {
		const want = bursts * burst / len(storming)
		id, reason := uuid(of.gpu), fmt.Sprintf("xid_%d", of.xid)
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		told := 0
		for _, i := range all {
			told += int(i.Count)
		}
		if err == nil && told != want {
			err = fmt.Errorf("of %s %d reports are told", reason, told)
		}
		wrong = append(wrong, err, s.is(float64(want), "nvidia_gpu_xid_errors_total", labels{"uuid": id, "xid": strings.TrimPrefix(reason, "xid_")}),
			s.is(float64(want), "nvidia_gpu_incidents_total", labels{"uuid": id, "reason": reason}))
	}
	return errors.Join(wrong...)
}
