//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// updateRelease updates the release twice while pods have GPUs: a new log level, then the host's driver and CDI instead of an
// injected driver and variables. The pods keep their containers. The test measures the longest time without all GPUs in the kubelet
// and the node's status, and without the pods' series in /metrics and Prometheus.
func updateRelease(ctx context.Context, t *testing.T, s *clusterFixture) {
	before, err := s.pods(ctx, teamNamespace, "app=trainer")
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		name   string
		values []string
	}{
		{"log.level", []string{"--set=log.level=debug"}},
		{"driver.injection", []string{
			"--set=driver.injection=host,nvidiaDevRoot=/,nvidiaDriverRoot=" + s.driver,
			"--set=deviceListStrategy=cdi-cri,cdi.nvidiaHookPath=" + s.driver + "/hook",
			`--set-json=extraEnv=[{"name": "NVML_STANDIN", "value": "/machine/scenario"}]`,
		}},
	} {
		t.Run(change.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 2*waitTimeout) // limit of the watch
			w := watchUpdate(ctx, s, before)
			defer w.wg.Wait()
			defer cancel()
			begin := time.Now()
			s.helm(ctx, t, append([]string{"upgrade", releaseName, chartDir, "--namespace=" + releaseNamespace, "--values=" + s.values}, change.values...)...)
			await(ctx, t, "the DaemonSet is ready again", s.daemonSet)
			took := time.Since(begin)
			now, err := s.podgaugePods(ctx)
			if err != nil || len(now) != 1 || now[0].Metadata.UID == old[0].Metadata.UID {
				t.Fatalf("podgauge's pod was not replaced: %v, %v", now, err)
			}
			old = now
			await(ctx, t, "/metrics has the pods' names", func(ctx context.Context) error { return s.checkPodOwners(ctx, before) })
			await(ctx, t, "the node has all GPUs", s.hasAllocatable(gpuCount))
			w.end()
			comparePods(ctx, t, s, before)
			printMeasurement(t, "update by "+change.name+": helm upgrade → ready (minReadySeconds are 5 of them)", formatSeconds(took))
			for _, g := range w.gaps {
				printMeasurement(t, fmt.Sprintf("… %s for", g.what), fmt.Sprintf("%s; limit %s", formatSeconds(g.longest), formatSeconds(g.limit)))
				if g.longest > g.limit {
					t.Errorf("%s for %s, want at most %s", g.what, formatSeconds(g.longest), formatSeconds(g.limit))
				}
			}
		})
	}
	if specs, err := s.Node.Shell(ctx, "ls /var/run/cdi/*.json"); err != nil {
		t.Errorf("no CDI spec: %q, %v", specs, err)
	}
}

// updateWatch measures unavailability during an update.
type updateWatch struct {
	closing chan struct{}
	wg      sync.WaitGroup
	gaps    []*unavailability
}

// unavailability is the longest time without a successful check.
type unavailability struct {
	what           string
	limit, longest time.Duration
	check          func(context.Context) error
}

// watchUpdate runs each check every 50 ms.
func watchUpdate(ctx context.Context, s *clusterFixture, pods []podObject) *updateWatch {
	w := &updateWatch{closing: make(chan struct{}), gaps: []*unavailability{
		{what: "the kubelet had fewer allocatable GPUs", limit: 10 * time.Second, check: func(ctx context.Context) error {
			ids, err := s.Node.Allocatable(ctx, gpuResource)
			if err == nil && len(ids) != gpuCount {
				err = fmt.Errorf("%d GPUs are allocatable", len(ids))
			}
			return err
		}},
		{what: "the node's status had fewer GPUs", limit: 12 * time.Second, check: s.hasAllocatable(gpuCount)},
		{what: "no /metrics had the pods' names", limit: 10 * time.Second, check: func(ctx context.Context) error { return s.checkPodOwners(ctx, pods) }},
		// Discovery takes up to 10 s: an update every 5 s, read every 5 s.
		{what: "Prometheus had no series of the pods", limit: 20 * time.Second, check: func(ctx context.Context) error {
			return s.checkSeriesCount(ctx, `nvidia_gpu_healthy{namespace="team"}`, len(pods))
		}},
	}}
	for _, g := range w.gaps {
		w.wg.Go(func() { g.watch(ctx, w.closing) })
	}
	return w
}

// end waits until all checks pass and ends the watch.
func (w *updateWatch) end() {
	close(w.closing)
	w.wg.Wait()
}

// checkBounded runs the check with a timeout, because requests to a removed address hang.
func (g *unavailability) checkBounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return g.check(ctx)
}

func (g *unavailability) watch(ctx context.Context, closing <-chan struct{}) {
	lastSuccess, failing := time.Now(), false
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := g.checkBounded(ctx)
		if failing = failing || err != nil; failing {
			g.longest = max(g.longest, time.Since(lastSuccess))
		}
		if err == nil {
			lastSuccess, failing = time.Now(), false
			select {
			case <-closing:
				return
			default:
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
