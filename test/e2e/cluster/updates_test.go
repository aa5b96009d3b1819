//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// updateRelease updates the release twice while pods have GPUs: a new log level, then the host's driver and CDI instead of an
// injected driver and variables. The pods keep their containers. The test measures the longest time without all GPUs in the kubelet
// and the node's status, and without the pods' series in /metrics and Prometheus.
func updateRelease(t *testing.T, s *clusterFixture) {
	before := s.trainers(t)
	old, err := s.podgaugePod(t.Context())
	must(t, err)
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
			gaps := s.watchUpdate(t, before)
			begin := time.Now()
			s.helm(t, append([]string{"upgrade", releaseName, chartDir, "--namespace=" + releaseNamespace, "--values=" + s.values}, change.values...)...)
			await(t, "the DaemonSet is ready again", s.daemonSet)
			printMeasurement(t, "update by "+change.name+": helm upgrade → ready (minReadySeconds are 5 of them)", formatSeconds(time.Since(begin)))
			now, err := s.podgaugePod(t.Context())
			if err != nil || now.Metadata.UID == old.Metadata.UID {
				t.Fatalf("podgauge's pod was not replaced: %v, %v", now, err)
			}
			old = now
			await(t, "/metrics has the pods' names", func(ctx context.Context) error { return s.checkPodOwners(ctx, before) })
			await(t, "the node has all GPUs", s.hasAllocatable(gpuCount))
			for _, g := range gaps {
				g.end(t)
			}
			compareContainers(t, s.trainers(t), before)
		})
	}
	if specs, err := s.Node.Shell(t.Context(), "ls /var/run/cdi/*.json"); err != nil {
		t.Errorf("no CDI spec: %q, %v", specs, err)
	}
}

// unavailability is the longest time without a successful check.
type unavailability struct {
	what           string
	limit, longest time.Duration
	check          func(context.Context) error
	closing, done  chan struct{}
}

// watchUpdate watches the GPUs, and the pods' series.
func (s *clusterFixture) watchUpdate(t *testing.T, pods []podObject) []*unavailability {
	t.Helper()
	return watch(t, append(
		s.capacity(10*time.Second),
		&unavailability{what: "no /metrics had the pods' names", limit: 10 * time.Second, check: func(ctx context.Context) error { return s.checkPodOwners(ctx, pods) }},
		// Discovery takes up to 10 s: an update every 5 s, read every 5 s.
		&unavailability{what: "Prometheus had no series of the pods", limit: 20 * time.Second, check: func(ctx context.Context) error {
			return s.checkSeriesCount(ctx, `nvidia_gpu_healthy{namespace="team"}`, len(pods))
		}},
	))
}

// capacity checks that all GPUs are in the kubelet, within a limit, and in the node's status, which follows within 2 s.
func (s *clusterFixture) capacity(limit time.Duration) []*unavailability {
	return []*unavailability{
		{what: "the kubelet had fewer allocatable GPUs", limit: limit, check: func(ctx context.Context) error {
			ids, err := s.Node.Allocatable(ctx, gpuResource)
			if err == nil && len(ids) != gpuCount {
				err = fmt.Errorf("%d GPUs are allocatable", len(ids))
			}
			return err
		}},
		{what: "the node's status had fewer GPUs", limit: limit * 12 / 10, check: s.hasAllocatable(gpuCount)},
	}
}

// watch runs each check every 50 ms.
func watch(t *testing.T, gaps []*unavailability) []*unavailability {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	t.Cleanup(cancel)
	for _, g := range gaps {
		g.closing, g.done = make(chan struct{}), make(chan struct{})
		go g.watch(ctx)
	}
	return gaps
}

// watch runs the check until it passes after end was called.
func (g *unavailability) watch(ctx context.Context) {
	defer close(g.done)
	lastSuccess, failing := time.Now(), false
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		bounded, cancel := context.WithTimeout(ctx, time.Second) // requests to a removed address hang
		err := g.check(bounded)
		cancel()
		if failing = failing || err != nil; failing {
			g.longest = max(g.longest, time.Since(lastSuccess))
		}
		if err != nil {
			continue
		}
		lastSuccess, failing = time.Now(), false
		select {
		case <-g.closing:
			return
		default:
		}
	}
}

// end waits until the check passes, and checks the longest time.
func (g *unavailability) end(t *testing.T) {
	t.Helper()
	close(g.closing)
	<-g.done
	printMeasurement(t, "… "+g.what+" for", fmt.Sprintf("%s; limit %s", formatSeconds(g.longest), formatSeconds(g.limit)))
	if g.longest > g.limit {
		t.Errorf("%s for %s, want at most %s", g.what, formatSeconds(g.longest), formatSeconds(g.limit))
	}
}
