package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// watch checks a condition repeatedly in the background.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	// The results; read only after done.
	count   int
	longest time.Duration // of scrapes
	wrong   []string
}

// startWatch calls check at an interval until stop is called.
func startWatch(t *testing.T, interval time.Duration, check func(context.Context) error) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := check(ctx)
			if ctx.Err() != nil {
				return
			}
			w.count++
			if err != nil {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMilli), err))
			}
		}
	})
	t.Cleanup(func() { w.cancel(); w.done.Wait() })
	return w
}

// stop ends the watch and returns the number of checks. The test fails if a check failed.
func (w *watch) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("failed checks: got %d of %d:\n%s", len(w.wrong), w.count, strings.Join(w.wrong[:min(3, len(w.wrong))], "\n"))
	}
	return w.count
}

// watchScrapes scrapes podgauge at an interval and checks each scrape.
func watchScrapes(t *testing.T, d *podgaugeProcess, interval time.Duration, check func(metricsScrape) error) *watch {
	t.Helper()
	var w *watch
	started := make(chan struct{})
	w = startWatch(t, interval, func(ctx context.Context) error {
		<-started
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		w.longest = max(w.longest, s.duration)
		return check(s)
	})
	close(started)
	return w
}

// watchNotAllocatable checks that the kubelet never reports a GPU as allocatable. Requests to a stopped kubelet fail.
func watchNotAllocatable(t *testing.T, n *node.RealNode, id string) *watch {
	t.Helper()
	return startWatch(t, 20*time.Millisecond, func(ctx context.Context) error {
		if ids, _ := n.Allocatable(ctx, gpuResource); slices.Contains(ids, id) {
			return fmt.Errorf("allocatable GPUs: got %q", ids)
		}
		return nil
	})
}
